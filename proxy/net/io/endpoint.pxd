cdef class Endpoint:
    cdef public object sock
    cdef public int fd
    cdef public bint splices

    cpdef Py_ssize_t receive(self, object buffer, Py_ssize_t count) except -2
    cpdef Py_ssize_t send(self, object buffer, Py_ssize_t start, Py_ssize_t end, bint more) except -2
    cpdef Py_ssize_t send_all(self, list buffers, bint more) except -2
