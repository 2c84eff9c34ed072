cimport cython


@cython.final
cdef class FetchSizer:
    cdef public object batch
    cdef public double head
    cdef public long long _fetches

    cpdef object expect(self, long long head_bytes)
    cpdef int learn(self, object max_bytes, object records_bytes) except -1
    cpdef double heads_ms(self, double limit) except? -1.0
