cimport cython

from quota.gate cimport Gate
from quota.pacing cimport Pacer
from quota.window cimport WindowCounter


cdef double _LEARN


@cython.locals(known=cython.double)
cpdef double mean_with(double value, object mean) except? -1.0


cdef class DebtCounter(WindowCounter):
    cdef public Gate _gate
    cdef public Pacer pacer

    cdef bint _in_episode(self, long long before, long long now) except -1
    cdef bint _calm(self, long long before, long long now) except -1
    @cython.locals(goes_on=cython.bint, delay=cython.longlong)
    cdef long long _delay(self, double amount, double observed, double limit, long long before, long long now) except? -1
    cdef object _begin(self, long long delay, long long now)
    cdef long long _pace(self, double amount, double limit, long long delay, long long now) except? -1
    @cython.locals(gate=Gate, arrives=cython.bint, limit=cython.double, cost_ms=cython.double)
    cpdef long long queue(self, object connection, double amount, long long now, bint whole=*) except? -1
    @cython.locals(gate=Gate, limit=cython.double)
    cpdef bint claim(self, object connection, double amount, long long now) except -1
    @cython.locals(gate=Gate)
    cdef Gate _open_gate(self)
    cdef double _cost_ms(self, double amount, double limit) except? -1.0
    @cython.locals(total=cython.double, window_ms=cython.longlong)
    cdef double _paid_at(self, double limit, long long now) except? -1.0


cdef class BusyCounter(DebtCounter):
    cdef public object _typical_ms

    cpdef long long queue(self, object connection, double amount, long long now, bint whole=*) except? -1
    cdef long long _pace(self, double amount, double limit, long long delay, long long now) except? -1


cdef class PacedCounter(DebtCounter):
    @cython.locals(cost_ms=cython.double, paced=cython.double)
    cdef long long _pace(self, double amount, double limit, long long delay, long long now) except? -1
    cdef double _slack_ms(self, double limit, long long now) except? -1.0
    cdef long long _due(self, double limit, long long now) except? -1
