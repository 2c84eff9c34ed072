cimport cython

from proxy.session cimport gate, in_flight
from proxy.session.state cimport Exchange as ExchangeType
from proxy.session.framing cimport FrameJudge, FrameWalker
from proxy.session.in_flight cimport InFlight as InFlightType, Pending as PendingType
from proxy.wire cimport integers, requests, responses
from proxy.wire.requests cimport FetchFields, RequestHeader
from quota.accounts cimport Account as AccountType
from quota.counter cimport Admission as AdmissionType

cdef int _API_VERSIONS, _FETCH, _PRODUCE, _SHARE_FETCH
cdef long long _MAX_HELD_BYTES, _MAX_IN_FLIGHT_BYTES


cdef class RequestSide(FrameJudge):
    cdef public ExchangeType _exchange
    cdef public FrameWalker walker
    cdef public AccountType _charged, account
    cdef public PendingType _charged_pending, _unsent
    cdef public object _client_id, _joined, _shaper, _sizes, _waiting, before, client_ids, software, user
    cdef public bytearray _backlog
    cdef public dict _missed
    cdef public bint _raw, _saw_request, established
    cdef public long long _charged_bytes, _produce_bytes, _max_frame_bytes, _max_header_bytes, _max_in_flight
    cdef public double _now_ms

    cpdef AccountType _client(self, int api_key, object client_id)
    cpdef bint has_backlog(self) except -1
    cpdef bint asking(self) except -1
    cpdef bint in_flight_full(self) except -1
    @cython.locals(walker=FrameWalker, newest=PendingType)
    cpdef long long ended_with_produce(self) except? -1
    @cython.locals(walked=object)
    cpdef list resume(self, double now_ms)
    cpdef object take(self, object view, Py_ssize_t end, double now_ms)
    cpdef object moved(self, long long count, double now_ms)
    @cython.locals(walker=FrameWalker, taken=cython.Py_ssize_t)
    cpdef object _walk(self, object view, Py_ssize_t end, double now_ms, bytearray backlog)
    @cython.locals(exchange=ExchangeType, now_ms=cython.double, account=AccountType, pending=PendingType,
                   size_bytes=cython.longlong, delay_ms=cython.longlong)
    cpdef object complete(self)
    cpdef Py_ssize_t judge(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    @cython.locals(state=FrameWalker, now_ms=cython.double, header=RequestHeader, here=cython.Py_ssize_t,
                   total=cython.Py_ssize_t, api_key=cython.int, version=cython.int, account=AccountType,
                   exchange=ExchangeType, pending=PendingType, whole=cython.bint, answered=cython.bint,
                   wanted=cython.Py_ssize_t)
    cpdef Py_ssize_t _judge(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    @cython.locals(exchange=ExchangeType, now_ms=cython.double, account=AccountType, version=cython.int,
                   fields=FetchFields, admission=AdmissionType, upstream_version=cython.int)
    cpdef Py_ssize_t _fetch(self, object buf, Py_ssize_t start, Py_ssize_t here, Py_ssize_t total, RequestHeader header,
                            PendingType pending, list out) except? -1
    cpdef object _forward_fetch(self, PendingType pending, Py_ssize_t rest_bytes)
