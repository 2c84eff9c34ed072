cimport cython

cdef int _PRODUCE


cdef class RequestTime:
    cdef public double free_ms, round_trip_ms
    cdef public list _recent
    cdef public Py_ssize_t _at
    cdef public object _baseline

    @cython.locals(start_ms=cython.double, unused_ms=cython.double, busy=cython.double, elapsed=cython.double,
                   most=cython.double, came=cython.double, handover_ms=cython.double, least_ms=cython.double, at=cython.Py_ssize_t, free_ms=cython.double)
    cpdef double busy_ms(self, int api_key, double sent_ms, double now_ms, long long replicated_bytes=*, object arrived_ms=*) except? -1.0
