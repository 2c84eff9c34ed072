cdef class Pacer:
    cdef public bint active
    cdef public double paid_at, backlog_ms, _apart_ms, _last_scheduled
    cdef public long long _tolerance_ms
    cdef public object _scheduled, _held_until, _calm_since

    cpdef object tolerate(self, double portion_ms)
    cpdef double owed_ms(self, long long now) except? -1.0
    cpdef double credit_ms(self, long long now) except? -1.0
