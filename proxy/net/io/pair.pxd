cimport cython

from proxy.core.session.effects cimport Effects as EffectsType
from proxy.core.session.outgoing cimport Outgoing as OutgoingType
from proxy.core.session.session cimport Session as SessionType
from proxy.net.io.endpoint cimport Endpoint as EndpointType
from proxy.net.io.loop cimport Handler, EventLoop
from proxy.net.io.splice cimport Splice as SpliceType

cdef long _MOST_UNSENT
cdef double _NEVER
cdef int _SETTLE


cdef class ConnectionPair


cdef class Direction(Handler):
    cdef public ConnectionPair _pair
    cdef public object _buffer
    cdef public Py_ssize_t _buffer_bytes
    cdef public EventLoop _loop
    cdef public SpliceType _splice
    cdef public long long moves
    cdef public bint _upward, open, unfinished
    cdef public EndpointType sink, source
    cdef public bytes unsent

    @cython.locals(pair=ConnectionPair, _=cython.int)
    cpdef object run(self)
    @cython.final
    @cython.locals(sent=cython.Py_ssize_t, total=cython.Py_ssize_t, sink=EndpointType)
    cdef object send(self, OutgoingType out)
    @cython.final
    @cython.locals(sent=cython.Py_ssize_t, sink=EndpointType)
    cdef object send_range(self, object view, Py_ssize_t start, Py_ssize_t end, bint more)
    @cython.final
    @cython.locals(pair=ConnectionPair, wanted=cython.Py_ssize_t, received=cython.Py_ssize_t)
    cdef bint _read(self) except -1
    @cython.final
    @cython.locals(pair=ConnectionPair, splice=SpliceType)
    cdef bint _move(self) except -1
    @cython.final
    @cython.locals(pair=ConnectionPair, sink=EndpointType, done=cython.Py_ssize_t, total=cython.Py_ssize_t, sent=cython.Py_ssize_t)
    cdef bint _flush(self) except -1


@cython.final
cdef class ConnectionPair:
    cdef public object _shared, _changed, _identify, compliance, reason
    cdef public EventLoop _loop
    cdef public long long _ahead_bytes, _splice_min_bytes
    cdef public SessionType session
    cdef public Direction down, up
    cdef public double _wake_at_ms, active_s
    cdef public bint _may_read, closed, more, wants_broker, yields

    @cython.locals(now_ms=cython.double, since_ms=cython.double, was_open=cython.bint, session=SessionType, up=Direction,
                   taken=cython.int, left=cython.longlong)
    cpdef object on_bytes(self, bint upward, object buffer, Py_ssize_t count)
    @cython.locals(now_ms=cython.double, was_open=cython.bint)
    cpdef object on_moved(self, bint upward, long long count)
    cpdef object on_end(self, bint upward)
    cpdef object turn(self)
    @cython.locals(up=Direction, now_s=cython.double, now_ms=cython.double)
    cpdef object stay(self)
    cpdef object became_writable(self, Direction direction)
    @cython.locals(up=Direction)
    cdef object _look_after(self, bint was_open)
    cdef object _expect(self, Direction direction, long long left)
    @cython.locals(up=Direction, down=Direction)
    cpdef object apply(self, EffectsType effects)
    @cython.locals(up=Direction, opened=cython.bint)
    cdef object _open_or_shut(self)
    cdef object _end_if_sent(self)
    cpdef object _run_up(self)
    cpdef double _now_ms(self) except? -1.0
