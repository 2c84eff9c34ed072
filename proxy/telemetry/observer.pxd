cimport cython


cdef class Histogram:
    cdef public list counts
    cdef public double sum_s

    @cython.locals(place=cython.Py_ssize_t, bound=cython.double)
    cpdef object add(self, double seconds)
