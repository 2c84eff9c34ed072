cimport cython

from proxy.core.wire cimport apis, integers, throttle

cdef int _FETCH_MAX, _FETCH_WITHOUT_ENDPOINTS, _PRODUCE, _PRODUCE_MAX, _UNKNOWN


@cython.locals(frame_end=cython.Py_ssize_t)
cpdef bint is_plain(int api_key, int version, object buf, Py_ssize_t start, Py_ssize_t end) except -1

@cython.locals(needs=bytes, found=cython.int)
cpdef bint needs_rewrite(int api_key, int version) except -1

cpdef object rewrite(int api_key, int version, object buf, Py_ssize_t start, Py_ssize_t end, object translate)

cpdef int fetch_version_upstream(int version) except? -1
