cimport cython


@cython.final
cdef class Sample:
    cdef public long long start, last
    cdef public double sum


cdef class SampledRate:
    cdef public long long _sample_ms, _slots, _min_ms, _oldest_start, _purge_at, reach_ms, window_ms
    cdef public Py_ssize_t _place
    cdef public Sample _current
    cdef public list _ring

    @cython.locals(current=Sample)
    cpdef int record(self, double value, long long now) except -1
    @cython.locals(total=cython.double, sample=Sample, window=cython.longlong)
    cpdef double measure(self, long long now) except? -1.0
    cpdef bint empty(self, long long now) except -1
    @cython.locals(total=cython.double, sample=Sample, horizon=cython.longlong, oldest=cython.longlong)
    cpdef (double, long long) peek(self, long long now) except *
    cdef long long _window(self, long long elapsed) except? -1
    @cython.locals(place=cython.Py_ssize_t, current=Sample)
    cpdef Sample _advance(self, long long now)
    @cython.locals(horizon=cython.longlong, sample=Sample)
    cdef int _purge(self, long long now) except -1
    cdef int _reset(self, Sample sample, long long now) except -1
    @cython.locals(sample=Sample, oldest=cython.longlong, last=cython.longlong)
    cdef int _refresh(self) except -1


@cython.locals(whole=object)
cpdef object round_half_up(double value)

cpdef object throttle_ms(double observed, double bound, long long window_ms)
