from proxy.net.io.endpoint cimport Endpoint


cdef class PlainEndpoint(Endpoint):
    cpdef Py_ssize_t receive(self, object buffer, Py_ssize_t count) except -2
    cpdef Py_ssize_t send(self, object buffer, Py_ssize_t start, Py_ssize_t end, bint more) except -2


cpdef double monotonic_s() noexcept

cpdef double thread_s() noexcept

cpdef Py_ssize_t splice(int source_fd, int sink_fd, Py_ssize_t count, bint more) except -2


cdef class Poller:
    cdef public int fd
    cdef object _epoll
    cdef void *_events
    cdef int _count

    cpdef int wait(self, double timeout_s) except -1
    cpdef (int, unsigned int) event(self, int number) except *
