cimport cython


cdef class SchedPolicy:
    cdef public object _set_policy
    cdef public bint _possible, gives_way
    cdef public long long halfway
    cdef public double quick_s

    @cython.locals(wanted=cython.bint)
    cpdef object before_wait(self, double now_s)
