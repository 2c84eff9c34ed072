"""The rounds of the event loop: wait for events on all watched sockets, and run their callbacks.

`proxy.net.io.reactor` says how this fits below trio. A watch's callback (`Watch.callback`) runs when its socket is
ready, and does what can be done without blocking.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

import outcome
import trio

from proxy.core.telemetry import long_turns
from proxy.core.telemetry.long_turns import LongTurns
from proxy.net.io import calls
from proxy.net.io.sched_policy import QUIET_S, SchedPolicy

WAITED_S: Final = 30e-6
"""A poll that does not block takes less (about 5 µs measured, 12 µs with 32 sockets ready)."""
LATE_AT_ONCE: Final = 16
"""Callbacks whose deadline has come, one after the other, before sockets are polled again. Mutes of many connections
may end together; connections that are not muted must not wait for all of them."""
AGAIN_AT_ONCE: Final = 2
"""Callbacks that run again after AGAIN, one after the other, before sockets are polled again. Who had a share already
waits for those that had none: each of these may use a millisecond, and there may be one for every connection."""
NEVER: Final = float("inf")
LONG_S: Final = long_turns.LONG_S
MARK_S: Final = long_turns.MARK_S
OVER: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
READABLE: Final = select.EPOLLIN | OVER
ROOM: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
"""A socket that was full is writable, or never will be again."""
WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT | select.EPOLLET


class Again:
    """See `AGAIN`."""


AGAIN: Final = Again()
"""Result of a callback that has used up its share of time while there may be more to do: others come first."""


class Clock:
    """The same time as `trio.current_time`, with fewer calls to get it."""

    __slots__ = ("_ahead_s", "_source")

    def __init__(self, source: Callable[[], float] | None, ahead_s: float = 0.0) -> None:
        """`source` returns the time; None: it is CLOCK_MONOTONIC plus `ahead_s`."""
        self._source = source
        self._ahead_s = ahead_s

    def now_s(self) -> float:
        """The current time."""
        return self._ahead_s + calls.monotonic_s() if self._source is None else self._source()


class Watch:
    """One socket that is watched from `Reactor.watch` until `close`."""

    __slots__ = ("_fd", "_round", "back_s", "callback", "over", "queued", "readable", "rest_s", "room_for", "task")

    def __init__(self, loop: Round, fd: int) -> None:
        self._round = loop
        self._fd = fd
        self.readable = True
        """The socket may be readable. A read that would block sets it to False, and so may a short read, unless
        `over`."""
        self.over = False
        """The peer has closed its side; reported once, perhaps together with its last bytes."""
        self.callback: Callable[[], Any] | None = None
        """The callback to run when the socket is ready."""
        self.room_for: Watch | None = None
        """The watch whose callback found this socket full, to be run once it is writable."""
        self.task: Any = None
        """The task that waits for the callback's result."""
        self.queued = False
        """It runs again after AGAIN, when the turn comes to it and not before."""
        self.back_s = NEVER
        """When to run the callback again if there is no event before (`trio.current_time`)."""
        self.rest_s = -NEVER
        """NEVER while the rest of a large response is outstanding; otherwise when the last one was complete."""

    def run(self) -> None:
        """The socket is ready, or the deadline has come: run the callback."""
        callback = self.callback
        if callback is not None:
            try:
                result = callback()
            except BaseException as error:
                self.callback = None
                trio.lowlevel.reschedule(self.task, outcome.Error(error))
            else:
                if result is None:
                    return
                if result is AGAIN:
                    self.go_on_later()
                else:
                    self.callback = None
                    trio.lowlevel.reschedule(self.task, outcome.Value(result))

    def run_again(self) -> None:
        """Run the callback again after AGAIN."""
        self.queued = False
        self.run()

    def go_on_later(self) -> None:
        """Run the callback again after the others."""
        if not self.queued:
            self.queued = True
            self._round.again.append(self)

    def come_back(self, at_s: float) -> None:
        """Run the callback again at this time (`trio.current_time`), which replaces any earlier one.

        Called by a callback that then returns None. If the task is busy elsewhere at that time, nothing runs: `take`
        begins by calling the callback anyway.
        """
        if at_s != self.back_s:
            self.back_s = at_s
            self._round.come_back(at_s, self)

    def expect_rest(self) -> None:
        """The head of a large response has passed; the rest can wait for others (`proxy.net.io.sched_policy`)."""
        if self.rest_s != NEVER:
            self.rest_s = NEVER
            self._round.sched_policy.halfway += 1

    def rest_came(self, now_s: float) -> None:
        """The rest of the large response has passed, if there was one."""
        if self.rest_s == NEVER:
            self.rest_s = now_s
            self._round.sched_policy.halfway -= 1

    def close(self) -> None:
        """Stop watching. Must be called before the socket is closed."""
        self.rest_came(-NEVER)
        self.back_s = NEVER
        self._round.forget(self._fd)
        self.callback = self.task = self.room_for = None


class Round:
    """All watched sockets of one event loop, served round by round."""

    __slots__ = (
        "_left_s",
        "_marked_s",
        "_number",
        "_served",
        "again",
        "clock",
        "force_wakeup",
        "late",
        "on_sooner",
        "poller",
        "runq",
        "sched_policy",
        "since_ms",
        "told_s",
        "trio_fd",
        "turns",
        "watches",
    )

    def __init__(self, clock: Clock, turns: LongTurns | None = None) -> None:
        self.turns = LongTurns() if turns is None else turns
        self._marked_s = -NEVER
        """When CPU time was read last."""
        self._left_s = NEVER
        """When trio went on with its tasks."""
        self._served = 0
        """Events of the latest turn."""
        self.poller = calls.Poller()
        self.clock = clock
        self.sched_policy = SchedPolicy()
        self.watches: dict[int, Watch] = {}
        self.again: deque[Watch] = deque()
        """Watches whose callback returned AGAIN."""
        self.late: list[tuple[float, int, Watch]] = []
        """A heap of deadlines. Entries that differ from the watch's `back_s` are stale."""
        self._number = 0
        self.since_ms = 0.0
        """What is ready now arrived at this time or later; as `trio.current_time`, in ms.

        If the loop had to wait, it has just arrived; otherwise it may have arrived at any time since the previous poll.
        A response that is read late because of other connections must not count as the broker's time
        (`proxy.core.session.request_time`).
        """
        self.told_s = 0.0
        self.on_sooner: Callable[[float], None] | None = None
        """Called with each new deadline, if another task waits for the next one."""
        self.trio_fd = -1
        """trio's own epoll, if it is waited for together with ours. Then also set: trio's queue of runnable tasks, and
        the function that keeps it from blocking."""
        self.runq: Any = ()
        self.force_wakeup: Callable[[], None] | None = None

    # ---- watches ----------------------------------------------------------------------------------------------------

    def watch(self, fd: int) -> Watch:
        """Watch a non-blocking socket. Raises OSError if the kernel refuses (no memory, too many watches)."""
        self.poller.register(fd, WATCHED)
        watch = self.watches[fd] = Watch(self, fd)
        return watch

    def forget(self, fd: int) -> None:
        """Stop watching a socket."""
        if self.watches.pop(fd, None) is not None:
            self.poller.unregister(fd)

    def come_back(self, at_s: float, watch: Watch) -> None:
        """See `Watch.come_back`."""
        self._number += 1
        heappush(self.late, (at_s, self._number, watch))
        if self.on_sooner is not None:
            self.on_sooner(at_s)

    def next_s(self) -> float:
        """The next deadline."""
        return self.late[0][0] if self.late else NEVER

    def close(self) -> None:
        """Close; watches that are left are dropped."""
        self.poller.close()
        self.watches.clear()
        self.late.clear()

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """trio has nothing to run for `timeout` seconds, or (0) polls for I/O between running its tasks."""
        now_s = self.clock.now_s()
        if now_s - self._left_s > LONG_S:
            self.turns.look("tasks", self._left_s, now_s)
        if timeout <= 0.0:
            self.serve(0.0, now_s)
            self._left_s = self.told_s
            return
        until_s = now_s + timeout
        while True:
            wait_s = 0.0 if self.again else until_s - now_s
            if self.late:
                wait_s = min(wait_s, max(0.0, self.next_s() - now_s))
            found = self.serve(wait_s, now_s)
            self._left_s = now_s = self.clock.now_s()
            if now_s - self.told_s > LONG_S:
                self.turns.look("connections", self.told_s, now_s, self._served)
            if found or self.runq or now_s >= until_s:
                # trio must not block now: not for all of `timeout` again, and not for an event that it was to find,
                # which a callback may have used up in the meantime (a writable socket). Our sockets would be left
                # unserved.
                assert self.force_wakeup is not None
                self.force_wakeup()
                if self.sched_policy.gives_way:  # a thread that a task starts inherits this thread's policy
                    self.sched_policy.give_way(False)
                return

    def serve(self, wait_s: float, asked_s: float) -> bool:
        """Wait, and run the callbacks of sockets that are ready; it is `asked_s` now. True if trio has something to do
        too (nested), or if there was any event (not nested)."""
        poller = self.poller
        if wait_s > 0.0:
            self.sched_policy.before_wait(asked_s)
        count = poller.wait(wait_s)
        now_s = self.clock.now_s()
        self.since_ms = (now_s if now_s - asked_s > WAITED_S else self.told_s) * 1000.0
        self.told_s = now_s
        if now_s - self._marked_s >= MARK_S:
            self._marked_s = now_s
            self.turns.mark()
        self._served = count
        left = min(len(self.again), AGAIN_AT_ONCE)
        found = self.trio_fd < 0 and count > 0
        for event in range(count):
            fd = poller.fd_of(event)
            watch = self.watches.get(fd)
            if watch is not None:
                self._serve(watch, poller.flags_of(event))
            elif fd == self.trio_fd:
                found = True
                self.sched_policy.quick_s = now_s
        while left:
            left -= 1
            again: Watch = self.again.popleft()
            again.run_again()
        if self.late and self.next_s() <= now_s:
            self._call_back(now_s)
        return found

    def _serve(self, watch: Watch, flags: int) -> None:
        if self.told_s - watch.rest_s > QUIET_S:
            self.sched_policy.quick_s = self.told_s
        if flags & ROOM and watch.room_for is not None:
            waiting, watch.room_for = watch.room_for, None
            if not waiting.queued:
                waiting.run()
        if flags & READABLE:
            watch.readable = True
            if flags & OVER:
                watch.over = True
            if not watch.queued:
                watch.run()

    def _call_back(self, now_s: float) -> None:
        late = self.late
        for _ in range(LATE_AT_ONCE):
            at_s, _, watch = heappop(late)
            if watch.back_s == at_s:
                watch.back_s = NEVER
                watch.run()
            if not late or late[0][0] > now_s:
                return
