cimport cython

# Under other names: `proxy.core.session.state` gets the classes by import as well.
from proxy.core.session.auth cimport Auth as AuthType
from proxy.core.session.effects cimport Effects as EffectsType
from proxy.core.session.exchange cimport Exchange as ExchangeType, InFlightRequest as InFlightRequestType
from proxy.core.session.exchange cimport RequestTime as RequestTimeType
from proxy.core.session.throttle cimport Throttle as ThrottleType
from quota.accounts cimport RequestCounts
from quota.ledger cimport Ledger as LedgerType

cdef object _FLOWING


@cython.final
cdef class SessionState:
    cdef public LedgerType ledger
    cdef public RequestTimeType request_time
    cdef public ExchangeType exchange
    cdef public ThrottleType throttle
    cdef public AuthType auth
    cdef public RequestCounts counted
    cdef public EffectsType effects
    cdef public object counters, cpu_ms, interceptors, reserved, sizes, translate
    cdef public double broker_mute_until_ms

    cpdef bint blocked(self, double now_ms) except -1
    cpdef object broker_throttled(self, InFlightRequestType pending, long long broker_throttle_ms, double now_ms)
