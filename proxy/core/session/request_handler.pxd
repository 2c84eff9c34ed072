cimport cython

from proxy.core.session cimport gate, in_flight
from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.framing cimport FrameInspector, FrameWalker
from proxy.core.session.in_flight cimport InFlightQueue as InFlightQueueType, InFlightRequest as InFlightRequestType
from proxy.core.wire cimport fetch_heads, integers, requests, responses
from proxy.core.wire.requests cimport FetchFields, RequestHeader
from quota.accounts cimport Account as AccountType
from quota.counter cimport FetchAdmission as FetchAdmissionType

cdef int _API_VERSIONS, _FETCH, _PRODUCE, _SHARE_FETCH
cdef int _FULL, _HEADER_SHIFT
cdef long long _MAX_HELD_BYTES


cdef class RequestHandler(FrameInspector):
    cdef public SessionStateType _state
    cdef public FrameWalker walker
    cdef public AccountType _charged, account
    cdef public InFlightRequestType _charged_pending, _unsent
    cdef public object _client_id, _shaper, _sizes, before, software, user
    cdef public bytearray _backlog
    cdef public dict _joined, _missed
    cdef public bint _raw, _saw_request, established
    cdef public long long _charged_bytes, _max_frame_bytes, _max_header_bytes
    cdef public double _now_ms

    @cython.locals(account=AccountType)
    cpdef AccountType _client(self, int api_key, object client_id)
    cpdef bint has_backlog(self) except -1
    @cython.locals(walked=object)
    cpdef list resume(self, double now_ms)
    cpdef object take(self, object view, Py_ssize_t end, double now_ms)
    cpdef object moved(self, long long count, double now_ms)
    @cython.locals(walker=FrameWalker, taken=cython.Py_ssize_t)
    cpdef object _walk(self, object view, Py_ssize_t end, double now_ms, bytearray backlog)
    @cython.locals(state=SessionStateType, now_ms=cython.double, account=AccountType, pending=InFlightRequestType,
                   size_bytes=cython.longlong, delay_ms=cython.longlong)
    cpdef object complete(self)
    cpdef Py_ssize_t inspect(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    @cython.locals(walker=FrameWalker, now_ms=cython.double, header=RequestHeader, here=cython.Py_ssize_t,
                   total=cython.Py_ssize_t, api_key=cython.int, version=cython.int, account=AccountType,
                   pending=InFlightRequestType, answered=cython.bint,
                   wanted=cython.Py_ssize_t)
    cpdef Py_ssize_t _inspect(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    @cython.locals(state=SessionStateType, now_ms=cython.double, account=AccountType, version=cython.int,
                   fields=FetchFields, admission=FetchAdmissionType, upstream_version=cython.int)
    cpdef Py_ssize_t _fetch(self, object buf, Py_ssize_t start, Py_ssize_t here, Py_ssize_t total, RequestHeader header,
                            InFlightRequestType pending, list out) except? -1
    cpdef object _forward_fetch(self, InFlightRequestType pending, Py_ssize_t rest_bytes)
