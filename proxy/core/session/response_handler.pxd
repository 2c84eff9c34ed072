cimport cython

from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.framing cimport FrameInspector, FrameWalker
from proxy.core.session.in_flight cimport InFlightQueue as InFlightQueueType, InFlightRequest as InFlightRequestType
from proxy.core.telemetry.observer cimport Histogram as HistogramType
from proxy.core.wire cimport fetch_heads, integers, responses, throttle
from quota.accounts cimport Account as AccountType
from quota.counter cimport FetchAdmission as FetchAdmissionType

cdef int _FETCH, _FETCH_FIRST_FLEXIBLE, _FETCH_MAX, _FLEXIBLE_HEADER, _HEAD_BYTES, _SHARE_FETCH


cdef class ResponseHandler(FrameInspector):
    cdef public SessionStateType _state
    cdef public FrameWalker walker
    cdef public HistogramType _latency
    cdef public InFlightRequestType _timed
    cdef public bytearray _backlog
    cdef public object _work
    cdef public bint _raw
    cdef public double _came_ms, _now_ms
    cdef public long long _max_response_bytes, bytes_total, fetched_bytes

    cpdef object take(self, object view, Py_ssize_t end, double now_ms, double arrived_ms)
    cpdef bint has_backlog(self) except -1
    cpdef list resume(self, double now_ms)
    @cython.locals(walker=FrameWalker, taken=cython.Py_ssize_t, secret=cython.bint)
    cpdef object _walk(self, object view, Py_ssize_t end, double now_ms, double arrived_ms, bytearray backlog)
    cpdef object moved(self, long long count, double now_ms)
    @cython.locals(oldest=InFlightRequestType)
    cpdef bint answer_due(self) except -1
    cpdef object ready_answers(self)
    @cython.locals(state=SessionStateType, arrived_ms=cython.double, mute_ms=cython.double)
    cpdef object complete(self)
    @cython.locals(pending=InFlightRequestType, inflight=InFlightQueueType)
    cpdef list _ready(self)
    cpdef Py_ssize_t inspect(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    @cython.locals(walker=FrameWalker, state=SessionStateType, inflight=InFlightQueueType, now_ms=cython.double, here=cython.Py_ssize_t,
                   size=cython.longlong, correlation_id=cython.longlong, pending=InFlightRequestType, total=cython.Py_ssize_t,
                   api_key=cython.int, version=cython.int, throttle_ms=cython.longlong, used=cython.Py_ssize_t,
                   wanted=cython.Py_ssize_t, broker_throttle_ms=cython.longlong)
    cpdef Py_ssize_t _inspect(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    cpdef Py_ssize_t _inspect_raw(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    cpdef double _latency_ms(self, InFlightRequestType pending) except? -1.0
    @cython.locals(state=SessionStateType, now_ms=cython.double, busy_ms=cython.double, delay_ms=cython.longlong)
    cpdef object _charge_time(self, InFlightRequestType pending)
    @cython.locals(left_ms=cython.double)
    cpdef long long _throttle_ms(self, InFlightRequestType pending) except? -1
    @cython.locals(state=SessionStateType, now_ms=cython.double, account=AccountType, admission=FetchAdmissionType,
                   delay_ms=cython.longlong)
    cpdef object _charge_fetch(self, InFlightRequestType pending, long long amount_bytes)
