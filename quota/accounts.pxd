from quota.activity cimport Activity
from quota.counter cimport QuotaCounter, Usage


cdef class Meter(Usage):
    cdef public QuotaCounter group
    cdef public long long generation


cdef class Account(Activity):
    cdef public object identity
    cdef public Meter _produced, _fetched, _requested, _mutated
    cdef public long long last_ms, holders, broker_throttled, broker_throttle_ms

    cpdef object retain(self)
    cpdef object release(self)
    cpdef Meter meter(self, object kind)
