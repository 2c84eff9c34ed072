cimport cython


@cython.final
cdef class Outgoing:
    cdef public object view
    cdef public Py_ssize_t start, end
    cdef public list buffers

    cpdef object begin(self)
    cpdef bint empty(self) except -1
    cpdef object use(self, object view)
    cpdef object forward(self, Py_ssize_t start, Py_ssize_t end)
    cpdef object insert(self, object data)
    cpdef list parts(self)
    cpdef list _close_range(self)
