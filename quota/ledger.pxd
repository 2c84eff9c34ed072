cimport cython
# For results that tell an error: Cython 3.3 writes a `long long` one's -1 wrongly where the class is final.
from libc.stdint cimport int64_t

# Aliased, because `quota.ledger` itself exports Account and Meter to modules that import them from there.
from quota.accounts cimport Account as AccountType, Meter as MeterType
from quota.counter cimport FetchGrant as FetchGrantType, QuotaCounter
from quota.mutation cimport BucketCounter
from quota.reservation cimport FetchCounter
from quota.window cimport WindowCounter


@cython.final
cdef class Ledger:
    cdef dict __dict__
    cdef public long long generation, reservations

    cpdef object wake(self, AccountType account)
    @cython.locals(meter=MeterType, group=QuotaCounter, now=cython.longlong)
    cpdef int64_t charge(self, AccountType account, object kind, double amount, double now_ms) except? -1
    @cython.locals(group=QuotaCounter)
    cpdef object charge_no_throttle(self, AccountType account, object kind, double amount, double now_ms)
    @cython.locals(group=QuotaCounter)
    cpdef int64_t queue(self, AccountType account, object kind, object connection, double amount, double now_ms, bint whole=*) except? -1
    @cython.locals(group=QuotaCounter, window=WindowCounter, grant=FetchGrantType)
    cpdef object admit(self, AccountType account, object kind, object wanted, double now_ms, long long head_bytes=*)
    @cython.locals(fetched=FetchCounter)
    cpdef object settle(self, AccountType account, object kind, FetchGrantType grant, double amount, double now_ms)
    @cython.locals(meter=MeterType)
    cdef QuotaCounter _use(self, AccountType account, object kind, double amount, long long charges, double now_ms)
    @cython.locals(meter=MeterType)
    cdef QuotaCounter _group(self, AccountType account, object kind, long long now)
    cdef object _resolve(self, AccountType account, object kind, MeterType meter, long long now)
