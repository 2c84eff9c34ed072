from quota.activity cimport Activity
from quota.counter cimport QuotaCounter, Usage


cdef class Meter(Usage):
    cdef public QuotaCounter group
    cdef public long long generation


cdef class Account(Activity):
    cdef public object identity
    cdef public Meter _produced, _fetched, _requested, _mutated
    cdef public long long last_ms, broker_throttled, broker_throttle_ms

    cpdef Meter meter(self, object kind)
