cimport cython

from proxy.net.io cimport calls
from proxy.net.io.sched_policy cimport SchedPolicy as SchedPolicyType

cdef double LONG_S, MARK_S


cdef class Clock:
    cdef object _source
    cdef double _ahead_s

    cpdef double now_s(self) except? -1.0


cdef class Watch:
    cdef Round _round
    cdef int _fd
    cdef public bint over, queued, readable
    cdef public object task, callback
    cdef public Watch room_for
    cdef public double back_s, rest_s

    cpdef object run(self)
    cpdef object run_again(self)
    cpdef object go_on_later(self)
    cpdef object come_back(self, double at_s)
    cpdef object expect_rest(self)
    cpdef object rest_came(self, double now_s)


cdef class Round:
    cdef public calls.Poller poller
    cdef public Clock clock
    cdef public SchedPolicyType sched_policy
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
    cpdef object come_back(self, double at_s, Watch watch)
    cpdef double next_s(self) except? -1.0
    @cython.locals(now_s=cython.double, until_s=cython.double, wait_s=cython.double, found=cython.bint)
    cpdef object wait(self, double timeout)
    @cython.locals(poller=calls.Poller, count=cython.int, now_s=cython.double, left=cython.Py_ssize_t, found=cython.bint,
                   event=cython.int, fd=cython.int, watch=Watch, again=Watch)
    cpdef bint serve(self, double wait_s, double asked_s) except -1
    @cython.locals(waiting=Watch)
    cdef object _serve(self, Watch watch, unsigned int flags)
    @cython.locals(watch=Watch, at_s=cython.double, _=object)
    cdef object _call_back(self, double now_s)
