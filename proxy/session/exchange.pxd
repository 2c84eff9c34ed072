cimport cython

# Under other names: `proxy.session.exchange` gets the classes by import as well.
from proxy.session.request_time cimport RequestTime as RequestTimeType
from quota.accounts cimport Account as AccountType
from quota.group cimport Admission as AdmissionType
from quota.ledger cimport Ledger as LedgerType

cdef int _FETCH, _PRODUCE


cdef class Pending:
    cdef public long long correlation_id, delay_ms, held_bytes, replicated_bytes
    cdef public int api_key, api_version
    cdef public double sent_ms, throttle_until_ms
    cdef public AccountType account
    cdef public AdmissionType admission
    cdef public object asked, cause, charged, local_answer, on_response


@cython.locals(pending=Pending)
cpdef Pending new_pending(long long correlation_id, int api_key, int api_version, AccountType account, double sent_ms)


cdef class Exchange:
    cdef public LedgerType ledger
    cdef public RequestTimeType request_time
    cdef public dict _counted
    cdef public object authenticated, claim, counters, held, inflight, interceptors, logins, outcome, promised
    cdef public object translate, wake
    cdef public bint _passes_again, client_waits
    cdef public object _passes_from
    cdef public long long client_bytes, held_bytes
    cdef public double broker_mute_until_ms, expire_ms, mute_until_ms, owed_until_ms, renew_ms

    @cython.locals(key=object, counted=dict, requests=dict)
    cpdef object count_request(self, AccountType account, int api_key)
    cpdef object mute(self, AccountType account, object kind, long long delay_ms, double now_ms, object charged=*)
    cpdef object broker_throttled(self, Pending pending, long long told_ms, double now_ms)
    @cython.locals(until_ms=cython.double)
    cpdef object impose(self, Pending pending, object kind, long long delay_ms, double now_ms, object charged=*)
    cpdef object _hold(self, double until_ms, double now_ms)
    cpdef object let_go(self, AccountType account, int api_key, object amount, double now_ms)
    cpdef object note(self, Pending pending)
