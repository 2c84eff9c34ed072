# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, initializedcheck=False
"""The lane for ordinary traffic, compiled: what `reactor`, `turns`, `splice`, `framing`, the two sides of a session do
with Produce and Fetch, requests and responses, when nothing is special.

Nothing is decided here that the Python code would not decide alike, and it stays the one that everything is defined by:
whatever is not ordinary (another API, a mute, a login, a limit that is exceeded, a frame whose head is not there yet, an
address to be rewritten, a drain, TLS) is left to it, and it finds all state where it would have put it itself. This
module keeps no state of its own but what it has looked up, and when which requests come in pairs, which changes when they
are read and nothing else. tests/loopback/test_lane.py sends the same streams through both.

Objects of Python classes with `__slots__` are read and written in place (`get`, `put`): an attribute lookup is short,
but with the caches full of other programs' data each of its steps is waited for (docs/performance.md).
"""

import os
import sys

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_AsDouble, PyFloat_CheckExact
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp
from libc.time cimport time_t

from proxy.tls._openssl cimport Channel
from quota.accounts cimport Account, Meter
from quota.group cimport Admission, Group
from quota.ledger cimport Ledger


cdef extern from *:
    """
    #include <structmember.h>
    #include <fcntl.h>
    #include <sys/epoll.h>
    #include <sys/ioctl.h>
    #include <sys/socket.h>
    #include <sys/timerfd.h>
    #include <time.h>
    #include <unistd.h>

    /* Where an attribute of a class with __slots__ lies in its objects; -1 if it is none. */
    static Py_ssize_t kq_offset(PyObject *descriptor) {
        if (!PyObject_TypeCheck(descriptor, &PyMemberDescr_Type)) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    #define KQ_AT(object, offset) ((PyObject **)((char *)(object) + (offset)))

    static inline int kq_epoll_wait(int epoll, void *events, int most, int timeout_ms) {
        return epoll_wait(epoll, (struct epoll_event *)events, most, timeout_ms);
    }
    static inline int kq_watch_room(int epoll, int fd) {
        struct epoll_event wanted = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET, .data = {.u64 = 0}};
        wanted.data.fd = fd;
        return epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &wanted);
    }
    static inline int kq_event_fd(void *all, int i) { return ((struct epoll_event *)all)[i].data.fd; }
    static inline uint32_t kq_event_flags(void *all, int i) { return ((struct epoll_event *)all)[i].events; }
    #define KQ_EVENT_BYTES sizeof(struct epoll_event)

    /* Every so many nanoseconds from now on; 0: no more. */
    static inline int kq_tick(int timer, long every_ns) {
        struct itimerspec every = {{0, every_ns}, {0, every_ns}};
        return timerfd_settime(timer, 0, &every, NULL);
    }
    /* Tell of what has come once there is so much of it. */
    static inline int kq_tell_from(int fd, int least) {
        return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    }
    /* Bytes that have come and were not read; 0 if the kernel does not know. */
    static inline int kq_unread(int fd) {
        int count = 0;
        return ioctl(fd, FIONREAD, &count) ? 0 : count;
    }
    """
    PyObject *Py_False
    Py_ssize_t kq_offset(object descriptor)
    PyObject **KQ_AT(PyObject *obj, Py_ssize_t offset) nogil
    int kq_epoll_wait(int epoll, void *events, int most, int timeout_ms) nogil
    int kq_watch_room(int epoll, int fd) nogil
    int kq_event_fd(void *all, int i) nogil
    uint32_t kq_event_flags(void *all, int i) nogil
    const size_t KQ_EVENT_BYTES
    int kq_tick(int timer, long every_ns) nogil
    int kq_tell_from(int fd, int least) nogil
    int kq_unread(int fd) nogil
    int timerfd_create(int clock, int flags) nogil
    int c_close "close"(int fd) nogil
    ssize_t c_read "read"(int fd, void *buf, size_t count) nogil
    const int TFD_NONBLOCK
    const int TFD_CLOEXEC
    const int EPOLLIN
    const int EPOLLOUT
    const int EPOLLRDHUP
    const int EPOLLHUP
    const int EPOLLERR
    const int MSG_MORE
    const int MSG_NOSIGNAL
    const int MSG_DONTWAIT
    const unsigned int SPLICE_F_MOVE
    const unsigned int SPLICE_F_NONBLOCK
    const unsigned int SPLICE_F_MORE
    ssize_t c_recv "recv"(int fd, void *buf, size_t count, int flags) nogil
    ssize_t c_send "send"(int fd, const void *buf, size_t count, int flags) nogil
    ssize_t c_splice "splice"(int fd_in, void *off_in, int fd_out, void *off_out, size_t count, unsigned int flags) nogil
    struct timespec:
        time_t tv_sec
        long tv_nsec
    const int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now) nogil
    object PyType_GenericAlloc(type of, Py_ssize_t items)
    PyObject *PyDict_GetItemWithError(object of, object key) except? NULL
    int PyDict_SetItem(object of, object key, object value) except -1


ABI = 6
"""See `proxy.lane.ABI`."""

cdef enum:
    MAX_EVENTS = 256
    TURNS = 8  # reads in a row, as proxy.io.turns.TURNS_BEFORE_CHECKPOINT
    SPLICES = 8  # as proxy.io.splice.SHARE
    MOST_BUCKETS = 32
    PRODUCE = 0
    FETCH = 1
    FETCH_FIRST_FLEXIBLE = 12
    PRODUCE_FIRST_FLEXIBLE = 9
    PRODUCE_FIRST_TOPIC_ID = 13
    THROTTLE_HEAD_BYTES = 16
    LARGE_FETCH_BYTES = 262144  # after one of this size, of the next no more is read at first than
    HEAD_BYTES = 4096
    # Of pairs (ADR 0025):
    TICK_NS = 500_000
    FIRST_TRY = 16  # requests close to each other before the first try
    NEXT_TRY = 2  # after a pause
    LATEST_TRY = 4096  # between two tries, at most
    PAIR_BYTES = 32768  # of a request; larger ones are worth a wake-up of their own

cdef double QUIET_S, WAITED_S, SHARE_S, HANDOVER_MS, LEAST_MS, MS_PER_BYTE
cdef double CLOSE_S = TICK_NS * 1e-9  # requests no further apart than this are close to each other
cdef long LEAST_READ_BYTES, MAX_HELD_IN_FLIGHT_BYTES, POOL_SIZE, RECENT
cdef long PRODUCE_MAX, FETCH_MAX, FETCH_UPSTREAM, MAX_HELD_REQUEST_BYTES
cdef double[MOST_BUCKETS] BUCKETS_S
cdef int N_BUCKETS = 0

# Classes, and results of turns, that are known once `bind` was called.
cdef object Kind_PRODUCE = None, Kind_REQUEST = None, Kind_FETCH = None
cdef object Pause_FULL = None, Pause_SPLICE_FULL = None, Pause_ANSWERS = None, Pause_TAKEN = None, Pause_ENDED = None
cdef object AGAIN = None, IDLE = None, NOBODY = None
cdef type Pending_type = None
cdef object client_failed = None, broker_failed = None, send_now = None
cdef object ZERO = 0, FLOAT_ZERO = 0.0, ONE = 1, KEY_PRODUCE = 0, KEY_FETCH = 1
cdef bint bound = False


# ---- attributes in place ------------------------------------------------------------------------------------------------

cdef int missing(object of, Py_ssize_t at) except -1:
    """What Python says where an attribute was deleted (or never set)."""
    for klass in type(of).__mro__:
        for name, member in vars(klass).items():
            if kq_offset(member) == at:
                raise AttributeError(f"'{type(of).__name__}' object has no attribute '{name}'")
    raise AttributeError(f"'{type(of).__name__}' object has no attribute {at} bytes from its beginning")


cdef inline PyObject *peek(object of, Py_ssize_t at) except NULL:
    """Borrowed: to be compared, not kept."""
    cdef PyObject *value = KQ_AT(<PyObject *>of, at)[0]
    if value == NULL:
        missing(of, at)
    return value


cdef inline object get(object of, Py_ssize_t at):
    return <object>peek(of, at)


cdef inline bint is_none(object of, Py_ssize_t at) except -1:
    return peek(of, at) == <PyObject *>None


cdef inline bint is_false(object of, Py_ssize_t at) except -1:
    return peek(of, at) == Py_False


cdef inline void put(object of, Py_ssize_t at, object value) noexcept:
    cdef PyObject **place = KQ_AT(<PyObject *>of, at)
    cdef PyObject *old = place[0]
    Py_INCREF(value)
    place[0] = <PyObject *>value
    Py_XDECREF(old)


cdef inline double real(object of, Py_ssize_t at) except? -1.0:
    cdef PyObject *value = peek(of, at)
    if PyFloat_CheckExact(<object>value):
        return PyFloat_AS_DOUBLE(<object>value)
    return PyFloat_AsDouble(<object>value)


cdef inline long long whole(object of, Py_ssize_t at) except? -1:
    return <long long><object>peek(of, at)


cdef inline uint32_t u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void put_u32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF


cdef inline int16_t i16(const uint8_t *at) noexcept nogil:
    return <int16_t>((<uint16_t>at[0] << 8) | at[1])


cdef Py_ssize_t offset(object of, str name) except -1:
    at = kq_offset(of.__dict__[name])
    if at < 0:
        raise TypeError(f"{of.__name__}.{name} is not a slot")
    return at


# Offsets, by class and attribute.
cdef Py_ssize_t W_readable, W_over, W_turn, W_rest, Y_halfway, Y_gives
cdef Py_ssize_t F_skip, F_dropping, F_scrub, F_held, F_stopped
cdef Py_ssize_t X_mute, X_waits, X_outcome, X_logins, X_held, X_broker_mute
cdef Py_ssize_t L_watch, S_state, S_raw
cdef Py_ssize_t R_shaper, R_admitted, D_missed
cdef Py_ssize_t R_account, R_backlog, R_completing, R_max, R_unsent, R_waiting, R_total, R_established
cdef Py_ssize_t A_came, A_now, A_timed, A_total, A_max
cdef Py_ssize_t P_id, P_key, P_version, P_account, P_sent, P_throttle, P_delay, P_cause, P_charged, P_answer, P_replicated
cdef Py_ssize_t P_admission, P_response, P_held, P_asked
cdef Py_ssize_t T_to_broker, T_to_client, T_answers, T_request_read, T_response_read, T_up, T_down, T_taken, T_wanted
cdef Py_ssize_t T_draining, T_patience, T_activity, T_splice_min
cdef Py_ssize_t B_free, B_recent, B_at, B_baseline, B_round_trip
cdef Py_ssize_t H_counts, H_sum
cdef Py_ssize_t V_pipe, V_inside
cdef Py_ssize_t E_since
cdef Py_ssize_t I_read, I_write, I_size


def bind():
    """Look up what lies where. Raises TypeError where this module and the Python code do not fit together."""
    if not bound:
        try:
            look_up()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            text = f"the compiled lane is of other sources ({error}): compile it again (make lane), or set KQUOTA_PURE=1"
            raise TypeError(text) from error


cdef look_up():
    global bound
    global WAITED_S, SHARE_S, HANDOVER_MS, LEAST_MS, MS_PER_BYTE, LEAST_READ_BYTES, MAX_HELD_IN_FLIGHT_BYTES, POOL_SIZE
    global RECENT, PRODUCE_MAX, FETCH_MAX, N_BUCKETS
    global Kind_PRODUCE, Kind_REQUEST, Kind_FETCH, Pause_FULL, Pause_SPLICE_FULL, Pause_ANSWERS, Pause_TAKEN, Pause_ENDED
    global AGAIN, IDLE, NOBODY, Pending_type, client_failed, broker_failed, send_now
    global W_readable, W_over, W_turn, W_rest, Y_halfway, Y_gives, QUIET_S, F_skip, F_dropping, F_scrub, F_held, F_stopped
    global X_mute, X_waits, X_outcome, X_logins, X_held, X_broker_mute
    global L_watch, S_state, S_raw
    global R_shaper, R_admitted, D_missed, MAX_HELD_REQUEST_BYTES, FETCH_UPSTREAM
    global R_account, R_backlog, R_completing, R_max, R_unsent, R_waiting, R_total, R_established
    global A_came, A_now, A_timed, A_total, A_max
    global P_id, P_key, P_version, P_account, P_sent, P_throttle, P_delay, P_cause, P_charged, P_answer, P_replicated
    global P_admission, P_response, P_held, P_asked
    global T_to_broker, T_to_client, T_answers, T_request_read, T_response_read, T_up, T_down, T_taken, T_wanted
    global T_draining, T_patience, T_activity, T_splice_min
    global B_free, B_recent, B_at, B_baseline, B_round_trip, H_counts, H_sum
    global E_since, V_pipe, V_inside, I_read, I_write, I_size
    if sys.implementation.name != "cpython":
        raise TypeError(f"made for CPython, this is {sys.implementation.name}")
    from proxy import errors
    from proxy.auth import sasl
    from proxy.io import courtesy, reactor, sockets, splice, turns
    from proxy.session import exchange, fetch, framing, login, request_side, request_time, response_side, sizes
    from proxy.telemetry import observer
    from proxy.wire import apis, responses, schema
    from quota import entity

    W_readable, W_over, W_turn, W_rest = (offset(reactor.Watch, name) for name in ("readable", "over", "turn", "rest_s"))
    Y_halfway, Y_gives = (offset(courtesy.Courtesy, name) for name in ("halfway", "gives_way"))
    QUIET_S = courtesy.QUIET_S
    F_skip, F_dropping, F_scrub, F_held, F_stopped = (
        offset(framing.FrameWalker, name) for name in ("skip", "dropping", "scrub", "held", "stopped")
    )
    X_mute, X_waits, X_outcome, X_logins, X_held, X_broker_mute = (
        offset(exchange.Exchange, name)
        for name in (
            "mute_until_ms", "client_waits", "outcome", "logins", "held_bytes", "broker_mute_until_ms",
        )
    )
    L_watch = offset(login.Logins, "watch")
    S_state, S_raw = (offset(sasl.SaslWatch, name) for name in ("_state", "raw"))
    R_account, R_backlog, R_completing, R_max, R_unsent, R_waiting, R_total, R_established = (
        offset(request_side.RequestSide, name)
        for name in (
            "_account", "_backlog", "_completing", "_max_in_flight", "_unsent", "_waiting",
            "bytes_total", "established",
        )
    )
    R_shaper, R_admitted = (offset(request_side.RequestSide, name) for name in ("_shaper", "_admitted"))
    D_missed = offset(fetch.FetchShaper, "_missed")
    A_came, A_now, A_timed, A_total, A_max = (
        offset(response_side.ResponseSide, name)
        for name in ("_came_ms", "_now_ms", "_timed", "bytes_total", "_max_response_bytes")
    )
    (
        P_id, P_key, P_version, P_account, P_sent, P_throttle, P_delay, P_cause, P_charged, P_answer, P_replicated,
        P_admission, P_response, P_held, P_asked,
    ) = (
        offset(exchange.Pending, name)
        for name in (
            "correlation_id", "api_key", "api_version", "account", "sent_ms", "throttle_until_ms", "delay_ms", "cause",
            "charged", "local_answer", "replicated_bytes", "admission", "on_response", "held_bytes", "asked",
        )
    )
    if len(exchange.Pending.__slots__) != 15:
        raise TypeError("a Pending has other fields than are known here")
    (
        T_to_broker, T_to_client, T_answers, T_request_read, T_response_read, T_up, T_down, T_taken, T_wanted, T_draining,
        T_patience, T_activity, T_splice_min,
    ) = (
        offset(turns.Turns, name)
        for name in (
            "_to_broker", "_to_client", "_answers", "_request_read_bytes", "_response_read_bytes", "_splice_up",
            "_splice_down", "_sink_taken", "_progress_wanted", "_draining", "_patience", "last_activity_s",
            "_splice_min_bytes",
        )
    )
    B_free, B_recent, B_at, B_baseline, B_round_trip = (
        offset(request_time.RequestTime, name) for name in ("free_ms", "_recent", "_at", "_baseline", "round_trip_ms")
    )
    H_counts, H_sum = (offset(observer.Histogram, name) for name in ("counts", "sum_s"))
    E_since = offset(reactor.Reactor, "since_ms")
    V_pipe, V_inside = (offset(splice.Splice, name) for name in ("_pipe", "inside"))
    I_read, I_write, I_size = (offset(splice.Pipe, name) for name in ("read_fd", "write_fd", "size_bytes"))

    WAITED_S, SHARE_S = reactor.WAITED_S, sockets.SHARE_S
    HANDOVER_MS, LEAST_MS, MS_PER_BYTE = request_time.HANDOVER_MS, request_time.LEAST_MS, request_time.MS_PER_BYTE
    RECENT = request_time.RECENT
    LEAST_READ_BYTES, POOL_SIZE = sockets.LEAST_READ_BYTES, splice.POOL_SIZE
    MAX_HELD_REQUEST_BYTES = request_side.MAX_HELD_REQUEST_BYTES
    FETCH_UPSTREAM = responses.fetch_version_upstream(schema.APIS[FETCH][2])
    MAX_HELD_IN_FLIGHT_BYTES = sizes.MAX_HELD_IN_FLIGHT_BYTES
    PRODUCE_MAX, FETCH_MAX = schema.APIS[PRODUCE][2], schema.APIS[FETCH][2]
    known = (turns.TURNS_BEFORE_CHECKPOINT, splice.SHARE, schema.APIS[PRODUCE][3], schema.APIS[FETCH][3])
    if known != (TURNS, SPLICES, PRODUCE_FIRST_FLEXIBLE, FETCH_FIRST_FLEXIBLE):
        raise TypeError(f"other constants than are known here: {known}")
    if (apis.PRODUCE, apis.FETCH) != (PRODUCE, FETCH) or PRODUCE not in request_time.NEVER_WAIT:
        raise TypeError("Produce and Fetch are not what is known here")
    buckets = observer.LATENCY_BUCKETS_S
    N_BUCKETS = len(buckets)
    if N_BUCKETS > MOST_BUCKETS:
        raise TypeError(f"{N_BUCKETS} buckets of latency, at most {MOST_BUCKETS} are known here")
    for number, bound_s in enumerate(buckets):
        BUCKETS_S[<int>number] = bound_s
    Kind_PRODUCE, Kind_REQUEST, Kind_FETCH = entity.Kind.PRODUCE, entity.Kind.REQUEST, entity.Kind.FETCH
    pause = turns.Pause
    Pause_FULL, Pause_SPLICE_FULL, Pause_ANSWERS = pause.FULL, pause.SPLICE_FULL, pause.ANSWERS
    Pause_TAKEN, Pause_ENDED = pause.TAKEN, pause.ENDED
    AGAIN, IDLE, NOBODY = reactor.AGAIN, sasl._State.IDLE, login.NOBODY
    Pending_type = exchange.Pending
    client_failed, broker_failed, send_now = errors.client_failed, errors.broker_failed, sockets.send_now
    bound = True


# ---- quotas -------------------------------------------------------------------------------------------------------------

cdef inline bint owes(Meter meter) noexcept:
    """Whether the meter's counter may keep requests waiting (`Group.hold`)."""
    cdef Group group = meter.group
    return group is not None and group.may_hold


# ---- the event loop -----------------------------------------------------------------------------------------------------

cdef class Turn:
    """What a watch calls: one direction of a lane."""

    cdef Lane lane
    cdef bint up

    def __init__(self, Lane lane, bint up):
        self.lane = lane
        self.up = up

    cdef inline object take(self):
        return self.lane.client_turn() if self.up else self.lane.broker_turn()

    def __call__(self):
        return self.take()


cdef class Loop:
    """`Reactor.before_io_wait` and `Reactor._round`, for a reactor that waits together with trio."""

    cdef object reactor, watches, again, late, runner, courtesy
    cdef int epoll, trio_fd, timer
    cdef set paired
    cdef double clock_s, told_s, quick_s
    cdef readonly double since_ms
    cdef void *events

    def __cinit__(self):
        self.timer = -1  # first: __dealloc__ runs also if there is no memory
        self.events = PyMem_Malloc(KQ_EVENT_BYTES * MAX_EVENTS)
        if self.events == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.events)
        if self.timer >= 0:
            c_close(self.timer)

    def __init__(self, reactor, runner, int epoll, int trio_fd, double clock_s):
        """`clock_s` is what trio's clock is ahead of CLOCK_MONOTONIC (`SystemClock.offset`)."""
        bind()
        self.reactor, self.watches, self.again, self.late = reactor, reactor._watches, reactor.again, reactor._late
        self.runner, self.courtesy = runner, reactor.courtesy
        self.quick_s = -INFINITY
        self.epoll, self.trio_fd, self.clock_s = epoll, trio_fd, clock_s
        self.paired = set()
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.timer >= 0:
            try:
                reactor._epoll.register(self.timer, EPOLLIN)
            except OSError:  # no memory, too many watches: nobody pairs
                c_close(self.timer)
                self.timer = -1

    cdef inline double now(self) noexcept nogil:
        cdef timespec time
        clock_gettime(CLOCK_MONOTONIC, &time)
        return self.clock_s + (time.tv_sec + time.tv_nsec * 1e-9)

    cdef int watch_room(self, int fd) noexcept:
        """Be told of room in a socket that was full, too. 0, or -1 if the kernel would not."""
        return kq_watch_room(self.epoll, fd)

    def before_io_wait(self, double timeout):
        """See `Reactor.before_io_wait`."""
        cdef double now_s = self.now(), until_s, wait_s
        cdef bint found
        if timeout <= 0.0:
            self.round(0.0, now_s)
            return
        runner = self.runner
        runq = runner.runq
        until_s = now_s + timeout
        while True:
            wait_s = 0.0 if self.again else until_s - now_s
            if self.late:
                wait_s = min(wait_s, max(0.0, <double>self.late[0][0] - now_s))
            found = self.round(wait_s, now_s)
            now_s = self.now()
            if found or runq or now_s >= until_s:
                runner.io_manager.force_wakeup()
                if not is_false(self.courtesy, Y_gives):
                    self.courtesy.give_way(False)
                return

    cdef bint round(self, double wait_s, double asked_s) except -1:
        cdef int count, i, fd, wait_ms
        cdef double now_s
        cdef Py_ssize_t left
        cdef bint found = False, wanted
        cdef PyObject *entry
        if wait_s > 0.0:  # `Courtesy.before_wait`
            wanted = whole(self.courtesy, Y_halfway) > 0 and asked_s - self.quick_s > QUIET_S
            if wanted == is_false(self.courtesy, Y_gives):
                self.courtesy.give_way(wanted)
        wait_ms = 2147483647 if wait_s > 2e6 else <int>ceil(wait_s * 1000.0)
        with nogil:  # also where it does not wait: other threads get on here
            count = kq_epoll_wait(self.epoll, self.events, MAX_EVENTS, wait_ms)
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, "epoll_wait")
            PyErr_CheckSignals()
            count = 0
        now_s = self.now()
        self.since_ms = (now_s if now_s - asked_s > WAITED_S else self.told_s) * 1000.0
        self.told_s = now_s
        put(self.reactor, E_since, self.since_ms)
        left = len(self.again)
        for i in range(count):
            fd = kq_event_fd(self.events, i)
            if fd == self.trio_fd:
                found = True
                self.quick_s = now_s
                continue
            if fd == self.timer:
                self.tick()
                continue
            entry = PyDict_GetItemWithError(self.watches, fd)
            if entry != NULL:
                self.serve(<object>entry, kq_event_flags(self.events, i))
        while left:
            left -= 1
            self.again.popleft().run_again()
        if self.late and <double>self.late[0][0] <= now_s:
            self.reactor._call_back(now_s)
        return found

    cdef bint pair(self, Lane lane) except -1:
        """Look at this lane each `TICK_NS` from now on. False: that can not be."""
        if self.timer < 0 or (not self.paired and kq_tick(self.timer, TICK_NS)):
            return False
        self.paired.add(lane)
        return True

    cdef int part(self, Lane lane) except -1:
        self.paired.discard(lane)
        if not self.paired:
            kq_tick(self.timer, 0)
        return 0

    cdef int tick(self) except -1:
        cdef Lane lane
        cdef uint64_t ticks
        if c_read(self.timer, &ticks, sizeof(ticks)) < 0:  # the kernel goes on only once it has been read
            return 0
        for one in tuple(self.paired):
            lane = <Lane>one
            if lane.is_stuck():
                put(lane.client_watch, W_readable, True)
                self.take_turn(lane.client_watch)
        return 0

    cdef int serve(self, object watch, uint32_t flags) except -1:
        cdef object turn = get(watch, W_turn)
        cdef Lane lane
        if self.told_s - real(watch, W_rest) > QUIET_S:
            self.quick_s = self.told_s
        if type(turn) is Turn:
            lane = (<Turn>turn).lane
            if flags & <uint32_t>(EPOLLOUT | EPOLLHUP | EPOLLERR):
                # There is room (or nobody will ever make any): who waited for it is the other socket's reader.
                if (<Turn>turn).up:
                    if lane.down_waits:
                        self.take_turn(lane.broker_watch)
                elif lane.up_waits:
                    self.take_turn(lane.client_watch)
            if not flags & <uint32_t>(EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                return 0
        put(watch, W_readable, True)
        if flags & <uint32_t>(EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            put(watch, W_over, True)
        return self.take_turn(watch)

    cdef int take_turn(self, object watch) except -1:
        """`Watch.run`, with no Python call where the turn is a lane's."""
        cdef object turn = get(watch, W_turn)
        if type(turn) is not Turn:
            watch.run()
            return 0
        try:
            result = (<Turn>turn).take()
        except BaseException as error:
            watch.failed(error)
        else:
            if result is not None:
                watch.ended(result)
        return 0


cdef uint8_t *address(object view) except NULL:
    """Of the bytes of a memoryview, which are there as long as it is."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
    at = <uint8_t *>buffer.buf
    PyBuffer_Release(&buffer)
    return at


# ---- one connection pair ------------------------------------------------------------------------------------------------

cdef enum Moved:
    MOVED_ALL
    MOVED_EMPTY
    MOVED_FULL
    MOVED_SHARE
    MOVED_ENDED
    MOVED_NO_PIPE


cdef inline bint follows(object walker, object watch, long long skip, long long splice_min) except -1:
    """The rest of a large frame comes at once, by `move`: it shall share a packet with what is sent now (MSG_MORE)."""
    return (
        skip > 0
        and not is_false(watch, W_readable)
        and skip >= splice_min
        and is_false(walker, F_dropping)
        and is_none(walker, F_scrub)
    )


cdef inline int count(object counts, object key) except -1:
    """counts[key] += 1, for a Counter or a defaultdict of int."""
    cdef PyObject *old = PyDict_GetItemWithError(counts, key)
    return PyDict_SetItem(counts, key, ONE if old == NULL else <object>old + ONE)


cdef int failed(object make, int number) except -1:
    error = OSError(number, os.strerror(number))
    raise make(error) from error


cdef class Lane:
    """The two turns of one connection pair (`proxy.io.turns.Turns`), over plain sockets and channels of OpenSSL's."""

    cdef object turns, session, exchange, requests, responses, up, down, counters, reactor, clock
    cdef Ledger ledger
    cdef object inflight, append, popleft, time, latency, counted
    cdef object client_watch, broker_watch, broker
    cdef object view
    cdef uint8_t *buffer
    cdef Loop loop
    cdef int client_fd, broker_fd
    cdef Channel client_tls, broker_tls  # None: plain
    cdef long max_frame_bytes, max_header_bytes, most_bytes
    cdef bint rewrites
    # Whether a full socket is waited for here, by the loop; else by the pump's task. And what is waited for: room for
    # what a turn has left over (`_to_broker`, `_to_client`) or has in a pipe.
    cdef public bint waits_here
    cdef readonly bint up_waits, down_waits
    cdef Py_ssize_t fetched  # size of the latest Fetch response
    # Pairs: more than how many bytes are waited for (0: anything is told), whether that has come since the last tick,
    # when the last request was read (-INFINITY: not a whole Produce request, or more behind it), requests close to each
    # other from one try to the next, and how many of them are still to come.
    cdef readonly int waits_for_bytes
    cdef bint came
    cdef double read_s
    cdef Py_ssize_t produce_bytes  # size of the latest Produce request
    cdef readonly int apart
    cdef int to_go
    # The client that sent the last request, as `RequestSide` has it, and what is needed of it.
    cdef object name
    cdef Account account
    cdef Meter of_produce, of_requests
    # What is said besides a result: the rest of the frame that was judged, and answers whose turn has come.
    cdef long long rest
    cdef list answers, free
    cdef object pool

    def __init__(self, turns, client_watch):
        """For a pair whose broker is not connected to yet (`connected`)."""
        bind()
        session = turns.session
        shared = turns._shared
        self.turns, self.session, self.client_watch = turns, session, client_watch
        self.exchange, self.requests, self.responses = session.exchange, session._requests, session._responses
        self.up, self.down = session.request_frames, session.response_frames
        self.ledger, self.counters = self.exchange.ledger, self.exchange.counters
        self.inflight, self.time = self.exchange.inflight, self.exchange.request_time
        self.append, self.popleft = self.inflight.append, self.inflight.popleft
        self.latency, self.counted = self.counters.upstream_latency, self.counters.requests
        self.reactor = shared.reactor
        self.loop = self.reactor.loop
        self.clock = self.reactor.clock
        self.pool, self.free = shared.pipes, shared.pipes._free
        self.view = shared.buffer
        self.buffer = address(shared.buffer)
        self.most_bytes = len(shared.buffer)
        sizes = self.requests._sizes
        self.max_frame_bytes, self.max_header_bytes = sizes.max_frame_bytes, sizes.max_header_bytes
        self.rewrites = self.exchange.translate is not None
        self.client_fd = turns._client.fileno()
        self.client_tls = getattr(turns._client, "channel", None)
        self.broker_fd = -1
        self.waits_here = False
        self.read_s = -INFINITY
        self.apart = self.to_go = FIRST_TRY
        self.produce_bytes = PAIR_BYTES + 1

    def connected(self, broker, broker_watch):
        """The broker's socket, and its watch."""
        self.broker, self.broker_watch = broker, broker_watch
        self.broker_tls = getattr(broker, "channel", None)
        self.broker_fd = broker.fileno()
        if self.loop is not None:
            self.waits_here = not (self.loop.watch_room(self.client_fd) or self.loop.watch_room(self.broker_fd))

    def requests_turn(self):
        """What the client's watch is to call."""
        return Turn(self, True)

    def responses_turn(self):
        """What the broker's watch is to call."""
        return Turn(self, False)

    def close(self):
        """The connection has ended: let go of it. (Turns and lane hold each other.)"""
        self.part()
        self.turns = self.session = self.client_watch = self.broker_watch = self.account = self.of_produce = None
        self.of_requests = self.answers = self.client_tls = self.broker_tls = None

    cdef inline double now(self) except? -1.0:
        return self.loop.now() if self.loop is not None else <double>self.clock()

    # ---- two requests for one wake-up (ADR 0025) ----------------------------------------------------------------------
    #
    # A producer with several requests under way sends the next one whether or not the last is answered. Each that is
    # passed on at once wakes a thread of the broker's, which puts aside what it was doing, answers, and sleeps again. Two
    # that are passed on together wake it once. So the kernel tells of requests on such a connection only when there is
    # more than one (SO_RCVLOWAT), which wakes this thread less often as well, and each `TICK_NS` somebody looks whether a
    # single one is waiting, for at most twice that.
    #
    # Which connections those are shows by trying: nobody who waits for an answer sends a second request before it. A try
    # that fails has cost one request that time, and the next is made after twice as many requests as this one.

    cdef int note_read(self, double now_s, ssize_t received, long long skip) except -1:
        """All there was has been read, `received` bytes, from `now_s` on; of the last request `skip` bytes are to come."""
        cdef bint whole_produce
        cdef double before_s = self.read_s
        if self.client_tls is not None:
            return 0  # the kernel knows encrypted bytes only
        whole_produce = not skip and self.ended_with_produce()
        self.read_s = now_s if whole_produce else -INFINITY
        if self.waits_for_bytes:
            if not whole_produce or not is_false(self.client_watch, W_over):
                self.part()
            elif received > self.waits_for_bytes:
                self.apart = 0
                self.came = True
                if self.produce_bytes > self.waits_for_bytes:
                    self.wait_for(<int>self.produce_bytes)
        elif whole_produce and now_s - before_s <= CLOSE_S and self.produce_bytes <= PAIR_BYTES:
            self.to_go -= 1
            if self.to_go < 0:
                self.pair()
        return 0

    cdef inline bint ended_with_produce(self) except -1:
        cdef Py_ssize_t count = len(self.inflight)
        if count == 0 or not is_none(self.up, F_held) or not is_false(self.up, F_stopped):
            return False
        key = <object>peek(self.inflight[count - 1], P_key)
        return key is KEY_PRODUCE or key == KEY_PRODUCE

    cdef int pair(self) except -1:
        """Be told only of more than a request like the last one."""
        self.to_go = max(self.apart, NEXT_TRY)
        if self.loop is not None and self.loop.pair(self):
            self.came = True
            self.wait_for(<int>self.produce_bytes)
        return 0

    cdef int wait_for(self, int count) except -1:
        self.waits_for_bytes = count
        if kq_tell_from(self.client_fd, count + 1):
            self.part()  # the kernel would not
        return 0

    cdef int part(self) except -1:
        """Be told of whatever comes. (The kernel does that at once of what is there.)"""
        if self.waits_for_bytes:
            self.waits_for_bytes = 0
            self.loop.part(self)
            kq_tell_from(self.client_fd, 1)
        return 0

    cdef bint is_stuck(self) except -1:
        """No pair has come for the time from one tick to the next: pairs no more. Whether a request waits alone."""
        cdef bint alone
        if self.came:
            self.came = False
            return False
        alone = kq_unread(self.client_fd) > 0
        if alone:
            self.apart = min(2 * self.apart + 2, LATEST_TRY)
        self.to_go = max(self.apart, NEXT_TRY)
        self.part()
        return alone

    # ---- client -> broker ---------------------------------------------------------------------------------------------

    cdef inline bint logging_in(self) except -1:
        """A login is under way, or its next message has no header: nothing is ordinary meanwhile."""
        cdef object watch
        if is_none(self.exchange, X_logins):
            return False
        watch = <object>peek(<object>peek(self.exchange, X_logins), L_watch)
        return peek(watch, S_state) != <PyObject *>IDLE or not is_false(watch, S_raw)

    cdef inline bint requests_ordinary(self, double now_ms) except -1:
        cdef object exchange = self.exchange, up = self.up
        return (
            self.broker_fd >= 0
            and real(exchange, X_mute) <= now_ms
            and is_none(self.turns, T_patience)
            and is_false(self.turns, T_draining)
            and is_false(up, F_stopped)
            and is_false(exchange, X_waits)
            and is_none(up, F_held)
            and is_false(up, F_dropping)
            and is_none(up, F_scrub)
            and is_none(self.requests, R_backlog)
            and is_none(exchange, X_outcome)
            and is_none(self.requests, R_waiting)
            and not self.logging_in()
        )

    cdef object client_turn(self):
        """`Turns._client_turn`, while everything is ordinary."""
        cdef object turns = self.turns, up = self.up, watch = self.client_watch, buffers
        cdef double now_s, now_ms, took_s
        cdef long long skip, splice_min
        cdef long wanted
        cdef ssize_t received
        cdef Py_ssize_t taken
        cdef bint others_next = False, readable, more
        cdef int n
        cdef Moved moved
        if turns is None:
            return Pause_ENDED  # closed
        if self.up_waits:
            if not self.flush_up():
                return None
            if self.answers_due():
                return Pause_ANSWERS
        for n in range(TURNS):
            now_s = self.now()
            now_ms = now_s * 1000.0
            if not self.requests_ordinary(now_ms):
                self.part()
                return turns._client_turn()
            skip = whole(up, F_skip)
            splice_min = whole(turns, T_splice_min)
            readable = not is_false(watch, W_readable)
            splice = <object>peek(turns, T_up)
            if (skip and readable and skip >= splice_min > 0) or whole(splice, V_inside):
                moved = self.move(splice, self.client_fd, self.broker_fd, skip, True, client_failed, broker_failed)
                if moved == MOVED_ALL or moved == MOVED_SHARE:
                    continue
                if moved == MOVED_EMPTY:
                    put(watch, W_readable, False)
                    return None
                if moved == MOVED_FULL:
                    if not self.waits_here:
                        return Pause_SPLICE_FULL
                    self.up_waits = True
                    return None
                if moved == MOVED_ENDED:
                    return Pause_ENDED
            if not readable:
                return None
            wanted = whole(turns, T_request_read)
            received = self.receive(self.client_fd, self.client_tls, wanted, watch, client_failed)
            if received < 0:
                return None
            if received == 0:
                return Pause_ENDED
            put(turns, T_activity, now_s)
            taken = self.walk_requests(received, now_ms)
            buffers = None
            if taken < received and is_false(up, F_stopped):
                buffers = self.session.client_bytes(self.view[taken:received], now_ms)
                if taken:
                    buffers.insert(0, self.view[:taken])
            skip = whole(up, F_skip)
            if received == wanted:
                took_s = self.now() - now_s
                put(turns, T_request_read, self.next_read_bytes(received, took_s))
                others_next = took_s > SHARE_S
                self.read_s = -INFINITY
            elif is_false(watch, W_over):
                put(watch, W_readable, False)
                self.note_read(now_s, received, skip)
            readable = not is_false(watch, W_readable)
            more = follows(up, watch, skip, splice_min)
            if buffers is not None:
                left = send_now(self.broker, buffers, broker_failed, MSG_MORE if more else 0) if buffers else None
            else:
                left = self.send(self.broker_fd, self.broker_tls, taken, more, broker_failed)
            if left is not None:
                put(turns, T_to_broker, left)
                if not self.waits_here:
                    return Pause_FULL
                self.up_waits = True
                if not self.flush_up():
                    return None
            if self.answers_due():
                return Pause_ANSWERS
            if not (readable or skip or not is_false(up, F_stopped) or not is_false(turns, T_draining)):
                return None
            if others_next:
                break
        return AGAIN

    cdef Py_ssize_t walk_requests(self, Py_ssize_t end, double now_ms) except -1:
        """`RequestSide.take` for ordinary requests. Returns how much of the buffer has been dealt with and goes on as
        it stands; what is behind it has been put aside (`stopped`), or is for the Python code to judge."""
        cdef object up = self.up
        cdef Py_ssize_t position = 0, part
        cdef long long skip = whole(up, F_skip)
        cdef bint stopped = False
        put(self.requests, R_total, whole(self.requests, R_total) + end)  # first: mutes look at it (KIP-368)
        while position < end:
            if skip:
                part = <Py_ssize_t>min(skip, <long long>(end - position))
                position += part
                skip -= part
            else:
                part = self.judge_request(position, end, now_ms)
                if part == 0:
                    break
                position += part
                skip = self.rest
            if skip == 0:
                if self.request_complete(now_ms):
                    stopped = True
                    break
        put(up, F_skip, skip)
        if stopped:
            put(up, F_stopped, True)
            if position < end:
                put(self.requests, R_backlog, bytearray(self.view[position:end]))
        elif position < end:
            put(self.requests, R_total, whole(self.requests, R_total) - (end - position))  # who judges it counts it
        return position

    cdef bint knows_client(self) except -1:
        """Whether the client of the last request is one whose name can be compared as it comes."""
        cdef object account = get(self.requests, R_account)
        if account is self.account:
            return account is not None
        self.account = None
        if account is None or account is NOBODY:
            return False
        self.of_produce, self.of_requests = account.meters[Kind_PRODUCE], account.meters[Kind_REQUEST]
        self.name = (<str?>account.identity.client_id).encode("utf-8", "surrogatepass")
        self.account = account
        return True

    cdef Py_ssize_t judge_request(self, Py_ssize_t start, Py_ssize_t end, double now_ms) except -1:
        """`RequestSide._judge` for Produce and Fetch: how many bytes of the request are here, or 0: not an ordinary one,
        or not enough of it. Sets `rest`."""
        cdef const uint8_t *at = &self.buffer[start]
        cdef bint fetches
        cdef Py_ssize_t here = end - start, total, body, position
        cdef long long size
        cdef int length, version, acks
        cdef object pending = None, requests = self.requests, account
        if here < 14 or at[4] != 0 or at[5] > FETCH:
            return 0
        fetches = at[5] == FETCH
        size = u32(at)
        version = i16(at + 6)
        if not 10 <= size <= self.max_frame_bytes or not 0 <= version <= (FETCH_MAX if fetches else PRODUCE_MAX):
            return 0
        if is_false(requests, R_established) or not self.knows_client():
            return 0
        length = i16(at + 12)
        if length < 0:
            if length < -1:
                return 0
            length = 0
        total = <Py_ssize_t>(4 + size)
        body = 14 + length + (1 if version >= (FETCH_FIRST_FLEXIBLE if fetches else PRODUCE_FIRST_FLEXIBLE) else 0)
        name = <bytes>self.name
        # 4 bytes more are enough for a transactional id that is null or short, and for acks.
        if body + 4 > here or body + 4 > total or body > self.max_header_bytes or length != len(name):
            return 0
        if memcmp(at + 14, <const char *><bytes>name, length) != 0:
            return 0
        if owes(self.of_requests):
            return 0
        if fetches:
            return self.judge_fetch(start, here, total, body, version, now_ms)
        if version >= PRODUCE_FIRST_FLEXIBLE:
            if at[body - 1] != 0 or at[body] >= 0x80:
                return 0
            position = body + (at[body] if at[body] else 1)
        elif version >= 3:
            position = i16(at + body)
            if position < -1:
                return 0
            position = body + 2 + (position if position > 0 else 0)
        else:
            position = body
        if position + 2 > here or position + 2 > total:
            return 0
        acks = i16(at + position)
        account = self.account
        if owes(self.of_produce) or (here < total and not self.may_begin(size, now_ms)):
            return 0
        if acks != 0:
            pending = self.new_pending(at, KEY_PRODUCE, version, now_ms)
            if acks == -1:
                put(pending, P_replicated, size)
        self.count_request(KEY_PRODUCE)
        if pending is not None:
            self.append(pending)
        self.produce_bytes = total
        if here >= total:
            self.rest = 0
            put(requests, R_completing, (account, size, pending))
            return total
        self.rest = total - here
        put(requests, R_completing, (account, size, pending))
        put(requests, R_unsent, pending)
        return here

    cdef bint may_begin(self, long long size, double now_ms) except -1:
        """Whether a Produce request whose last byte is still to come may be forwarded (`RequestSide._waits`)."""
        cdef Group group = self.of_produce.group
        if self.of_produce.generation != self.ledger.generation:
            return False
        if group is None or group.limit is None:
            return True
        return (<long long>group.hold(self.exchange, size, <long long>now_ms)) == 0

    cdef Py_ssize_t judge_fetch(
        self, Py_ssize_t start, Py_ssize_t here, Py_ssize_t total, Py_ssize_t body, int version, double now_ms
    ) except -1:
        """`RequestSide._fetch` for a request that is here whole, while nothing was answered for the broker. Returns as
        `judge_request`."""
        cdef uint8_t *at = &self.buffer[start]
        cdef uint8_t *most
        cdef Py_ssize_t least_at
        cdef int32_t wanted
        cdef object pending, granted
        cdef Admission admission
        cdef long long lowered
        if here < total or total > MAX_HELD_REQUEST_BYTES or version < 4:
            return 0
        if version >= FETCH_FIRST_FLEXIBLE and at[body - 1] != 0:
            return 0
        # The head of FetchRequest: replica_id (up to version 14), max_wait_ms, min_bytes, max_bytes, isolation_level, ...
        least_at = body + (4 if version >= 15 else 8)
        if least_at + (9 if version < 7 else 17) > total or <object>peek(<object>peek(self.requests, R_shaper), D_missed):
            return 0
        most = at + least_at + 4
        wanted = <int32_t>u32(most)
        admission = self.ledger.admit(self.account, Kind_FETCH, wanted, now_ms)
        if admission.throttle_ms > 0:
            put(self.requests, R_admitted, admission)
            return 0  # it is answered there, and asks the ledger no second time
        pending = self.new_pending(at, KEY_FETCH, version, now_ms)
        put(pending, P_admission, admission)
        self.count_request(KEY_FETCH)
        self.append(pending)
        granted = admission.max_bytes
        if granted is not None and granted < wanted:  # a limit as large as can be grants more than fits into 64 bits
            self.counters.fetches_shaped += 1
            lowered = max(granted, 1)
            put_u32(most, <uint32_t>lowered)
            if <int32_t>u32(at + least_at) > lowered:
                put_u32(at + least_at, <uint32_t>lowered)
        if self.rewrites and version > FETCH_UPSTREAM:
            at[6], at[7] = 0, <uint8_t>FETCH_UPSTREAM
        self.rest = 0
        return total

    cdef object new_pending(self, const uint8_t *at, object key, int version, double now_ms):
        """A `Pending` of the client, for the request whose frame is there."""
        cdef object pending = PyType_GenericAlloc(Pending_type, 0)
        put(pending, P_id, <int32_t>u32(at + 8))
        put(pending, P_key, key)
        put(pending, P_version, version)
        put(pending, P_account, self.account)
        put(pending, P_sent, now_ms)
        put(pending, P_throttle, FLOAT_ZERO)
        put(pending, P_delay, ZERO)
        put(pending, P_cause, None)
        put(pending, P_charged, None)
        put(pending, P_answer, None)
        put(pending, P_replicated, ZERO)
        put(pending, P_admission, None)
        put(pending, P_response, None)
        put(pending, P_held, ZERO)
        put(pending, P_asked, None)
        return pending

    cdef int count_request(self, object key) except -1:
        """`Exchange.count_request`."""
        cdef Account account = self.account
        count(self.counted, key)
        count(account.requests, key)
        if not account.touched:
            self.ledger.wake(account)
        return 0

    cdef bint request_complete(self, double now_ms) except -1:
        """`RequestSide._complete`; whether no further request may be judged now."""
        cdef object requests = self.requests, exchange = self.exchange, account, pending, size
        cdef tuple completing
        cdef long long delay_ms
        if not is_none(requests, R_unsent):
            put(<object>peek(requests, R_unsent), P_sent, now_ms)
            put(requests, R_unsent, None)
        if not is_none(requests, R_completing):
            completing = <tuple>get(requests, R_completing)
            put(requests, R_completing, None)
            account, size, pending = completing
            delay_ms = self.ledger.charge(account, Kind_PRODUCE, size, now_ms)
            if delay_ms > 0:
                if pending is None:
                    exchange.mute(account, Kind_PRODUCE, delay_ms, now_ms, size)
                else:
                    exchange.impose(pending, Kind_PRODUCE, delay_ms, now_ms, size)
        return (
            real(exchange, X_mute) > now_ms
            or len(self.inflight) >= whole(requests, R_max)
            or whole(exchange, X_held) > MAX_HELD_IN_FLIGHT_BYTES
            or not is_none(requests, R_waiting)
            or not is_false(exchange, X_waits)
        )

    # ---- broker -> client ---------------------------------------------------------------------------------------------

    cdef inline int expect_rest(self) except -1:
        """`Turns._expect_rest`."""
        if real(self.broker_watch, W_rest) != INFINITY:
            self.turns._expect_rest(self.broker_watch)
        return 0

    cdef inline int rest_came(self) except -1:
        """`Turns._rest_came`."""
        if real(self.broker_watch, W_rest) == INFINITY:
            self.turns._rest_came(self.broker_watch)
        return 0

    cdef object broker_turn(self):
        """`Turns._broker_turn`, while everything is ordinary."""
        cdef object turns = self.turns, down = self.down, watch = self.broker_watch, buffers
        cdef double now_s, now_ms, came_ms, took_s
        cdef long long skip, splice_min
        cdef long wanted, most
        cdef ssize_t received
        cdef Py_ssize_t taken
        cdef bint readable, more
        cdef int n
        cdef Moved moved
        if turns is None:
            return Pause_ENDED
        if self.down_waits and not self.flush_down():
            return None
        for n in range(TURNS):
            if not is_false(turns, T_taken):
                return Pause_TAKEN
            if not (
                is_none(down, F_held) and is_none(down, F_scrub) and is_false(down, F_dropping) and not self.logging_in()
            ):
                return turns._broker_turn(self.broker, watch)
            skip = whole(down, F_skip)
            splice_min = whole(turns, T_splice_min)
            readable = not is_false(watch, W_readable)
            splice = <object>peek(turns, T_down)
            if (skip and readable and skip >= splice_min > 0) or whole(splice, V_inside):
                moved = self.move(splice, self.broker_fd, self.client_fd, skip, False, broker_failed, client_failed)
                if moved == MOVED_ALL:
                    self.rest_came()
                    answers = get(turns, T_answers)
                    if answers:
                        put(turns, T_answers, [])
                    if not is_false(turns, T_wanted):
                        turns._wake_client_pump()
                    if answers:
                        left = send_now(turns._client, answers, client_failed)
                        if left is not None:
                            full = turns._take_sink(left)
                            if not self.waits_here:
                                return full
                            self.down_waits = True
                            if not self.flush_down():
                                return None
                    continue
                if moved == MOVED_SHARE:
                    continue
                if moved == MOVED_EMPTY:
                    put(watch, W_readable, False)
                    self.expect_rest()
                    return None
                if moved == MOVED_FULL:
                    self.expect_rest()
                    if not self.waits_here:
                        return Pause_SPLICE_FULL
                    self.down_waits = True
                    return None
                if moved == MOVED_ENDED:
                    return Pause_ENDED
            if not readable:
                return None
            self.rest_came()
            wanted = most = whole(turns, T_response_read)
            if skip == 0 and self.fetched >= LARGE_FETCH_BYTES and wanted > HEAD_BYTES and splice_min > 0:
                wanted = HEAD_BYTES  # another large response, probably: its head is enough here, the kernel moves the rest
            received = self.receive(self.broker_fd, self.broker_tls, wanted, watch, broker_failed)
            if received < 0:
                return None
            if received == 0:
                return Pause_ENDED
            now_s = self.now()
            now_ms = now_s * 1000.0
            put(turns, T_activity, now_s)
            came_ms = self.loop.since_ms if self.loop is not None else <double>self.reactor.since_ms
            taken = self.walk_responses(received, now_ms, came_ms)
            buffers, self.answers = self.answers, None
            if buffers is not None:
                buffers.insert(0, self.view[:taken])
            if taken < received:
                rest = self.session.broker_bytes(self.view[taken:received], now_ms, came_ms)
                if buffers is not None:
                    buffers.extend(rest)
                else:
                    buffers = rest
                    if taken:
                        buffers.insert(0, self.view[:taken])
            skip = whole(down, F_skip)
            took_s = 0.0
            if received == most:
                took_s = self.now() - now_s
                put(turns, T_response_read, self.next_read_bytes(received, took_s))
            elif received < wanted and is_false(watch, W_over):
                put(watch, W_readable, False)
            readable = not is_false(watch, W_readable)
            more = follows(down, watch, skip, splice_min)
            if buffers is not None:
                left = send_now(turns._client, buffers, client_failed, MSG_MORE if more else 0)
            else:
                left = self.send(self.client_fd, self.client_tls, taken, more, client_failed)
            if not is_false(turns, T_wanted):
                turns._wake_client_pump()
            if left is not None:
                full = turns._take_sink(left)
                if not self.waits_here:
                    return full
                self.down_waits = True
                if not self.flush_down():
                    return None
            if not (readable or skip):
                return None
            if took_s > SHARE_S:
                break
        return AGAIN

    cdef Py_ssize_t walk_responses(self, Py_ssize_t end, double now_ms, double came_ms) except -1:
        """`ResponseSide.take` for ordinary responses. Returns how much of the buffer has been dealt with and goes on as
        it stands; what is behind it is for the Python code to judge. `answers` come after it, if there are any."""
        cdef object down = self.down, responses = self.responses
        cdef Py_ssize_t position = 0, part
        cdef long long skip = whole(down, F_skip)
        put(responses, A_now, now_ms)
        put(responses, A_came, came_ms)
        while position < end:
            if skip:
                part = <Py_ssize_t>min(skip, <long long>(end - position))
                position += part
                skip -= part
            else:
                part = self.judge_response(position, end, now_ms, came_ms)
                if part == 0:
                    break
                position += part
                skip = self.rest
            if skip == 0 and self.response_complete(came_ms):
                break
        put(down, F_skip, skip)
        put(responses, A_total, whole(responses, A_total) + position)
        if self.answers_due() and skip == 0 and position:
            self.answers = responses._ready()
        return position

    cdef inline bint answers_due(self) except -1:
        return len(self.inflight) > 0 and not is_none(self.inflight[0], P_answer)

    cdef bint response_complete(self, double came_ms) except -1:
        """`ResponseSide._complete`; whether an answer made here is due now."""
        cdef double mute_ms = real(self.exchange, X_broker_mute)
        put(self.time, B_free, came_ms if came_ms > mute_ms else mute_ms)
        return self.answers_due()

    cdef Py_ssize_t judge_response(self, Py_ssize_t start, Py_ssize_t end, double now_ms, double came_ms) except -1:
        """`ResponseSide._judge` for Produce and Fetch: how many bytes of the response are here, or 0: not an ordinary
        one, or not enough of it. Sets `rest`."""
        cdef const uint8_t *at = &self.buffer[start]
        cdef Py_ssize_t here = end - start, total
        cdef long long size
        cdef int version, header = 8
        cdef object pending, account, key
        if here < 8 or not self.inflight:
            return 0
        size = <int32_t>u32(at)
        if not 4 <= size <= whole(self.responses, A_max):
            return 0
        pending = self.inflight[0]
        if (
            <int32_t>u32(at + 4) != whole(pending, P_id)
            or not is_none(pending, P_response)
            or not is_none(pending, P_asked)
            or not is_none(pending, P_answer)
            or real(pending, P_throttle) != 0.0
        ):
            return 0
        account = <object>peek(pending, P_account)
        if account is NOBODY:
            return 0
        total = <Py_ssize_t>(4 + size)
        if here > total:
            here = total
        key = <object>peek(pending, P_key)
        version = whole(pending, P_version)
        if key is KEY_PRODUCE or key == KEY_PRODUCE:
            if here < total or not self.plain_produce(at, total, version):
                return 0
        elif key == KEY_FETCH:
            header = 9 if version >= FETCH_FIRST_FLEXIBLE else 8
            if not 1 <= version <= FETCH_MAX or is_none(pending, P_admission):
                return 0
            if here < THROTTLE_HEAD_BYTES or (header == 9 and at[8] != 0) or u32(at + header) != 0:
                return 0
        else:
            return 0
        if <PyObject *>pending != peek(self.responses, A_timed):
            self.charge_time(pending, account, now_ms, came_ms)
            if real(pending, P_throttle) != 0.0:
                return 0  # its throttle has to be told
        self.popleft()
        if key == KEY_FETCH:
            self.fetched = total
            self.ledger.settle(account, Kind_FETCH, <object>peek(pending, P_admission), size - (header - 8), now_ms)
        else:
            self.note_latency(pending, now_ms)
        self.rest = total - here
        return here

    cdef bint plain_produce(self, const uint8_t *at, Py_ssize_t total, int version) except -1:
        """Whether there is neither an address to be rewritten nor a throttle of the broker's in this response: that
        of `proxy.wire.throttle.plain_produce`, with a throttle of 0."""
        cdef Py_ssize_t name, partitions, tail
        if version < PRODUCE_FIRST_FLEXIBLE:
            return version > 0 and total >= 13 and u32(at + total - 4) == 0
        if total < 52 or version > PRODUCE_MAX:
            return False
        name = at[10] if version < PRODUCE_FIRST_TOPIC_ID else 16
        partitions = 10 + name
        tail = partitions + 31
        return (
            tail + 9 == total
            and name < 0x80
            and at[8] == 0
            and at[9] == 2
            and at[partitions] == 2
            and at[tail] == 1
            and at[tail + 1] == 0
            and at[tail + 2] == 0
            and at[tail + 3] == 0
            and u32(at + tail + 4) == 0
            and at[tail + 8] == 0
        )

    cdef int charge_time(self, object pending, object account, double now_ms, double came_ms) except -1:
        """`ResponseSide._charge_time` and `RequestTime.busy_ms`."""
        cdef object time = self.time, busy, recent
        cdef double free_ms = real(time, B_free), sent_ms = real(pending, P_sent), start_ms, unused_ms, busy_ms, most_ms
        cdef long long place, replicated
        cdef long long delay_ms
        put(self.responses, A_timed, pending)
        if free_ms > sent_ms:
            start_ms = free_ms
            unused_ms = HANDOVER_MS
        else:
            start_ms = sent_ms
            unused_ms = real(time, B_round_trip) + HANDOVER_MS
        busy_ms = came_ms - start_ms - unused_ms
        if busy_ms < LEAST_MS:
            busy_ms = min(LEAST_MS, max(now_ms - start_ms, 0.0))
        replicated = whole(pending, P_replicated)
        if <object>peek(pending, P_key) == KEY_PRODUCE and not replicated:
            place = whole(time, B_at)
            recent = <object>peek(time, B_recent)
            recent[place] = busy_ms
            put(time, B_at, place + 1 if place < RECENT - 1 else 0)
            put(time, B_baseline, None)
        else:
            most_ms = time.baseline_ms if is_none(time, B_baseline) else real(time, B_baseline)
            if replicated:
                most_ms += replicated * MS_PER_BYTE
            busy_ms = min(busy_ms, most_ms)
        if busy_ms <= 0.0:
            return 0
        busy = busy_ms
        delay_ms = self.ledger.charge(account, Kind_REQUEST, busy, now_ms)
        if delay_ms > 0:
            self.exchange.impose(pending, Kind_REQUEST, delay_ms, now_ms, busy)
        return 0

    cdef int note_latency(self, object pending, double now_ms) except -1:
        """`ResponseSide._latency_ms` into `Histogram.add`."""
        cdef double seconds = max(now_ms - max(real(pending, P_sent), real(self.exchange, X_broker_mute)), 0.0) / 1000.0
        cdef int place = 0
        cdef object counts = <object>peek(self.latency, H_counts)
        while place < N_BUCKETS and BUCKETS_S[place] < seconds:
            place += 1
        counts[place] = counts[place] + ONE
        put(self.latency, H_sum, real(self.latency, H_sum) + seconds)
        return 0

    # ---- both ---------------------------------------------------------------------------------------------------------

    cdef ssize_t receive(self, int source, Channel tls, long wanted, object watch, object source_failed) except? -2:
        """Read into the buffer. 0 at the end of the stream; -1: there is nothing now, which the watch knows then."""
        cdef ssize_t received
        if tls is not None:
            try:
                received = tls.read_into(<char *>self.buffer, wanted)
            except OSError as error:
                raise source_failed(error) from error
            if received < 0:
                put(watch, W_readable, False)
            return received
        received = c_recv(source, self.buffer, wanted, MSG_DONTWAIT)
        while received < 0 and errno == EINTR:
            received = c_recv(source, self.buffer, wanted, MSG_DONTWAIT)
        if received < 0:
            if errno != EAGAIN:
                failed(source_failed, errno)
            put(watch, W_readable, False)
        return received

    cdef object send(self, int sink, Channel tls, Py_ssize_t count, bint more, object sink_failed):
        """Send the beginning of the buffer; a copy of what was not taken, None if all was."""
        cdef ssize_t sent
        if count == 0:
            return None
        if tls is not None:
            sent = self.send_by(tls, <const char *>self.buffer, count, sink_failed)
            return None if sent == count else bytes(self.view[sent:count])
        sent = c_send(sink, self.buffer, count, MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if more else 0))
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                failed(sink_failed, errno)
            sent = 0
        return None if sent == count else bytes(self.view[sent:count])

    cdef bint flush_up(self) except -1:
        """What was left over for the broker, as far as there is room. False: it is still full, which the loop will tell.
        (What is in the pipe is the turn's own to go on with.)"""
        cdef object left = get(self.turns, T_to_broker)
        if left:
            left = self.flush(self.broker_fd, self.broker_tls, left, broker_failed)
            put(self.turns, T_to_broker, left)
            if left:
                return False
        self.up_waits = False
        return True

    cdef bint flush_down(self) except -1:
        """As `flush_up`, for the client. Others may send to it as well, once this is through (`_take_sink`)."""
        cdef object left
        if not is_false(self.turns, T_taken):
            left = self.flush(self.client_fd, self.client_tls, get(self.turns, T_to_client), client_failed)
            put(self.turns, T_to_client, left)
            if left:
                return False
            self.turns._release_sink()
        self.down_waits = False
        return True

    cdef Py_ssize_t send_by(self, Channel tls, const char *data, Py_ssize_t count, object sink_failed) except -1:
        try:
            return tls.send_from(data, count)
        except OSError as error:
            raise sink_failed(error) from error

    cdef bytes flush(self, int sink, Channel tls, bytes left, object sink_failed):
        """Send until the kernel says that it is full: only then does it tell of room. Returns the rest."""
        cdef const char *data = left
        cdef Py_ssize_t done = 0, total = len(left)
        cdef ssize_t sent
        if tls is not None:
            return left[self.send_by(tls, data, total, sink_failed) :]
        while done < total:
            sent = c_send(sink, data + done, total - done, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                done += sent
            elif errno == EAGAIN:
                break
            elif errno != EINTR:
                failed(sink_failed, errno)
        return left[done:] if done else left

    cdef long next_read_bytes(self, long last_bytes, double took_s) noexcept:
        """`proxy.io.sockets.next_read_bytes`."""
        if took_s > SHARE_S:
            return max(last_bytes // 2, LEAST_READ_BYTES)
        return min(last_bytes * 2, self.most_bytes) if took_s < SHARE_S / 4 else last_bytes

    cdef Moved move(
        self, object splice, int source, int sink, long long count, bint up, object source_failed, object sink_failed
    ) except *:
        """`Splice.step`, with what `Turns` does for each part that has reached the other side."""
        cdef object pipe = get(splice, V_pipe)
        cdef long long inside = whole(splice, V_inside), size
        cdef ssize_t got
        cdef int number, read_fd, write_fd
        cdef bint source_empty
        cdef Moved moved = MOVED_SHARE
        if pipe is None:
            if PyList_GET_SIZE(self.free):
                pipe = self.free.pop()
            else:
                pipe = self.pool.take()
                if pipe is None:
                    return MOVED_NO_PIPE
        read_fd, write_fd, size = whole(pipe, I_read), whole(pipe, I_write), whole(pipe, I_size)
        try:
            for _ in range(SPLICES):
                source_empty = False
                if count > inside and inside < size:
                    got = c_splice(
                        source, NULL, write_fd, NULL, min(count - inside, size), SPLICE_F_NONBLOCK | SPLICE_F_MOVE
                    )
                    if got < 0:
                        number = errno
                        if number != EAGAIN and number != EINTR:
                            failed(source_failed, number)
                        source_empty = True
                    elif got == 0:
                        moved = MOVED_ENDED
                        break
                    else:
                        inside += got
                if inside:
                    got = c_splice(
                        read_fd, NULL, sink, NULL, inside,
                        SPLICE_F_NONBLOCK | SPLICE_F_MOVE | (SPLICE_F_MORE if count > inside else 0),
                    )
                    if got < 0:
                        number = errno
                        if number == EINTR:
                            continue
                        if number != EAGAIN:
                            failed(sink_failed, number)
                        moved = MOVED_FULL
                        break
                    inside -= got
                    count -= got
                    if up:
                        self.request_moved(got)
                    else:
                        self.response_moved(got)
                    if count == 0:
                        moved = MOVED_ALL
                        break
                elif source_empty:
                    moved = MOVED_EMPTY
                    break
        finally:
            put(splice, V_inside, inside)
            if inside:
                put(splice, V_pipe, pipe)
            else:
                put(splice, V_pipe, None)
                if PyList_GET_SIZE(self.free) < POOL_SIZE:
                    self.free.append(pipe)
                else:
                    self.pool.give_back(pipe, is_empty=True)
        return moved

    cdef int request_moved(self, ssize_t part) except -1:
        """`Turns._request_moved`."""
        cdef object up = self.up, requests = self.requests
        cdef double now_s = self.now()
        cdef long long skip = whole(up, F_skip) - part
        put(self.turns, T_activity, now_s)
        put(requests, R_total, whole(requests, R_total) + part)
        put(up, F_skip, skip)
        if skip == 0 and self.request_complete(now_s * 1000.0):
            put(up, F_stopped, True)
        return 0

    cdef int response_moved(self, ssize_t part) except -1:
        """`Turns._response_moved`."""
        cdef object down = self.down, responses = self.responses
        cdef double now_s = self.now(), now_ms
        cdef long long skip = whole(down, F_skip) - part
        put(self.turns, T_activity, now_s)
        put(responses, A_total, whole(responses, A_total) + part)
        put(down, F_skip, skip)
        if skip == 0:
            now_ms = now_s * 1000.0
            put(responses, A_now, now_ms)
            put(responses, A_came, now_ms)
            if self.response_complete(now_ms):
                (<object>peek(self.turns, T_answers)).extend(responses._ready())
        return 0
