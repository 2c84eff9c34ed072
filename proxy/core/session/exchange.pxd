cimport cython

from quota.accounts cimport Account as AccountType
from quota.counter cimport FetchGrant as FetchGrantType


cdef long long _MAX_KEPT_BYTES
cdef object _ASKING, _FULL


@cython.final
cdef class Penalty:
    cdef public object charged, kind
    cdef public long long delay_ms
    cdef public double announced_until_ms, until_ms


@cython.final
cdef class InFlightRequest:
    cdef public long long correlation_id, kept_bytes, work_bytes
    cdef public int api_key, api_version
    cdef public double sent_ms
    cdef public Penalty penalty
    cdef public AccountType account
    cdef public FetchGrantType grant
    cdef public InFlightRequest next
    cdef public object hook, local_answer


cdef InFlightRequest _for(InFlightRequest pending, long long correlation_id, int api_key, int api_version, AccountType account, double sent_ms)

@cython.locals(pending=InFlightRequest)
cpdef InFlightRequest new_in_flight(long long correlation_id, int api_key, int api_version, AccountType account, double sent_ms)


@cython.final
cdef class Exchange:
    cdef public InFlightRequest newest, oldest, question
    cdef public Py_ssize_t count
    cdef public object outcome, state, waiting
    cdef public long long kept_bytes
    cdef InFlightRequest _spare
    cdef Py_ssize_t _most

    @cython.locals(pending=InFlightRequest)
    cpdef InFlightRequest plain(self, long long correlation_id, int api_key, int api_version, AccountType account, double sent_ms)
    cpdef object reuse(self, InFlightRequest pending)
    cpdef object append(self, InFlightRequest pending)
    @cython.locals(pending=InFlightRequest)
    cpdef InFlightRequest popleft(self)
    @cython.locals(oldest=InFlightRequest)
    cpdef bint answer_due(self) except -1
    @cython.final
    cdef bint _full(self) except -1
    @cython.locals(full=cython.bint)
    cdef object _weigh(self)
