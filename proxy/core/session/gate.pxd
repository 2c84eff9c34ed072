cimport cython

from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.exchange cimport InFlightRequest as InFlightRequestType
from proxy.core.session.frames cimport FrameReader as FrameReaderType
from proxy.core.session.throttle cimport Throttle as ThrottleType
from proxy.core.wire cimport requests
from proxy.core.wire.requests cimport RequestHeader
from quota.accounts cimport Account as AccountType, Meter as MeterType
from quota.counter cimport FetchGrant as FetchGrantType, QuotaCounter as QuotaCounterType
from quota.ledger cimport Ledger as LedgerType

cdef int _FETCH, _PRODUCE


@cython.locals(api_key=cython.int, throttle=ThrottleType, gates=dict, kinds=tuple)
cpdef bint lets_through(SessionStateType state, FrameReaderType reader, AccountType account, RequestHeader header,
                        double now_ms) except -1

@cython.locals(throttle=ThrottleType, group=QuotaCounterType)
cpdef bint claim(SessionStateType state, AccountType account, long long size_bytes, long long missing, double now_ms) except -1

cdef object _promise(ThrottleType throttle, QuotaCounterType group)

@cython.locals(ledger=LedgerType, throttle=ThrottleType, meter=MeterType, group=QuotaCounterType, produce=cython.bint,
               missing=cython.longlong, wait_ms=cython.double)
cdef bint _queues(SessionStateType state, FrameReaderType reader, AccountType account, RequestHeader header,
                  object kind, double now_ms) except -1

cdef bint _unanswered(FrameReaderType reader, RequestHeader header) except -1

@cython.locals(account=AccountType, grant=FetchGrantType)
cpdef bint admits_unshaped(SessionStateType state, InFlightRequestType pending, double now_ms) except -1
