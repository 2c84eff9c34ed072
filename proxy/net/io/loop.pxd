cimport cython

from proxy.net.io cimport calls

cdef double LONG_S, MARK_S


cdef class Clock:
    cdef object _source
    cdef double _ahead_s

    cpdef double now_s(self) except? -1.0


cdef class Handler:
    cdef public bint over, queued, readable, waits_for_room
    cdef public double at_s

    cpdef object run(self)
    cpdef object on_time(self)


cdef class Watch:
    cdef public Handler reader, writer


cdef class EventLoop:
    cdef public calls.Poller poller
    cdef public Clock clock
    cdef public dict watches
    cdef public object again, force_wakeup, on_sooner, runq
    cdef public list late
    cdef public double since_ms, told_s
    cdef public int trio_fd
    cdef public object turns
    cdef int _served
    cdef double _left_s, _marked_s
    cdef long long _number

    cpdef object forget(self, int fd)
    cpdef object go_on_later(self, Handler handler)
    cpdef object come_back(self, double at_s, Handler handler)
    cpdef double next_s(self) except? -1.0
    @cython.locals(now_s=cython.double, until_s=cython.double, wait_s=cython.double, found=cython.bint)
    cpdef object wait(self, double timeout)
    @cython.locals(poller=calls.Poller, count=cython.int, now_s=cython.double, left=cython.Py_ssize_t, found=cython.bint,
                   event=cython.int, fd=cython.int, watch=Watch, again=Handler)
    cpdef bint serve(self, double wait_s, double asked_s) except -1
    @cython.locals(reader=Handler, writer=Handler)
    cdef object _serve(self, Watch watch, unsigned int flags)
    cdef object _run(self, Handler handler)
    @cython.locals(handler=Handler, at_s=cython.double, _=object)
    cdef object _call_back(self, double now_s)
