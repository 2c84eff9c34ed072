cimport cython

from proxy.core.session.auth cimport Auth as AuthType
from proxy.core.session.effects cimport Effects as EffectsType
from proxy.core.session.exchange cimport Exchange as ExchangeType, InFlightRequest as InFlightRequestType
from proxy.core.session.frames cimport FrameReader as FrameReaderType
from proxy.core.session.request_handler cimport RequestHandler as RequestHandlerType
from proxy.core.session.response_handler cimport ResponseHandler as ResponseHandlerType
from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.throttle cimport Throttle as ThrottleType

cdef int _END_OF_LITTLE, _FRAMES, _HEAD
cdef double _NEVER
cdef object _FLOWING, _OPEN, _UP


cdef class Session:
    cdef public object broker, client
    cdef bint _plain_up, _plain_down
    cdef public bint retiring
    cdef public EffectsType _effects
    cdef public SessionStateType state
    cdef public AuthType auth
    cdef public ExchangeType exchange
    cdef public ThrottleType throttle
    cdef public RequestHandlerType requests
    cdef public ResponseHandlerType responses

    @cython.locals(requests=RequestHandlerType)
    cpdef EffectsType on_client_bytes(self, object view, Py_ssize_t count, double now_ms)
    @cython.locals(pending=InFlightRequestType)
    cpdef int take_request(self, object view, Py_ssize_t count, double now_ms) except -1
    @cython.locals(pending=InFlightRequestType, full=cython.bint)
    cpdef int take_response(self, object view, Py_ssize_t count, double now_ms, double arrived_ms) except -1
    @cython.locals(reader=FrameReaderType)
    cpdef EffectsType on_client_moved(self, long long count, double now_ms)
    cpdef EffectsType on_broker_bytes(self, object view, Py_ssize_t count, double now_ms, double arrived_ms)
    @cython.locals(reader=FrameReaderType)
    cpdef EffectsType on_broker_moved(self, long long count, double now_ms)
    cpdef EffectsType on_turn(self, double now_ms)
    cpdef EffectsType on_deadline(self, double now_ms)
    cdef object _begin(self)
    @cython.locals(requests=RequestHandlerType, reader=FrameReaderType, event=cython.int)
    cdef object _read_requests(self, double now_ms)
    @cython.locals(responses=ResponseHandlerType, reader=FrameReaderType, event=cython.int)
    cdef object _read_responses(self, double now_ms, double arrived_ms)
    @cython.locals(effects=EffectsType, exchange=ExchangeType, requests=FrameReaderType, responses=FrameReaderType,
                   until_ms=cython.double, due_ms=cython.double, waits=cython.bint, goes_on=cython.bint)
    cdef EffectsType _settle(self, double now_ms)
    @cython.locals(throttle=ThrottleType, reader=FrameReaderType)
    cdef bint _looks(self, double now_ms) except -1
    @cython.locals(effects=EffectsType, reader=FrameReaderType, plain=cython.bint, up=cython.bint)
    cdef object _settle_plain(self, bint waits)
    cdef object _carry_out(self, double now_ms)
    cpdef object _settle_broker(self)
    cdef object _settle_client(self)
    cdef object _fail(self, object error)
