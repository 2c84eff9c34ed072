cimport cython

from proxy.core.wire cimport apis, integers

cdef int _NO_FIELD, _WALK, _PRODUCE, _PRODUCE_FIRST_FLEXIBLE, _PRODUCE_FIRST_TOPIC_ID, _TOPIC_ID_BYTES, _PARTITION_BYTES, _MOST_BYTES, _NO_ERRORS


@cython.locals(offsets=bytes)
cpdef bint needs_whole_frame(int api_key, int version) except -1

@cython.locals(pos=cython.Py_ssize_t)
cpdef bint patch_throttle(object frame, Py_ssize_t start, Py_ssize_t end, int api_key, int version, long long throttle_ms) except -1

@cython.locals(pos=cython.Py_ssize_t, last=cython.Py_ssize_t)
cpdef long long read_throttle(object frame, Py_ssize_t start, Py_ssize_t end, int api_key, int version) except -1

@cython.locals(frame_end=cython.Py_ssize_t, limit=cython.Py_ssize_t, pos=cython.Py_ssize_t, offsets=bytes, flexible=bytes, known=cython.Py_ssize_t,
               at=cython.int)
cdef Py_ssize_t _throttle_position(object frame, Py_ssize_t start, Py_ssize_t end, int api_key, int version) except? -1

@cython.locals(throttle_at=cython.Py_ssize_t, at=cython.Py_ssize_t, topics=cython.int, name_bytes=cython.int,
               partitions=cython.int)
cpdef Py_ssize_t plain_produce(object frame, Py_ssize_t start, Py_ssize_t frame_end, int version) except? -1
