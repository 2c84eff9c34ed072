from quota.counter cimport QuotaCounter


cdef class BucketCounter(QuotaCounter):
    cdef public object _settings, _trial_bucket, _waiting, bucket

    cpdef long long charge(self, object amount, long long now) except? -1
    cpdef object record(self, object amount, long long now)
