cimport cython

from proxy.core.wire cimport integers
from proxy.core.wire.requests cimport FetchFields as FetchFieldsType

cdef int _FIRST_FLEXIBLE, _FIRST_TOPIC_ID, _FLEXIBLE_ANSWERED, _FLEXIBLE_ASKED, _TOPIC_ID_BYTES

cpdef long long asked_bytes(int version) except? -1
cpdef long long answered_bytes(int version) except? -1

@cython.locals(topics=cython.longlong, length=cython.longlong, named_at=cython.Py_ssize_t)
cdef (long long, long long, Py_ssize_t) _topics(object buf, Py_ssize_t at, Py_ssize_t end, int version) except *

@cython.locals(topics=cython.longlong, name_bytes=cython.longlong, at=cython.Py_ssize_t, topic_bytes=cython.longlong,
               named=cython.longlong)
cpdef long long of_request(object buf, FetchFieldsType fields, Py_ssize_t end, long long rest_bytes, int version) except? -1

@cython.locals(topics=cython.longlong, name_bytes=cython.longlong, at=cython.Py_ssize_t, partitions=cython.longlong,
               each=cython.longlong)
cpdef long long of_response(object buf, Py_ssize_t body, Py_ssize_t end, long long size_bytes, int version) except? -1
