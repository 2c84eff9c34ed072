cimport cython


cdef class Usage:
    cdef double _amount
    cdef public long long charges, throttled, throttle_ms, queued, queued_ms


cdef class QuotaCounter:
    cdef public object applied, candidate, entry, key, kind, level, limit, max_throttle_ms, shadowed, share, whole
    cdef public bint fleet, may_queue, shadow
    cdef public long long capped, last_ms, throttled_until, users
    cdef public Usage usage

    cpdef long long charge(self, double amount, long long now) except? -1
    cpdef object record(self, double amount, long long now)
    cpdef long long queue(self, object connection, double amount, long long now, bint whole=*) except? -1
    cpdef bint claim(self, object connection, double amount, long long now) except -1
    cpdef object _impose(self, object delay, long long now)


@cython.final
cdef class FetchGrant:
    cdef public object throttle_ms, max_bytes
    cdef public QuotaCounter group
    cdef public double reserved, paced_ms
    cdef public long long head_bytes


@cython.locals(grant=FetchGrant)
cpdef FetchGrant granted(object max_bytes, QuotaCounter group, double reserved, double paced_ms, long long head_bytes)
