cimport cython


cdef class FetchSizer:
    cdef public object batch
    cdef public long long _fetches

    cpdef int learn(self, object max_bytes, object amount) except -1
