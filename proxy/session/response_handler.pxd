cimport cython

from proxy.session.state cimport Exchange as ExchangeType
from proxy.session.framing cimport FrameJudge, FrameWalker
from proxy.session.in_flight cimport InFlight as InFlightType, Pending as PendingType
from proxy.telemetry.observer cimport Histogram as HistogramType
from proxy.wire cimport integers, responses, throttle
from quota.accounts cimport Account as AccountType
from quota.counter cimport Admission as AdmissionType

cdef int _FETCH, _FETCH_FIRST_FLEXIBLE, _FETCH_MAX, _FLEXIBLE_HEADER, _HEAD_BYTES, _SHARE_FETCH


cdef class ResponseSide(FrameJudge):
    cdef public ExchangeType _exchange
    cdef public FrameWalker walker
    cdef public HistogramType _latency
    cdef public PendingType _timed
    cdef public bint _raw
    cdef public double _came_ms, _now_ms
    cdef public long long _max_response_bytes, bytes_total, fetched_bytes

    cpdef object take(self, object view, Py_ssize_t end, double now_ms, double came_ms)
    cpdef object moved(self, long long count, double now_ms)
    @cython.locals(oldest=PendingType)
    cpdef bint answer_due(self) except -1
    cpdef object ready_answers(self)
    @cython.locals(exchange=ExchangeType, came_ms=cython.double, mute_ms=cython.double)
    cpdef object complete(self)
    @cython.locals(pending=PendingType, inflight=InFlightType)
    cpdef list _ready(self)
    cpdef Py_ssize_t judge(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    @cython.locals(state=FrameWalker, exchange=ExchangeType, inflight=InFlightType, now_ms=cython.double, here=cython.Py_ssize_t,
                   size=cython.longlong, correlation_id=cython.longlong, pending=PendingType, total=cython.Py_ssize_t,
                   api_key=cython.int, version=cython.int, throttle_ms=cython.longlong, used=cython.Py_ssize_t,
                   wanted=cython.Py_ssize_t, told_ms=cython.longlong)
    cpdef Py_ssize_t _judge(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    cpdef Py_ssize_t _judge_raw(self, object buf, Py_ssize_t start, Py_ssize_t end, list out) except? -1
    cpdef double _latency_ms(self, PendingType pending) except? -1.0
    @cython.locals(exchange=ExchangeType, now_ms=cython.double, busy_ms=cython.double, delay_ms=cython.longlong)
    cpdef object _charge_time(self, PendingType pending)
    @cython.locals(left_ms=cython.double)
    cpdef long long _throttle_ms(self, PendingType pending) except? -1
    @cython.locals(exchange=ExchangeType, now_ms=cython.double, account=AccountType, admission=AdmissionType,
                   delay_ms=cython.longlong)
    cpdef object _charge_fetch(self, PendingType pending, long long amount_bytes)
