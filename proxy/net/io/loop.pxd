cimport cython

from proxy.net.io cimport calls, ticks

cdef double _LONG_S, _MARK_S, _WAITED_S, _NEVER
cdef unsigned int _OVER, _READABLE, _WRITABLE
cdef Py_ssize_t _AGAIN


@cython.final
cdef class Clock:
    cdef object _source

    cpdef double now_s(self) except? -1.0


cdef class Handler:
    cdef public bint over, queued, readable, waits_for_writable
    cdef public double at_s

    cpdef object run(self)
    cpdef object on_time(self)


@cython.final
cdef class Watch:
    cdef public Handler reader, writer


@cython.final
cdef class EventLoop:
    cdef public calls.Poller poller
    cdef public Clock clock
    cdef public list watches, late
    cdef public object again, turns
    cdef public double since_ms, woken_s
    cdef public bint running, asleep
    cdef bint _has_posted, _just_woken, _waits
    cdef public int served
    cdef object _posted
    cdef int _wakeup_fd
    cdef double _cpu_s, _marked_s, _turn_s
    cdef long long _number

    cpdef object forget(self, int fd)
    cpdef object go_on_later(self, Handler handler)
    cpdef object come_back(self, double at_s, Handler handler)
    cpdef double next_s(self) except? -1.0
    cpdef double ready_s(self) except? -1.0
    @cython.locals(now_s=cython.double, wait_s=cython.double)
    cpdef object run(self)
    @cython.locals(poller=calls.Poller, watches=list, count=cython.int, now_s=cython.double, left=cython.Py_ssize_t,
                   number=cython.int, fd=cython.int, watch=Watch, _=cython.int)
    cpdef double serve(self, double wait_s, double asked_s) except? -1.0
    @cython.final
    @cython.locals(reader=Handler, writer=Handler)
    cdef object _serve(self, Watch watch, unsigned int flags)
    @cython.locals(handler=Handler, _=cython.Py_ssize_t)
    cdef object _run_again(self, Py_ssize_t count)
    @cython.final
    cdef object _run(self, Handler handler)
    @cython.locals(handler=Handler, at_s=cython.double, _=object)
    cdef object _call_back(self, double now_s)
    cdef object _wake(self)
    @cython.final
    @cython.locals(now_s=cython.double, cpu_s=cython.double)
    cdef double _measured(self, object what) except? -1.0
