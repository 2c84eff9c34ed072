cimport cython

cdef double _FADE, _HEADS, _HEAD_FADE, _LEAST_RECORDS_BYTES, _LONGEST_FOR_HEADS_MS
cdef long long _HEAD_BYTES, _SINGLE


@cython.final
cdef class FetchSizer:
    cdef public double batch, head
    cdef public long long _fetches

    cpdef object expect(self, long long head_bytes)
    cpdef int learn(self, object max_bytes, double records_bytes) except -1
    cpdef double heads_ms(self, double limit) except? -1.0
