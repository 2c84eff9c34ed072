cimport cython

from quota.accounts cimport Account as AccountType
from quota.counter cimport Admission as AdmissionType


cdef class Pending:
    cdef public long long correlation_id, delay_ms, held_bytes, replicated_bytes
    cdef public int api_key, api_version
    cdef public double sent_ms, throttle_until_ms
    cdef public AccountType account
    cdef public AdmissionType admission
    cdef public Pending next
    cdef public object asked, cause, charged, local_answer, on_response


@cython.locals(pending=Pending)
cpdef Pending new_pending(long long correlation_id, int api_key, int api_version, AccountType account, double sent_ms)


cdef class InFlight:
    cdef public Pending oldest, newest
    cdef public Py_ssize_t count

    cpdef object append(self, Pending pending)
    @cython.locals(pending=Pending)
    cpdef Pending popleft(self)
