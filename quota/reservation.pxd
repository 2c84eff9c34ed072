cimport cython

from quota cimport counter, paced
from quota.counter cimport FetchGrant as FetchGrantType
from quota.fetch_sizer cimport FetchSizer
from quota.paced cimport PacedCounter
from quota.pacing cimport Pacer

cdef long long _HEAD_BYTES
cdef double _SHORTEST_MS, _TOLERANCE_MS, _UNKNOWN_BATCH_BYTES


cdef class FetchCounter(PacedCounter):
    cdef public long long _admitted
    cdef public object _typical
    cdef public FetchSizer _fetch_sizer
    cdef public double _outstanding

    @cython.locals(pacer=Pacer, sizer=FetchSizer, chunk_ms=cython.double, kafka=cython.longlong, wait=cython.longlong, expected=cython.double, paced_ms=cython.double, in_episode=cython.bint,
                   asked=cython.double, granted=cython.double, per_s=cython.double)
    cpdef object admit(self, object wanted, long long now, long long head_bytes=*)
    cpdef object settle(self, FetchGrantType grant, double amount)
    cdef long long _due(self, double limit, long long now) except? -1
    @cython.locals(total=cython.double, window_ms=cython.longlong, available_ms=cython.double, kafka=cython.longlong)
    cdef (long long, long long) _delays(self, double limit, double chunk_ms, long long now) except *
    @cython.locals(total=cython.double, window_ms=cython.longlong, available=cython.double)
    cdef double _available(self, double limit, double chunk_ms, long long now) except? -1.0
    cdef double _chunk_ms(self, double limit, long long now) except? -1.0
    @cython.locals(total=cython.double, window_ms=cython.longlong, chunk_ms=cython.double)
    cdef double _chunk_begun_ms(self, double limit, long long now) except? -1.0
    cdef double _slack_ms(self, double limit, long long now) except? -1.0
