cimport cython

from quota.counter cimport FetchAdmission as FetchAdmissionType, QuotaCounter, Usage
from quota.pacing cimport Pacer
from quota.fetch_sizer cimport FetchSizer
from quota.rate cimport SampledRate


cdef class WindowCounter(QuotaCounter):
    cdef public long long _admitted, _calm_ms
    cdef public object _bounded_ms, _gate, _renewed, _typical
    cdef public FetchSizer _fetch_sizer
    cdef public Pacer pacer
    cdef public double _outstanding, _scale, _watched
    cdef public bint _smooth
    cdef public SampledRate rate

    @cython.locals(usage=Usage, rate=SampledRate, observed=cython.double)
    cpdef long long charge(self, object amount, long long now) except? -1
    @cython.locals(usage=Usage, delay=cython.longlong)
    cpdef object record(self, object amount, long long now)
    cpdef object _over(self, double observed, object limit, long long now)
    @cython.locals(rate=SampledRate, pacer=Pacer, observed=cython.double, empty_since=cython.longlong)
    cpdef (long long, double) _count(self, object amount, long long now) except *
    @cython.locals(pacer=Pacer, min_chunk_ms=cython.double, kafka=cython.longlong, wait=cython.longlong)
    cpdef object admit(self, object wanted, long long now)
    cpdef object settle(self, FetchAdmissionType admission, object amount)
    @cython.locals(total=cython.double, window_ms=cython.longlong, observed=cython.double, available_ms=cython.double)
    cpdef (long long, long long) _due(self, double limit, double min_chunk_ms, long long now) except *
    @cython.locals(total=cython.double, window_ms=cython.longlong, room=cython.double)
    cpdef object _room(self, double limit, double min_chunk_ms, long long now)
    @cython.locals(portions=FetchSizer)
    cpdef double _grain_ms(self, object limit, long long now) except? -1.0
    @cython.locals(total=cython.double, window_ms=cython.longlong)
    cpdef object _begin_if_used_up(self, long long now)
    cpdef object _learn(self, object amount)
