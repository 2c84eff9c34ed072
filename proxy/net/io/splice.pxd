cimport cython

from proxy.net.io cimport calls


@cython.final
cdef class Pipe:
    cdef public int read_fd, write_fd
    cdef public long long size_bytes


@cython.final
cdef class PipePool:
    cdef public list _free
    cdef public long long pipes_open

    cpdef Pipe take(self)


@cython.final
cdef class Splice:
    cdef public Pipe _pipe
    cdef public PipePool _pool
    cdef public long long inside, moved

    @cython.locals(pipe=Pipe, inside=cython.longlong, size=cython.longlong, got=cython.longlong, put=cython.longlong,
                   source_empty=cython.bint, _=cython.int)
    cpdef object step(self, int source_fd, int sink_fd, long long count)
