cimport cython


cdef class SampledRate:
    cdef public long long _sample_ms, _slots, _min_ms, _expire_ms, _current_start, _oldest_start, _purge_at, window_ms
    cdef public Py_ssize_t _current
    cdef public list _sums, _starts, _lasts

    @cython.locals(current=cython.Py_ssize_t)
    cpdef int record(self, double value, long long now) except -1
    @cython.locals(total=cython.double, value=cython.double, window=cython.longlong)
    cpdef double measure(self, long long now) except? -1.0
    cpdef bint empty(self, long long now) except -1
    @cython.locals(total=cython.double, value=cython.double, horizon=cython.longlong, oldest=cython.longlong,
                   start=cython.longlong, last=cython.longlong)
    cpdef (double, long long) peek(self, long long now) except *
    cdef long long _window(self, long long elapsed) except? -1
    cpdef int _advance(self, long long now) except -1
    @cython.locals(horizon=cython.longlong)
    cdef int _purge(self, long long now) except -1
    cdef int _reset(self, Py_ssize_t slot, long long now) except -1
    cdef int _refresh(self) except -1


@cython.locals(whole=object)
cpdef object round_half_up(double value)

cpdef object throttle_ms(double observed, double bound, long long window_ms)
