cimport cython

cdef int _FETCH, _PRODUCE, _RECENT
cdef double _HANDOVER_MS, _MIN_MS, _MS_PER_BYTE, _UNKNOWN


@cython.final
cdef class RequestTime:
    cdef public double free_ms, round_trip_ms
    cdef double[15] _recent
    cdef public Py_ssize_t _at
    cdef public double _baseline

    @cython.locals(start_ms=cython.double, unused_ms=cython.double, busy=cython.double, elapsed=cython.double,
                   most=cython.double, came=cython.double, handover_ms=cython.double, least_ms=cython.double, at=cython.Py_ssize_t, free_ms=cython.double)
    cpdef double busy_ms(self, int api_key, double sent_ms, double now_ms, long long work_bytes=*, double arrived_ms=*) except? -1.0
    @cython.locals(baseline=cython.double)
    cdef double _most_ms(self) except? -1.0
