cimport cython

# Under other names: `proxy.core.session.state` gets the classes by import as well.
from proxy.core.session.in_flight cimport InFlightQueue as InFlightQueueType, InFlightRequest as InFlightRequestType, Penalty as PenaltyType
from proxy.core.session.request_time cimport RequestTime as RequestTimeType
from quota.accounts cimport Account as AccountType
from quota.activity cimport RequestCounts
from quota.ledger cimport Ledger as LedgerType

cdef int _FETCH, _PRODUCE
cdef int _ASKING, _CONNECTING, _DRAINING, _FULL, _HELD, _LOGIN, _MUTED, _OPEN
cdef long long _MAX_IN_FLIGHT_BYTES


cdef class SessionState:
    cdef public LedgerType ledger
    cdef public RequestTimeType request_time
    cdef public InFlightQueueType inflight
    cdef public RequestCounts _counted
    cdef public object authenticated, claim, counters, cpu_ms, held, interceptors, logins, outcome, promised
    cdef public object translate, waiting, wake
    cdef public bint _passes_again, client_waits, connecting, draining, gone
    cdef public Py_ssize_t max_in_flight
    cdef public object _passes_from
    cdef public long long client_bytes, due_bytes, held_bytes
    cdef public double broker_mute_until_ms, expire_ms, mute_until_ms, owed_until_ms, renew_ms, told_until_ms, _tell_again_ms

    cpdef int client_state(self, double now_ms) except -1
    @cython.locals(key=cython.int)
    cpdef object count_request(self, AccountType account, int api_key)
    cpdef object mute(self, AccountType account, object kind, long long delay_ms, double now_ms, object charged=*)
    cpdef object broker_throttled(self, InFlightRequestType pending, long long broker_throttle_ms, double now_ms)
    @cython.locals(until_ms=cython.double, penalty=PenaltyType)
    cpdef object impose(self, InFlightRequestType pending, object kind, long long delay_ms, double now_ms, object charged=*)
    cpdef bint _tells(self, InFlightRequestType pending, object kind, long long delay_ms, double now_ms) except -1
    cpdef object _hold(self, double until_ms, double now_ms)
    cpdef object end_hold(self, AccountType account, int api_key, object amount, double now_ms)
    @cython.locals(penalty=PenaltyType)
    cpdef object note(self, InFlightRequestType pending)
