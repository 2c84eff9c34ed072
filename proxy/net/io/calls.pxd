cimport cython

from libc.stdint cimport uint32_t

from proxy.net.io.endpoint cimport Endpoint


cdef extern from "<sys/epoll.h>":
    union epoll_data:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data data


@cython.final
cdef class PlainEndpoint(Endpoint):
    pass


cpdef Py_ssize_t splice(int source_fd, int sink_fd, Py_ssize_t count, bint more) except -2


cdef class Poller:
    cdef public int fd
    cdef object _epoll
    cdef epoll_event *_events
    cdef int _count

    cpdef int wait(self, double timeout_s) except -1
    cpdef int found(self, list events) except -1

    # Part of the loop that calls them.
    @cython.final
    cdef inline int fd_of(self, int number) except -1:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._events[number].data.fd

    @cython.final
    cdef inline unsigned int flags_of(self, int number) except? 0:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._events[number].events
