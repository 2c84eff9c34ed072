"""The rounds of the event loop: wait for events on all watched sockets, and run what handles them.

`proxy.net.io.host` says how this fits below trio. A `Handler` does what can be done without blocking.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from proxy.core.telemetry import long_turns
from proxy.core.telemetry.long_turns import LongTurns
from proxy.net.io import calls

WAITED_S: Final = 30e-6
"""A poll that does not block takes less (about 5 µs measured, 12 µs with 32 sockets ready)."""
LATE_AT_ONCE: Final = 16
"""Handlers whose time has come, one after the other, before sockets are polled again. Mutes of many connections may end
together; connections that are not muted must not wait for all of them."""
AGAIN_AT_ONCE: Final = 2
"""Handlers in the queue that run, one after the other, before sockets are polled again. Who had a share already waits
for those that had none: each of these may use a millisecond, and there may be one for every connection."""
NEVER: Final = float("inf")
LONG_S: Final = long_turns.LONG_S
MARK_S: Final = long_turns.MARK_S
OVER: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
READABLE: Final = select.EPOLLIN | OVER
ROOM: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
"""A socket that was full is writable, or never will be again."""
WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT | select.EPOLLET


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


class Handler:
    """What runs when a socket is ready, when its turn comes, or at a certain time."""

    __slots__ = ("at_s", "over", "queued", "readable", "waits_for_room")

    def __init__(self) -> None:
        self.readable = True
        """The socket that it reads may be readable. A read that would block sets it to False, and so may a short read,
        unless `over`."""
        self.over = False
        """The peer has closed its side; reported once, perhaps together with its last bytes."""
        self.waits_for_room = False
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

    __slots__ = ("reader", "writer")

    def __init__(self, reader: Handler, writer: Handler) -> None:
        self.reader = reader
        self.writer = writer


class EventLoop:
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
        self.watches: dict[int, Watch] = {}
        self.again: deque[Handler] = deque()
        """They run again after the others."""
        self.late: list[tuple[float, int, Handler]] = []
        """A heap of times. Entries that differ from the handler's `at_s` are stale."""
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

    def watch(self, fd: int, reader: Handler, writer: Handler) -> None:
        """Watch a non-blocking socket until `forget`. Raises OSError if the kernel refuses (no memory, too many
        watches)."""
        self.poller.register(fd, WATCHED)
        self.watches[fd] = Watch(reader, writer)

    def forget(self, fd: int) -> None:
        """Stop watching a socket. Must be called before it is closed."""
        if self.watches.pop(fd, None) is not None:
            self.poller.unregister(fd)

    def go_on_later(self, handler: Handler) -> None:
        """Run it again after the others."""
        if not handler.queued:
            handler.queued = True
            self.again.append(handler)
            if self.on_sooner is not None:
                self.on_sooner(-NEVER)

    def come_back(self, at_s: float, handler: Handler) -> None:
        """Call its `on_time` then (`trio.current_time`), and not at an earlier time that was asked for."""
        if at_s != handler.at_s:
            handler.at_s = at_s
            if at_s < NEVER:
                self._number += 1
                heappush(self.late, (at_s, self._number, handler))
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
                # which a handler may have used up in the meantime (a writable socket). Our sockets would be left
                # unserved.
                assert self.force_wakeup is not None
                self.force_wakeup()
                return

    def serve(self, wait_s: float, asked_s: float) -> bool:
        """Wait, and run the handlers of sockets that are ready; it is `asked_s` now. True if trio has something to do
        too (nested), or if there was any event (not nested)."""
        poller = self.poller
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
        while left:
            left -= 1
            again: Handler = self.again.popleft()
            again.queued = False
            self._run(again)
        if self.late and self.next_s() <= now_s:
            self._call_back(now_s)
        return found

    def _serve(self, watch: Watch, flags: int) -> None:
        writer, reader = watch.writer, watch.reader
        if flags & ROOM and writer.waits_for_room:
            writer.waits_for_room = False
            if not writer.queued:
                self._run(writer)
        if flags & READABLE:
            reader.readable = True
            if flags & OVER:
                reader.over = True
            if not reader.queued:
                self._run(reader)

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
