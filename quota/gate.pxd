cimport cython

cdef double _LARGE_MS, _GRACE_MS
cdef long long _REVIEW_MS


@cython.final
cdef class Queue:
    cdef object _places
    cdef dict _late
    cdef double _entered_ms, _left_ms

    cpdef bint empty(self) except -1


@cython.final
cdef class Turn:
    cdef readonly object sender
    cdef public double cost_ms, size_bytes
    cdef public long long review_at, since


@cython.final
cdef class Gate:
    cdef object _promised
    cdef object _claims
    cdef Queue _ordinary, _large, _abandoned
    cdef dict _kept_bytes
    cdef long long _review_at
    cdef double _promised_ms, _abandoned_from, _claimed_until, _large_claimed_until, _refused_until

    @cython.locals(from_ms=cython.double)
    cpdef bint claim(self, object sender, double size_bytes, double cost_ms, double paid_at, long long now) except -1
    @cython.locals(large=cython.bint)
    cdef object _pass(self, double paid_at, double cost_ms)
    @cython.locals(turn=Turn)
    cdef object _claim(self, object sender, double size_bytes, double cost_ms, long long now)
    @cython.locals(turn=Turn)
    cdef object _review_claims(self, long long now)
