cimport cython
# For results that tell an error: Cython 3.3 writes a `long long` one's -1 wrongly where the class is final.
from libc.stdint cimport int64_t

from proxy.core.session.exchange cimport InFlightRequest as InFlightRequestType, Penalty as PenaltyType
from quota.accounts cimport Account as AccountType
from quota.ledger cimport Ledger as LedgerType

cdef int _END_TXN
cdef object _MUTED, _QUEUED, _REFUSING


@cython.final
cdef class Grace:
    cdef public double expire_ms, owed_until_ms, renew_ms
    cdef object _from_bytes
    cdef bint _again

    cpdef double defer(self, double until_ms, double now_ms, long long taken_bytes) except? -1
    cpdef bint passes(self, double now_ms, long long taken_bytes) except -1


@cython.final
cdef class Arrivals:
    cdef list _marks
    cdef public long long total

    cpdef object note(self, long long total, double now_ms)
    cpdef double came_ms(self, long long before, double now_ms) except? -1


@cython.final
cdef class Slices:
    cdef double _members_until_ms
    cdef public double rest_until_ms
    cdef public long long most_ms

    cpdef int64_t cut(self, long long delay_ms, double now_ms) except -1


@cython.final
cdef class Transactions:
    cdef double _strict_until_ms
    cdef int _requests_left
    cdef public double unannounced_ms

    cpdef object muted(self, object kind, double until_ms)
    cpdef bint lets_end(self, int api_key, double now_ms) except -1


@cython.final
cdef class Throttle:
    cdef LedgerType _ledger
    cdef object _counters
    cdef double _resume_ms, _announce_again_ms, _together_ms
    cdef public Grace grace
    cdef public Arrivals arrivals
    cdef public Slices slices
    cdef public Transactions transactions
    cdef public object place, promised, state
    cdef public bint gone
    cdef public long long client_bytes, due_bytes, refuse_to
    cdef public double due_ms, announced_until_ms, until_ms

    @cython.locals(until_ms=cython.double, slice_ms=cython.longlong, penalty=PenaltyType)
    cpdef object impose(self, InFlightRequestType pending, object kind, long long delay_ms, double now_ms, object charged=*)
    @cython.locals(penalty=PenaltyType)
    cpdef object note(self, InFlightRequestType pending)
    cpdef bint _announces(self, InFlightRequestType pending, object kind, long long delay_ms, double now_ms) except -1
    cpdef object _mute(self, double until_ms, double now_ms)
    cpdef object admit(self, AccountType account, int api_key, object amount, double now_ms)
    cpdef bint lets_end(self, int api_key, double now_ms) except -1
    cpdef bint blocks(self, double now_ms) except -1
    cdef object _step(self, object event)
    cdef object _enter(self, object state)
