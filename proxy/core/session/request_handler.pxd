cimport cython

from proxy.core.session cimport exchange, gate
from proxy.core.session.frames cimport FrameReader as FrameReaderType, Verdict as VerdictType
from proxy.core.session.auth cimport Auth as AuthType
from proxy.core.session.exchange cimport InFlightRequest as InFlightRequestType
from proxy.core.session.outgoing cimport Outgoing as OutgoingType
from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.throttle cimport Throttle as ThrottleType
from proxy.core.wire cimport fetch_heads, integers, requests, responses
from proxy.core.wire.requests cimport FetchFields, RepeatedHeader, RequestHeader
from quota.accounts cimport Account as AccountType
from quota.counter cimport FetchGrant as FetchGrantType

cdef int _ACKS_ALL, _API_VERSIONS, _FETCH, _PRODUCE, _SHARE_FETCH
cdef int _HEADER_SHIFT, _MAX_REPEATED_BYTES, _NO_ACKS_YET
cdef long long _MAX_PARTIAL_BYTES
cdef VerdictType _DROP, _FORWARD, _STOP


@cython.final
cdef class RequestHandler:
    cdef public SessionStateType _state
    cdef public FrameReaderType reader
    cdef public OutgoingType out
    cdef public AccountType account
    cdef public InFlightRequestType _current
    cdef public object _awaited, _client_id, _refusal, _shaper, software
    cdef public dict joined, _missed
    cdef public RepeatedHeader _repeated
    cdef public bint _unanswered, established, saw_request
    cdef public long long _deferred_ms, _max_frame_bytes, _max_header_bytes, _produced_bytes

    @cython.locals(state=SessionStateType, auth=AuthType, account=AccountType)
    cpdef AccountType _client(self, int api_key, object client_id)
    @cython.locals(state=SessionStateType, pending=InFlightRequestType, size_bytes=cython.longlong,
                   delay_ms=cython.longlong)
    cpdef object ended(self, double now_ms)
    @cython.locals(state=SessionStateType, header=RequestHeader, api_key=cython.int, version=cython.int,
                   account=AccountType, pending=InFlightRequestType, throttle=ThrottleType, muted=cython.bint,
                   verdict=VerdictType, reader=FrameReaderType, start=cython.Py_ssize_t, end=cython.Py_ssize_t)
    cpdef VerdictType decide(self, double now_ms)
    @cython.locals(reader=FrameReaderType, start=cython.Py_ssize_t, end=cython.Py_ssize_t, acks=cython.int,
                   repeated=RepeatedHeader)
    cdef VerdictType _produce(self, RequestHeader header, InFlightRequestType pending)
    @cython.locals(state=SessionStateType, repeated=RepeatedHeader, account=AccountType, total=cython.longlong,
                   throttle=ThrottleType, generation=cython.longlong, missing=cython.longlong, acks=cython.int,
                   pending=InFlightRequestType)
    cpdef InFlightRequestType take_plain(self, object buf, Py_ssize_t end, double now_ms)
    @cython.locals(pending=InFlightRequestType, left=cython.longlong)
    cdef InFlightRequestType _take_more(self, Py_ssize_t count, double now_ms)
    @cython.locals(state=SessionStateType, reader=FrameReaderType, api_key=cython.int, verdict=VerdictType)
    cdef VerdictType _other(self, RequestHeader header, InFlightRequestType pending, double now_ms)
    @cython.locals(throttle=ThrottleType, reader=FrameReaderType, api_key=cython.int, joins=cython.bint,
                   compact=cython.bint)
    cdef VerdictType _member(self, RequestHeader header, double now_ms)
    cdef int _begin_produce(self, InFlightRequestType pending, long long size_bytes, int acks) except -1
    @cython.locals(state=SessionStateType, key=cython.int)
    cdef int _count(self, AccountType account, int api_key) except -1
    cpdef int _begin(self, InFlightRequestType pending, bint unanswered) except -1
    @cython.locals(state=SessionStateType, reader=FrameReaderType, start=cython.Py_ssize_t, end=cython.Py_ssize_t,
                   total=cython.Py_ssize_t, version=cython.int, wanted=cython.Py_ssize_t, asked=cython.longlong,
                   fields=FetchFields, grant=FetchGrantType, upstream_version=cython.int)
    cdef VerdictType _fetch(self, RequestHeader header, InFlightRequestType pending, double now_ms)
    cpdef object _begin_fetch(self, InFlightRequestType pending, double now_ms)
