"""The rounds of the event loop: wait for what comes on any watched socket, and let those run for whom it has come.

`proxy.io.reactor` says how this fits below trio. A *turn* is what a socket's watch calls when something has come: a
function that does, without waiting, what there is to do.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

import outcome
import trio

from proxy.io import calls
from proxy.io.pairing import TICK_NS, Pairing
from proxy.io.sched_policy import QUIET_S, SchedPolicy

WAITED_S: Final = 30e-6
"""Asking the kernel without waiting takes less (about 5 µs measured, 12 µs with 32 sockets ready)."""
LATE_AT_ONCE: Final = 16
"""Turns whose time has come, one after the other, before sockets are looked at again. Mutes of many connections may end
together; who is not muted does not wait for all of them."""
NEVER: Final = float("inf")
OVER: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
READABLE: Final = select.EPOLLIN | OVER
ROOM: Final = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
"""There is room in a socket that was full, or nobody will ever make any."""
WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT | select.EPOLLET


class Again:
    """See `AGAIN`."""


AGAIN: Final = Again()
"""Result of a turn that has done its share while there may be more: others come first."""


class Clock:
    """The time as `trio.current_time` tells it, with fewer calls on the way."""

    __slots__ = ("_ahead_s", "_source")

    def __init__(self, source: Callable[[], float] | None, ahead_s: float = 0.0) -> None:
        """`source`: where the time comes from; None: it is `ahead_s` ahead of CLOCK_MONOTONIC."""
        self._source = source
        self._ahead_s = ahead_s

    def now_s(self) -> float:
        """What time it is."""
        return self._ahead_s + calls.monotonic_s() if self._source is None else self._source()


class Watch:
    """One socket that is watched from `Reactor.watch` until `close`."""

    __slots__ = ("_fd", "_queued", "_round", "back_s", "over", "readable", "rest_s", "room_for", "task", "turn")

    def __init__(self, loop: Round, fd: int) -> None:
        self._round = loop
        self._fd = fd
        self.readable = True
        """There may be something to read. Whoever reads and finds nothing sets it to False, and so may who finds less
        than asked for, unless `over`."""
        self.over = False
        """The other side has ended, which was told once, perhaps together with its last bytes."""
        self.turn: Callable[[], Any] | None = None
        """What to call when something has come."""
        self.room_for: Watch | None = None
        """The watch whose turn has found this socket full, and is to be called once there is room."""
        self.task: Any = None
        """The task that waits for the turn's result."""
        self._queued = False
        self.back_s = NEVER
        """When the turn is to be called again, if nothing comes before (`trio.current_time`)."""
        self.rest_s = -NEVER
        """NEVER (not over yet) while the rest of a large response is to come; else when that was over the last time."""

    def run(self) -> None:
        """Something has come, or the time."""
        turn = self.turn
        if turn is not None:
            try:
                result = turn()
            except BaseException as error:
                self.turn = None
                trio.lowlevel.reschedule(self.task, outcome.Error(error))
            else:
                if result is None:
                    return
                if result is AGAIN:
                    self.go_on_later()
                else:
                    self.turn = None
                    trio.lowlevel.reschedule(self.task, outcome.Value(result))

    def run_again(self) -> None:
        """It is this one's turn again."""
        self._queued = False
        self.run()

    def go_on_later(self) -> None:
        """Call the turn after others had theirs."""
        if not self._queued:
            self._queued = True
            self._round.again.append(self)

    def come_back(self, at_s: float) -> None:
        """Call the turn at this time (`trio.current_time`) again; what was said about it before counts no more.

        Said by a turn that then returns None. If the task is busy elsewhere then, nothing is called: `take` begins with
        a turn anyway.
        """
        if at_s != self.back_s:
            self.back_s = at_s
            self._round.come_back(at_s, self)

    def expect_rest(self) -> None:
        """The head of a large response has passed, what follows can wait for others (`proxy.io.sched_policy`)."""
        if self.rest_s != NEVER:
            self.rest_s = NEVER
            self._round.sched_policy.halfway += 1

    def rest_came(self, now_s: float) -> None:
        """All of it has passed, if there was one."""
        if self.rest_s == NEVER:
            self.rest_s = now_s
            self._round.sched_policy.halfway -= 1

    def close(self) -> None:
        """Watch no more. To be called before the socket is closed."""
        self.rest_came(-NEVER)
        self.back_s = NEVER
        self._round.forget(self._fd)
        self.turn = self.task = self.room_for = None


class Round:
    """All watched sockets of one event loop, and one round after the other."""

    __slots__ = (
        "_number",
        "_paired",
        "_ticker",
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
        "watches",
    )

    def __init__(self, clock: Clock) -> None:
        self.poller = calls.Poller()
        self.clock = clock
        self.sched_policy = SchedPolicy()
        self.watches: dict[int, Watch] = {}
        self.again: deque[Watch] = deque()
        """Those that have done their share and not finished."""
        self.late: list[tuple[float, int, Watch]] = []
        """A heap: who is to be called when. Entries that are not the watch's `back_s` count for nothing."""
        self._number = 0
        self.since_ms = 0.0
        """What is ready now has come at this time or later; as `trio.current_time`, in ms.

        The loop had to wait for it: it has just come. It had not: it may have come at any time since the loop was told
        the last time. A response that is read late because of others costs no broker any time
        (`proxy.session.request_time`).
        """
        self.told_s = 0.0
        self.on_sooner: Callable[[float], None] | None = None
        """Told of times at which a turn is to be called, by whoever waits elsewhere for the next one."""
        self.trio_fd = -1
        """trio's own epoll, if it is waited for together with ours; then also: what trio has to run, and what keeps it
        from waiting."""
        self.runq: Any = ()
        self.force_wakeup: Callable[[], None] | None = None
        self._paired: set[Pairing] = set()
        self._ticker = calls.Ticker()
        if self._ticker.fd >= 0:
            try:
                self.poller.register(self._ticker.fd, select.EPOLLIN)
            except OSError:  # no memory, too many watches: nobody pairs
                self._ticker.close()

    # ---- who is watched ---------------------------------------------------------------------------------------------

    def watch(self, fd: int) -> Watch:
        """Watch a non-blocking socket. Raises OSError if the kernel can not (no memory, too many watches)."""
        self.poller.register(fd, WATCHED)
        watch = self.watches[fd] = Watch(self, fd)
        return watch

    def forget(self, fd: int) -> None:
        """Watch a socket no more."""
        if self.watches.pop(fd, None) is not None:
            self.poller.unregister(fd)

    def come_back(self, at_s: float, watch: Watch) -> None:
        """See `Watch.come_back`."""
        self._number += 1
        heappush(self.late, (at_s, self._number, watch))
        if self.on_sooner is not None:
            self.on_sooner(at_s)

    def next_s(self) -> float:
        """When the next turn is to be called although nothing comes."""
        return self.late[0][0] if self.late else NEVER

    def close(self) -> None:
        """The end of it; watches that are left are forgotten."""
        self._ticker.close()
        self.poller.close()
        self.watches.clear()
        self.late.clear()

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """trio has nothing to run for `timeout` seconds, or (0) lets whoever is ready run next to its tasks."""
        now_s = self.clock.now_s()
        if timeout <= 0.0:
            self.serve(0.0, now_s)
            return
        until_s = now_s + timeout
        while True:
            wait_s = 0.0 if self.again else until_s - now_s
            if self.late:
                wait_s = min(wait_s, max(0.0, self.next_s() - now_s))
            found = self.serve(wait_s, now_s)
            now_s = self.clock.now_s()
            if found or self.runq or now_s >= until_s:
                # trio must not wait now: not for all of `timeout` again, and not for what it was to find ready either,
                # which a turn may have used up in the meantime (room in a socket). Nobody would watch our sockets.
                assert self.force_wakeup is not None
                self.force_wakeup()
                if self.sched_policy.gives_way:  # tasks may start threads, which begin with what this one has
                    self.sched_policy.give_way(False)
                return

    def serve(self, wait_s: float, asked_s: float) -> bool:
        """Wait, and let those run for whom something has come; it is `asked_s` now. True if trio has something to do
        too (nested), or if something came at all (not nested)."""
        poller = self.poller
        if wait_s > 0.0:
            self.sched_policy.before_wait(asked_s)
        count = poller.wait(wait_s)
        now_s = self.clock.now_s()
        self.since_ms = (now_s if now_s - asked_s > WAITED_S else self.told_s) * 1000.0
        self.told_s = now_s
        left = len(self.again)
        found = self.trio_fd < 0 and count > 0
        for event in range(count):
            fd = poller.fd_of(event)
            watch = self.watches.get(fd)
            if watch is not None:
                self._serve(watch, poller.flags_of(event))
            elif fd == self.trio_fd:
                found = True
                self.sched_policy.quick_s = now_s
            elif fd == self._ticker.fd and self._ticker.ticked():
                self._tick()
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
            waiting.run()
        if flags & READABLE:
            watch.readable = True
            if flags & OVER:
                watch.over = True
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

    # ---- pairs of requests (`proxy.io.pairing`) ---------------------------------------------------------------------

    def pair(self, pairing: Pairing) -> bool:
        """Look at this connection each `TICK_NS` from now on. False: that can not be."""
        if not self._paired and not self._ticker.every(TICK_NS):
            return False
        self._paired.add(pairing)
        return True

    def part(self, pairing: Pairing) -> None:
        """Look at it no more."""
        self._paired.discard(pairing)
        if not self._paired:
            self._ticker.every(0)

    def _tick(self) -> None:
        for pairing in tuple(self._paired):
            if pairing.is_stuck():
                watch: Watch = pairing.watch
                watch.readable = True
                watch.run()
