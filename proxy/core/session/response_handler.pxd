cimport cython
# For results that tell an error: Cython 3.3 writes a `long long` one's -1 wrongly where the class is final.
from libc.stdint cimport int64_t

from proxy.core.session.frames cimport FrameReader as FrameReaderType, Verdict as VerdictType
from proxy.core.session.exchange cimport Exchange as ExchangeType, InFlightRequest as InFlightRequestType
from proxy.core.session.outgoing cimport Outgoing as OutgoingType
from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.exchange cimport Histogram as HistogramType
from proxy.core.wire cimport fetch_heads, integers, responses, throttle
from quota.accounts cimport Account as AccountType
from quota.counter cimport FetchGrant as FetchGrantType

cdef int _FETCH, _FETCH_FIRST_FLEXIBLE, _FETCH_MAX, _FLEXIBLE_HEADER, _HEAD_BYTES, _SHARE_FETCH
cdef int _METADATA, _NEED, _PRODUCE
cdef VerdictType _FORWARD


@cython.final
cdef class ResponseHandler:
    cdef public SessionStateType _state
    cdef public FrameReaderType reader
    cdef public OutgoingType out
    cdef public HistogramType _latency
    cdef public InFlightRequestType _timed
    cdef public object _rewriting
    cdef public bint _raw
    cdef public double _now_ms, came_ms
    cdef public long long _max_response_bytes, bytes_total

    cpdef object begin(self, double now_ms, double arrived_ms)
    cpdef object ended(self)
    @cython.locals(state=SessionStateType, arrived_ms=cython.double, mute_ms=cython.double)
    cdef int _free(self) except -1
    @cython.locals(pending=InFlightRequestType, exchange=ExchangeType)
    cpdef object send_answers(self)
    @cython.locals(state=SessionStateType, reader=FrameReaderType, start=cython.Py_ssize_t, total=cython.longlong,
                   pending=InFlightRequestType, throttle_ms=cython.longlong, verdict=VerdictType)
    cpdef VerdictType decide(self)
    @cython.locals(state=SessionStateType, pending=InFlightRequestType, after=InFlightRequestType,
                   throttle_at=cython.Py_ssize_t, broker_throttle_ms=cython.longlong, throttle_ms=cython.longlong)
    cpdef InFlightRequestType take_plain(self, object buf, Py_ssize_t end, double now_ms, double arrived_ms)
    @cython.locals(reader=FrameReaderType, api_key=cython.int, version=cython.int)
    cdef object _answered(self, InFlightRequestType pending, bint unchanged, long long throttle_ms)
    @cython.locals(state=SessionStateType, reader=FrameReaderType, api_key=cython.int, version=cython.int,
                   total=cython.longlong, wanted=cython.longlong)
    cdef VerdictType _forwarded(self, InFlightRequestType pending, long long throttle_ms)
    @cython.locals(pending=InFlightRequestType)
    cdef InFlightRequestType _oldest(self, long long correlation_id)
    @cython.locals(state=SessionStateType)
    cdef int _note(self, InFlightRequestType pending, long long broker_throttle_ms) except -1
    cdef double _latency_ms(self, InFlightRequestType pending) except? -1.0
    @cython.locals(state=SessionStateType, now_ms=cython.double, busy_ms=cython.double, delay_ms=cython.longlong)
    cdef object _charge_time(self, InFlightRequestType pending)
    @cython.locals(left_ms=cython.double)
    cdef int64_t _throttle_ms(self, InFlightRequestType pending) except? -1
    @cython.locals(state=SessionStateType, now_ms=cython.double, version=cython.int, reader=FrameReaderType,
                   size=cython.longlong, account=AccountType, grant=FetchGrantType, share=cython.bint, tags=cython.int,
                   named_bytes=cython.longlong, amount_bytes=cython.longlong, delay_ms=cython.longlong)
    cdef object _charge_fetch(self, InFlightRequestType pending)
