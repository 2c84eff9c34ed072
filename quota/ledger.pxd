cimport cython

# Under other names: `quota.ledger` hands Account and Meter on to those who import them from there.
from quota.accounts cimport Account as AccountType, Meter as MeterType
from quota.counter cimport Admission as AdmissionType, Group
from quota.mutation cimport BucketGroup
from quota.window cimport WindowGroup


cdef class Ledger:
    cdef dict __dict__
    cdef public long long generation, reservations

    cpdef object wake(self, AccountType account)
    @cython.locals(meter=MeterType, group=Group, now=cython.longlong)
    cpdef long long charge(self, AccountType account, object kind, object amount, double now_ms) except? -1
    @cython.locals(group=Group)
    cpdef object charge_no_throttle(self, AccountType account, object kind, object amount, double now_ms)
    @cython.locals(group=Group, window=WindowGroup, admission=AdmissionType)
    cpdef object admit(self, AccountType account, object kind, object wanted, double now_ms)
    @cython.locals(window=WindowGroup)
    cpdef object settle(self, AccountType account, object kind, AdmissionType admission, object amount, double now_ms)
    @cython.locals(meter=MeterType)
    cdef Group _use(self, AccountType account, object kind, object amount, long long charges, double now_ms)
    @cython.locals(meter=MeterType)
    cdef Group _group(self, AccountType account, object kind, long long now)
    cdef object _resolve(self, AccountType account, object kind, MeterType meter, long long now)
