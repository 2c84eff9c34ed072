cimport cython

from proxy.net.io cimport calls

cdef Py_ssize_t _POOL_SIZE


@cython.final
cdef class Pipe:
    cdef public int read_fd, write_fd
    cdef public long long size_bytes
    cdef public Pipe next


@cython.final
cdef class PipePool:
    cdef public Pipe _free
    cdef public Py_ssize_t _count
    cdef public long long pipes_open

    @cython.locals(pipe=Pipe)
    cpdef Pipe take(self)
    cpdef object give_back(self, Pipe pipe, bint is_empty)


@cython.final
cdef class Splice:
    cdef public Pipe _pipe
    cdef public PipePool _pool
    cdef public object error
    cdef public long long inside, moved

    @cython.locals(pipe=Pipe, inside=cython.longlong, size=cython.longlong, got=cython.longlong, put=cython.longlong,
                   source_empty=cython.bint, _=cython.int)
    cpdef object step(self, int source_fd, int sink_fd, long long count)
