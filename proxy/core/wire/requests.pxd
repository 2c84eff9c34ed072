cimport cython
# For results that tell an error: Cython 3.3 writes a `long long` one's -1 wrongly where the class is final.
from libc.stdint cimport int64_t

from proxy.core.wire cimport apis, integers

cdef int _FETCH_MAX, _NO_ACKS_YET, _PREFIX_BYTES, _PRODUCE_MAX, _UNKNOWN


@cython.final
cdef class RequestHeader:
    cdef public int api_key, api_version
    cdef public long long size, correlation_id
    cdef public Py_ssize_t body
    cdef public object client_id
    cdef public bint known


@cython.final
cdef class RepeatedHeader:
    cdef readonly int api_version
    cdef readonly Py_ssize_t body
    cdef bytes _client_id, _key_and_version

    cpdef int64_t length(self, object buf, Py_ssize_t end) except -1


@cython.final
cdef class FetchFields:
    cdef public long long min_bytes, session_id, session_epoch
    cdef public Py_ssize_t max_bytes_at, min_bytes_at, rest, session_epoch_at
    cdef public object max_bytes  # None: the version has no such field


@cython.locals(header=RequestHeader)
cdef RequestHeader _header(long long size, int api_key, int api_version, long long correlation_id, object client_id,
                           Py_ssize_t body, bint known)

@cython.locals(size=cython.longlong, correlation_id=cython.longlong, api_key=cython.int, api_version=cython.int,
               length=cython.int, pos=cython.Py_ssize_t, body=cython.Py_ssize_t, headers=bytes, header_version=cython.int, names=dict)
cpdef RequestHeader parse_request_header(object buf, Py_ssize_t frame, Py_ssize_t end, long long max_frame_bytes=*)

@cython.locals(length=cython.longlong, pos=cython.Py_ssize_t)
cdef Py_ssize_t _acks_at(object buf, Py_ssize_t body, Py_ssize_t end, int version) except? -2

@cython.locals(at=cython.Py_ssize_t)
cpdef int produce_acks(object buf, Py_ssize_t body, Py_ssize_t end, int version) except? -2

@cython.locals(lowered=cython.longlong)
cpdef object lower_fetch(object buf, FetchFields fields, object max_bytes)

@cython.locals(wait_at=cython.Py_ssize_t, rest=cython.Py_ssize_t, at=cython.Py_ssize_t, fields=FetchFields)
cpdef FetchFields parse_fetch(object buf, Py_ssize_t body, Py_ssize_t end, int version)
