cimport cython
# For results that tell an error: Cython 3.3 writes a `long long` one's -1 wrongly where the class is final.
from libc.stdint cimport int64_t

from proxy.core.session.outgoing cimport Outgoing as OutgoingType
from proxy.core.wire cimport integers

cdef int _PREFIX_BYTES, _NOTHING, _HEAD, _END, _NEED, _FORWARD, _REPLACE, _DROP, _FILTER, _STOP


@cython.final
cdef class Verdict:
    cdef readonly int kind
    cdef readonly Py_ssize_t count
    cdef readonly object data


@cython.final
cdef class FrameReader:
    cdef OutgoingType _out
    cdef object _filter, _looker, _view
    cdef bytearray _partial
    cdef Py_ssize_t _at, _end, _need
    cdef bint _dropping, _in_frame, _owned
    cdef readonly object buf
    cdef readonly bint stopped
    cdef public long long frames_left
    cdef readonly long long left
    cdef readonly Py_ssize_t start, stop
    cdef readonly long long total

    cpdef bint at_boundary(self) except -1
    cpdef bint is_idle(self) except -1
    cpdef object forwarded(self, long long left)
    cpdef bint is_whole(self) except -1
    cpdef Verdict more(self)
    cpdef bint keeps(self) except -1
    cpdef Py_ssize_t kept_bytes(self) except -1
    cpdef int64_t movable(self) except -1
    cpdef object feed(self, object view, Py_ssize_t end)
    cpdef object keep(self, object view, Py_ssize_t end)
    cpdef object moved(self, long long count)
    @cython.locals(at=cython.Py_ssize_t, end=cython.Py_ssize_t, total=cython.longlong, partial=bytearray)
    cpdef int next(self) except -1
    @cython.locals(kind=cython.int, start=cython.Py_ssize_t, stop=cython.Py_ssize_t, partial=bytearray)
    cpdef object follow(self, Verdict verdict)
    cpdef object look(self, object looker)
    cpdef object stop_here(self)
    cpdef object go_on(self)
    cdef object _keep(self, bytearray kept)
    @cython.locals(at=cython.Py_ssize_t, count=cython.Py_ssize_t)
    cdef object _pass_on(self)
    cdef object _wait_for(self, Py_ssize_t count)
