"""The data path's event loop: one edge-triggered epoll instance, and handlers that run where an event is found.

Each socket is registered once, with a `Handler`, which does what can be done without blocking. Edge-triggered means
that the kernel reports once that a socket is readable: `Handler.readable` remembers it until a read would block. A
handler that has to run at a certain time (the end of a mute) costs an entry in a heap.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from proxy.core.telemetry import long_turns
from proxy.core.telemetry.long_turns import LongTurns
from proxy.net.io import calls, ticks

LATE_AT_ONCE: Final = 16
"""Handlers whose time has come, one after the other, before sockets are polled again. Mutes of many connections may end
together; connections that are not muted must not wait for all of them."""
NEVER: Final = float("inf")
# Compared for each event: C numbers in compiled code (see the .pxd).
_LONG_S: Final = long_turns.LONG_S
_MARK_S: Final = long_turns.MARK_S
_WAITED_S: Final = 30e-6
"""A poll that does not block takes less (about 5 µs measured, 12 µs with 32 sockets ready)."""
_AGAIN: Final = 2
"""Handlers in the queue that run, one after the other, before sockets are polled again. Who had a share already waits
for those that had none: each of these may use a millisecond, and there may be one for every connection."""
_NEVER: Final = NEVER
_OVER: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_READABLE: Final = select.EPOLLIN | _OVER
_WRITABLE: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
"""A socket that was full is writable, or never will be again."""
WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT | select.EPOLLET


class Clock:
    """The data path's clock, in seconds; with `source`, that one instead (a test's)."""

    def __init__(self, source: Callable[[], float] | None = None) -> None:
        """`source` returns the time; None: it is CLOCK_MONOTONIC."""
        self._source = source

    def now_s(self) -> float:
        """The current time."""
        return ticks.monotonic_s() if self._source is None else self._source()


class Handler:
    """What runs when a socket is ready, when its turn comes, or at a certain time."""

    def __init__(self) -> None:
        self.readable = True
        """The socket that it reads may be readable. A read that would block sets it to False, and so may a short read,
        unless `over`."""
        self.over = False
        """The peer has closed its side; reported once, perhaps together with its last bytes."""
        self.waits_for_writable = False
        """It has found the socket that it writes to full, and runs once that is writable."""
        self.queued = False
        """It runs when the turn comes to it, and not before."""
        self.at_s = NEVER
        """When `on_time` is to run."""

    def run(self) -> None:
        """Do what can be done without blocking."""

    def on_time(self) -> None:
        """The time that `EventLoop.come_back` was given has come."""

    def failed(self) -> None:
        """One of these has raised the exception that is being handled."""


class Watch:
    """One socket that is watched: who reads it, and who writes to it."""

    def __init__(self, reader: Handler, writer: Handler) -> None:
        self.reader = reader
        self.writer = writer


class EventLoop:
    """All watched sockets, served round by round.

    A round: wait for events, run the handlers of ready sockets, those whose turn has come, those whose time has come,
    and then the calls that were posted. `proxy.net.io.host` runs trio's tasks as posted calls.
    """

    def __init__(self, clock: Clock | None = None, turns: LongTurns | None = None) -> None:
        """`turns` records those that take too long."""
        self.clock = clock or Clock()
        self.turns = LongTurns() if turns is None else turns
        self.poller = calls.Poller()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edge-triggered, so each write is an event, and nothing has to be read.
        self.poller.register(self._wakeup_fd, select.EPOLLIN | select.EPOLLET)
        self.watches: list[Watch | None] = []
        """By file descriptor."""
        self.again: deque[Handler] = deque()
        """They run again after the others."""
        self._waits = False
        """Whether there may be some."""
        self.late: list[tuple[float, int, Handler]] = []
        """A heap of times. Entries that differ from the handler's `at_s` are stale."""
        self._number = 0
        self._posted: deque[Callable[[], object]] = deque()
        self._has_posted = False
        self.running = True
        """`run` returns when this is False."""
        self.asleep = False
        """A task waits for `poller.fd` and for `next_s`: it has to be woken when there is something to do sooner."""
        self.served = 0
        """Events of the latest round."""
        self.since_ms = 0.0
        """What is ready now arrived at this time or later, in ms of the clock.

        If the loop had to wait, it has just arrived; otherwise it may have arrived at any time since the previous poll.
        A response that is read late because of other connections must not count as the broker's time
        (`proxy.core.session.exchange`).
        """
        self.woken_s = 0.0
        """When the latest wait ended."""
        self._just_woken = False
        """No handler has used that time yet."""
        self._turn_s = NEVER
        """When the turn began that the watchdog measures."""
        self._marked_s = -NEVER
        """When CPU time was read last,"""
        self._cpu_s = 0.0
        """and what it was."""

    # ---- any thread -------------------------------------------------------------------------------------------------

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop's thread call it, soon."""
        self.soon(call)
        os.eventfd_write(self._wakeup_fd, 1)

    # ---- the loop's thread ------------------------------------------------------------------------------------------

    def soon(self, call: Callable[[], object]) -> None:
        """As `post`, within a round."""
        self._posted.append(call)
        self._has_posted = True

    def watch(self, fd: int, reader: Handler, writer: Handler) -> None:
        """Watch a non-blocking socket until `forget`. Raises OSError if the kernel refuses (no memory, too many
        watches)."""
        self.poller.register(fd, WATCHED)
        while len(self.watches) <= fd:
            self.watches.append(None)
        self.watches[fd] = Watch(reader, writer)

    def forget(self, fd: int) -> None:
        """Stop watching a socket. Must be called before it is closed."""
        if fd < len(self.watches) and self.watches[fd] is not None:
            self.watches[fd] = None
            self.poller.unregister(fd)

    def go_on_later(self, handler: Handler) -> None:
        """Run it again after the others."""
        if not handler.queued:
            handler.queued = True
            self.again.append(handler)
            self._waits = True
            if self.asleep:
                self._wake()

    def come_back(self, at_s: float, handler: Handler) -> None:
        """Call its `on_time` then, and not at an earlier time that was asked for."""
        if at_s != handler.at_s:
            handler.at_s = at_s
            if at_s < NEVER:
                self._number += 1
                heappush(self.late, (at_s, self._number, handler))
                if self.asleep:
                    self._wake()

    def next_s(self) -> float:
        """The next deadline."""
        return self.late[0][0] if self.late else _NEVER

    def ready_s(self) -> float:
        """The time at which what a handler has just read was there: for the first in a round, the end of the wait."""
        if self._just_woken:
            self._just_woken = False
            return self.woken_s
        return self.clock.now_s()

    def run(self) -> None:
        """Serve until `running` is False."""
        now_s = self.clock.now_s()
        while self.running:
            wait_s = 0.0
            if not (self._waits or self._has_posted):
                wait_s = max(0.0, self.next_s() - now_s)
            now_s = self.serve(wait_s, now_s)

    def serve(self, wait_s: float, asked_s: float) -> float:
        """One round, which waits for `wait_s` at most; it is `asked_s` now. Returns the time at its end."""
        poller, watches = self.poller, self.watches
        count = poller.wait(wait_s)
        now_s = self.clock.now_s()
        self.since_ms = (now_s if now_s - asked_s > _WAITED_S else self.woken_s) * 1000.0
        self.woken_s = self._turn_s = now_s
        self._just_woken = count > 0
        if now_s - self._marked_s >= _MARK_S:
            self._marked_s = now_s
            self._cpu_s = ticks.thread_s()
        self.served = count
        left = min(len(self.again), _AGAIN) if self._waits else 0
        for number in range(count):
            fd = poller.fd_of(number)
            watch = watches[fd] if fd < len(watches) else None
            if watch is not None:
                self._serve(watch, poller.flags_of(number))
                self._just_woken = False
        if self._waits:
            self._run_again(left)
        if self.late and self.next_s() <= now_s:
            self._call_back(now_s)
        now_s = self._measured("connections")
        if self._has_posted:
            self._has_posted = False
            for _ in range(len(self._posted)):
                self._posted.popleft()()
            now_s = self._measured("tasks")
        return now_s

    def close(self) -> None:
        """Close; watches that are left are dropped."""
        self.poller.close()
        os.close(self._wakeup_fd)
        self.watches.clear()
        self.late.clear()

    def _wake(self) -> None:
        self.asleep = False
        os.eventfd_write(self._wakeup_fd, 1)

    def _measured(self, what: str) -> float:
        """A turn is over: have the watchdog look at it if it was long. Returns the time."""
        now_s = self.clock.now_s()
        if now_s - self._turn_s > _LONG_S:
            cpu_s = ticks.thread_s()
            self.turns.look(what, self._turn_s, now_s, cpu_s - self._cpu_s, self.served)
            self._cpu_s = cpu_s
        self._turn_s = now_s
        return now_s

    def _serve(self, watch: Watch, flags: int) -> None:
        writer, reader = watch.writer, watch.reader
        if flags & _WRITABLE and writer.waits_for_writable:
            writer.waits_for_writable = False
            if not writer.queued:
                self._run(writer)
        if flags & _READABLE:
            reader.readable = True
            if flags & _OVER:
                reader.over = True
            if not reader.queued:
                self._run(reader)

    def _run_again(self, count: int) -> None:
        for _ in range(count):
            handler: Handler = self.again.popleft()
            handler.queued = False
            self._run(handler)
        self._waits = len(self.again) > 0

    def _run(self, handler: Handler) -> None:
        try:
            handler.run()
        except Exception:
            handler.failed()

    def _call_back(self, now_s: float) -> None:
        late = self.late
        for _ in range(LATE_AT_ONCE):
            at_s, _, handler = heappop(late)
            if handler.at_s == at_s:
                handler.at_s = NEVER
                try:
                    handler.on_time()
                except Exception:
                    handler.failed()
            if not late or late[0][0] > now_s:
                return
