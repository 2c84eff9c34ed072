cimport cython

from proxy.session.state cimport Exchange as ExchangeType
from proxy.session.in_flight cimport Pending as PendingType
from proxy.wire cimport requests
from proxy.wire.requests cimport RequestHeader
from quota.accounts cimport Account as AccountType, Meter as MeterType
from quota.counter cimport Admission as AdmissionType, Group as GroupType
from quota.ledger cimport Ledger as LedgerType

cdef int _FETCH, _PRODUCE


@cython.locals(api_key=cython.int, ledger=LedgerType, meter=MeterType, group=GroupType, produce=cython.bint,
               asks=cython.bint, gates=dict, kinds=tuple)
cpdef bint lets_through(ExchangeType exchange, AccountType account, RequestHeader header, object buf, Py_ssize_t end,
                        bint whole, double now_ms) except -1

@cython.locals(account=AccountType, admission=AdmissionType)
cpdef bint admits_unshaped(ExchangeType exchange, PendingType pending, double now_ms) except -1
