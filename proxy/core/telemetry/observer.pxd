cimport cython

cdef int _BUCKETS
cdef double[15] _BOUNDS


@cython.final
cdef class Histogram:
    cdef long long[16] _counts
    cdef public double sum_s

    @cython.locals(place=cython.Py_ssize_t)
    cpdef object add(self, double seconds)
