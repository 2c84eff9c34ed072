# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=False, annotation_typing=False
"""`calls.py` in C: the same calls with the same results. See there for their documentation.

System calls that cannot block are made without releasing the GIL, which would take longer than the calls.
"""

import os
import select

cimport cython

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport ceil
from libc.stdint cimport uint8_t

from proxy.net.io.endpoint cimport Endpoint
from proxy.core.wire cimport integers


cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/socket.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    /* The C library's functions are cancellation points, which no thread of ours needs: 47 instructions in each call. */
    static inline int kq_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms) {
        return (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout_ms, NULL, (size_t)8);
    }
    static inline ssize_t kq_recv(int fd, void *buf, size_t count, int flags) {
        return syscall(SYS_recvfrom, fd, buf, count, flags, NULL, NULL);
    }
    static inline ssize_t kq_send(int fd, const void *buf, size_t count, int flags) {
        return syscall(SYS_sendto, fd, buf, count, flags, NULL, (size_t)0);
    }
    """
    int kq_epoll_wait(int epoll, epoll_event *events, int most, int timeout_ms) nogil
    ssize_t kq_recv(int fd, void *buf, size_t count, int flags) nogil
    ssize_t kq_send(int fd, const void *buf, size_t count, int flags) nogil
    ssize_t c_splice "splice"(int fd_in, void *off_in, int fd_out, void *off_out, size_t count, unsigned int flags) nogil
    const int MSG_MORE
    const int MSG_NOSIGNAL
    const int MSG_DONTWAIT
    const unsigned int SPLICE_F_MOVE
    const unsigned int SPLICE_F_NONBLOCK
    const unsigned int SPLICE_F_MORE


MAX_EVENTS = 256
cdef enum:
    EVENTS = 256


cdef Py_ssize_t would_wait(Py_ssize_t full) except -2:
    """`full` if the call that has just failed would block; otherwise raises its OSError."""
    cdef int number = errno
    if number == EAGAIN:
        return full
    raise OSError(number, os.strerror(number))


@cython.final
cdef class PlainEndpoint(Endpoint):
    cpdef Py_ssize_t receive(self, object buffer, Py_ssize_t count) except -2:
        cdef uint8_t *data = integers.bytes_at(buffer, 0, count, True)
        cdef ssize_t received = -1
        while received < 0:
            received = kq_recv(self.fd, data, count, MSG_DONTWAIT)
            if received < 0 and errno != EINTR:
                return would_wait(-1)
        return received

    cpdef Py_ssize_t send(self, object buffer, Py_ssize_t start, Py_ssize_t end, bint more) except -2:
        cdef uint8_t *data = integers.bytes_at(buffer, start, end - start, False)
        cdef int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if more else 0)
        cdef ssize_t sent = -1
        while sent < 0:
            sent = kq_send(self.fd, data, end - start, flags)
            if sent < 0 and errno != EINTR:
                return would_wait(0)
        return sent


cpdef Py_ssize_t splice(int source_fd, int sink_fd, Py_ssize_t count, bint more) except -2:
    cdef ssize_t moved = -1
    cdef unsigned int flags = SPLICE_F_NONBLOCK | SPLICE_F_MOVE | (SPLICE_F_MORE if more else 0)
    while moved < 0:
        moved = c_splice(source_fd, NULL, sink_fd, NULL, count, flags)
        if moved < 0 and errno != EINTR:
            return would_wait(-1)
    return moved


cdef class Poller:
    def __cinit__(self):
        self._events = <epoll_event *>PyMem_Malloc(sizeof(epoll_event) * EVENTS)
        if self._events == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._events)

    def __init__(self):
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()

    def register(self, fd, events):
        self._epoll.register(fd, events)

    def unregister(self, fd):
        self._epoll.unregister(fd)

    cpdef int wait(self, double timeout_s) except -1:
        cdef int count, number, wait_ms = 2_000_000_000 if timeout_s > 2e6 else <int>ceil(timeout_s * 1000.0)
        with nogil:  # even if it does not block: this is where other threads run
            count = kq_epoll_wait(self.fd, self._events, EVENTS, wait_ms)
        if count < 0:
            number = errno
            if number != EINTR:
                raise OSError(number, os.strerror(number))
            PyErr_CheckSignals()
            count = 0
        self._count = count
        return count

    cpdef int found(self, list events) except -1:
        cdef int number = 0
        if len(events) > EVENTS:
            raise ValueError(f"{len(events)} events, at most {EVENTS}")
        for fd, flags in events:
            self._events[number].data.fd, self._events[number].events = fd, flags
            number += 1
        self._count = number
        return number

    def close(self):
        self._epoll.close()
