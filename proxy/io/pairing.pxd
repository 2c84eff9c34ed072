cdef class Pairing:
    cdef object _round, _sock
    cdef public object watch
    cdef public long long apart, waits_for_bytes
    cdef long long _to_go
    cdef bint _came
    cdef double _read_s

    cpdef object note_part(self)
    cpdef object note_read(self, double now_s, long long received, long long produce_bytes, bint over)
    cpdef object _pair(self, long long produce_bytes)
    cpdef object _wait_for(self, long long count)
    cpdef object part(self)
    cpdef bint is_stuck(self) except -1
