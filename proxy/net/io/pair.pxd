cimport cython

from proxy.net.io cimport calls
from proxy.net.io.endpoint cimport Endpoint
from proxy.net.io.rounds cimport Clock as ClockType, Round as RoundType, Watch as WatchType
from proxy.net.io.splice cimport Splice as SpliceType
from proxy.core.session.throttle cimport Throttle as ThrottleType
from proxy.core.session.state cimport SessionState as SessionStateType
from proxy.core.session.frames cimport FrameReader
from proxy.core.session.outgoing cimport Outgoing as OutgoingType
from proxy.core.session.request_handler cimport RequestHandler as RequestHandlerType
from proxy.core.session.response_handler cimport ResponseHandler as ResponseHandlerType


cdef class ConnectionIO:
    cdef public Endpoint broker, client
    cdef public WatchType broker_watch, client_watch
    cdef public object _buffer, _shared, on_progress, compliance, session
    cdef public bytes to_broker, to_client
    cdef public bint is_held, progress_wanted
    cdef public double last_activity_s
    cdef public long long _ahead_bytes
    cdef public long _splice_min_bytes
    cdef public ClockType _clock
    cdef public RoundType _round
    cdef public SessionStateType _state
    cdef public RequestHandlerType _requests
    cdef public ResponseHandlerType _responses
    cdef public SpliceType _splice_down, _splice_up

    @cython.locals(state=SessionStateType, requests=RequestHandlerType, watch=WatchType,
                   frames=FrameReader, splice=SpliceType, broker=Endpoint, now_s=cython.double,
                   now_ms=cython.double, stopped=cython.bint, throttle=ThrottleType, skip=cython.longlong, out=OutgoingType,
                   wanted=cython.Py_ssize_t, received=cython.Py_ssize_t, more=cython.bint, _=cython.int)
    cpdef object on_client_readable(self)
    cpdef object _connect(self)
    cpdef bint _flush_broker(self) except -1
    cpdef object _wait_for_room_at_broker(self)
    @cython.locals(splice=SpliceType, now_s=cython.double)
    cdef object _splice_request(self, Endpoint broker, long long count)
    @cython.locals(responses=ResponseHandlerType, watch=WatchType, broker=Endpoint, frames=FrameReader, splice=SpliceType,
                   skip=cython.longlong, wanted=cython.Py_ssize_t, received=cython.Py_ssize_t,
                   now_s=cython.double, more=cython.bint, sent=cython.bint,
                   _=cython.int)
    cpdef object on_broker_readable(self)
    @cython.locals(out=OutgoingType)
    cpdef bint _send_client(self, bint more) except -1
    cpdef bint _flush_client(self) except -1
    cpdef object _answer(self)
    @cython.locals(splice=SpliceType, now_s=cython.double)
    cdef object _splice_response(self, Endpoint broker, long long count)
    cpdef object _expect_rest(self, WatchType watch)
    cpdef object _rest_came(self, WatchType watch)
    cpdef object _progress(self)


@cython.locals(sent=cython.Py_ssize_t, total=cython.Py_ssize_t, start=cython.Py_ssize_t, end=cython.Py_ssize_t)
cdef bytes _send(Endpoint endpoint, OutgoingType out, bint more, object failed)

@cython.locals(done=cython.Py_ssize_t, total=cython.Py_ssize_t, sent=cython.Py_ssize_t)
cdef bytes _flush(Endpoint endpoint, bytes left, object failed)
