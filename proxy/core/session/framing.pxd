cimport cython


cdef long long _LEFT_AFTER_LITTLE, _MOST


cdef class FrameInspector:
    cpdef Py_ssize_t inspect(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    cpdef object complete(self)


cdef class FrameWalker:
    cdef public long long left, skip, need, taken
    cdef public bint dropping, stopped
    cdef public object scrub
    cdef public bytearray held

    cpdef bint at_boundary(self) except -1
    cpdef bint did_little(self) except -1
    cpdef long long movable(self) except -1
    @cython.locals(position=cython.Py_ssize_t, run=cython.Py_ssize_t, take=cython.Py_ssize_t, used=cython.Py_ssize_t,
                   before=cython.Py_ssize_t, out=list)
    cpdef object walk(self, FrameInspector side, object view, Py_ssize_t end)
