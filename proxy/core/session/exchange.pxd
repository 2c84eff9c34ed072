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
    cpdef int reuse(self, InFlightRequest pending) except -1
    cpdef int append(self, InFlightRequest pending) except -1
    @cython.locals(pending=InFlightRequest)
    cpdef InFlightRequest popleft(self)
    @cython.locals(oldest=InFlightRequest)
    cpdef bint answer_due(self) except -1
    @cython.final
    cdef bint _full(self) except -1
    @cython.locals(full=cython.bint)
    cdef object _weigh(self)


cdef int _FETCH, _PRODUCE, _RECENT
cdef double _HANDOVER_MS, _MIN_MS, _MS_PER_BYTE, _UNKNOWN


@cython.final
cdef class RequestTime:
    cdef public double free_ms, round_trip_ms
    cdef double[15] _recent
    cdef public Py_ssize_t _at
    cdef public double _baseline

    @cython.locals(start_ms=cython.double, unused_ms=cython.double, busy=cython.double, elapsed=cython.double,
                   most=cython.double, came=cython.double, handover_ms=cython.double, least_ms=cython.double, at=cython.Py_ssize_t, free_ms=cython.double)
    cpdef double busy_ms(self, int api_key, double sent_ms, double now_ms, long long work_bytes=*, double arrived_ms=*) except? -1.0
    @cython.locals(baseline=cython.double)
    cpdef double baseline_ms(self) except? -1.0


cdef int _BUCKETS
cdef double[15] _BOUNDS


@cython.final
cdef class Histogram:
    cdef long long[16] _counts
    cdef public double sum_s

    @cython.locals(place=cython.Py_ssize_t)
    cpdef int add(self, double seconds) except -1
