cimport cython

cdef long long _FETCH_TOLERANCE_MS


@cython.final
cdef class Pacer:
    cdef public double paid_at, backlog_ms, _apart_ms, _delayed_until, _largest_ms, _last_scheduled, _most_ms
    cdef public long long _tolerance_ms
    cdef public object _scheduled, _calm_since

    @cython.locals(tolerance_ms=cython.longlong)
    cpdef object tolerate(self, double portion_ms)
    cpdef double owed_ms(self, long long now) except? -1.0
    cpdef double credit_ms(self, long long now) except? -1.0
