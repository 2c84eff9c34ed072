"""Waiting for many sockets at little cost: one edge-triggered epoll instance, served where trio's loop would wait.

A task that waits for a socket by `trio.lowlevel.wait_readable` costs, each time, two calls of epoll_ctl, a task put to
sleep and woken, and a turn of the loop: more than all the work on a small request. Here each socket is registered
once, and whoever waits for it leaves a *turn*: a function that does, without waiting, what there is to do. It runs
right where the event is found. Only when something must be waited for (a full socket) does the task wake up. A turn
that has to come back at a certain time (the end of a mute) says so: that costs an entry in a heap, no timer of trio's.

    trio has nothing to run                        events of our sockets
      before_io_wait ------> wait for both epolls -----------------------> their turns run ---+
                                 ^    |                                                       |
                                 |    | trio's own epoll is ready, a deadline has come,       |
                                 |    | or a turn has woken a task: back to trio              |
                                 +----|-------------------------------------------------------+

Edge-triggered means: the kernel tells once that there is something to read. `Watch.readable` remembers it until a read
has found nothing more.

That trio's epoll can be waited for together with ours takes two attributes of trio that are not in its documentation
(its epoll instance, its queue of runnable tasks). Where they are not found, a task waits for our epoll as for any file
descriptor: each event takes a turn of trio's loop again, otherwise it is the same.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from socket import socket
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import outcome
import structlog
import trio

from proxy.io.courtesy import QUIET_S, Courtesy
from proxy.lane import loop_for

if TYPE_CHECKING:
    from proxy._lane import Loop

log = structlog.get_logger("kquota.reactor")

WAITED_S: Final = 30e-6
"""Asking the kernel without waiting takes less (about 5 µs measured, 12 µs with 32 sockets ready)."""
MAX_EVENTS: Final = 256
LATE_AT_ONCE: Final = 16
"""Turns whose time has come, one after the other, before sockets are looked at again. Mutes of many connections may end
together; who is not muted does not wait for all of them."""
NEVER: Final = float("inf")
_OVER: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET

Result = TypeVar("Result")


class Again:
    """See `AGAIN`."""


AGAIN: Final = Again()
"""Result of a turn that has done its share while there may be more: others come first."""


class Watch(Generic[Result]):
    """One socket that is watched from `Reactor.watch` until `close`."""

    __slots__ = ("_fd", "_queued", "_reactor", "_task", "back_s", "over", "readable", "rest_s", "turn")

    def __init__(self, reactor: Reactor, fd: int) -> None:
        self._reactor = reactor
        self._fd = fd
        self.readable = True
        """There may be something to read. Whoever reads and finds nothing sets it to False, and so may who finds less
        than asked for, unless `over`."""
        self.over = False
        """The other side has ended, which was told once, perhaps together with its last bytes."""
        self.turn: Callable[[], Result | Again | None] | None = None
        """What to call when something has come. (For the reactor.)"""
        self._task: Any = None
        self._queued = False
        self.back_s = NEVER
        """When the turn is to be called again, if nothing comes before (`trio.current_time`)."""
        self.rest_s = -NEVER
        """NEVER (not over yet) while the rest of a large response is to come; else when that was over the last time."""

    async def take(self, turn: Callable[[], Result | Again | None]) -> Result:
        """Call `turn` now and whenever there is something to read, until it has a result.

        `turn()` returns None: nothing more to do before something comes (`readable` is False then); AGAIN: there may be
        more, let others go first; anything else is the result. What it raises is raised here.
        """
        result = turn()
        if result is AGAIN:
            self._go_on_later()
        elif result is not None:
            assert not isinstance(result, Again)
            await trio.lowlevel.checkpoint()
            return result
        self.turn = turn
        self._task = trio.lowlevel.current_task()
        given: Result = await trio.lowlevel.wait_task_rescheduled(self._abort)
        return given

    def run(self) -> None:
        """Something has come, or the time. (For the reactor.)"""
        turn = self.turn
        if turn is not None:
            try:
                result = turn()
            except BaseException as error:
                self.failed(error)
            else:
                if result is not None:
                    self.ended(result)

    def run_again(self) -> None:
        """It is this one's turn again. (For the reactor.)"""
        self._queued = False
        self.run()

    def ended(self, result: Result | Again) -> None:
        """What a turn has returned, unless it was None. (For the reactor.)"""
        if result is AGAIN:
            self._go_on_later()
        else:
            self.turn = None
            trio.lowlevel.reschedule(self._task, outcome.Value(result))

    def failed(self, error: BaseException) -> None:
        """What a turn has raised. (For the reactor.)"""
        self.turn = None
        trio.lowlevel.reschedule(self._task, outcome.Error(error))

    def come_back(self, at_s: float) -> None:
        """Call the turn at this time (`trio.current_time`) again; what was said about it before counts no more.

        Said by a turn that then returns None. If the task is busy elsewhere then, nothing is called: `take` begins with
        a turn anyway.
        """
        if at_s != self.back_s:
            self.back_s = at_s
            self._reactor.come_back(at_s, self)

    def expect_rest(self) -> None:
        """The head of a large response has passed, what follows can wait for others (`proxy.io.courtesy`)."""
        if self.rest_s != NEVER:
            self.rest_s = NEVER
            self._reactor.courtesy.halfway += 1

    def rest_came(self, now_s: float) -> None:
        """All of it has passed, if there was one."""
        if self.rest_s == NEVER:
            self.rest_s = now_s
            self._reactor.courtesy.halfway -= 1

    def close(self) -> None:
        """Watch no more. To be called before the socket is closed."""
        self.rest_came(-NEVER)
        self.back_s = NEVER
        self._reactor.forget(self._fd)
        self.turn = None

    def _go_on_later(self) -> None:
        if not self._queued:
            self._queued = True
            self._reactor.again.append(self)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self.turn = None
        return trio.lowlevel.Abort.SUCCEEDED


class Reactor(trio.abc.Instrument):
    """All watched sockets of one event loop. `start` and `stop` belong into that loop."""

    __slots__ = ("__dict__", "since_ms")  # the compiled loop writes it each time it has waited

    def __init__(self) -> None:
        self._epoll: select.epoll
        self._watches: dict[int, Watch[Any]] = {}
        self.again: deque[Watch[Any]] = deque()
        """Those that have done their share and not finished."""
        self._late: list[tuple[float, int, Watch[Any]]] = []
        """A heap: who is to be called when. Entries that are not the watch's `back_s` count for nothing."""
        self._number = 0
        self._nap: trio.CancelScope | None = None
        """While `run` waits."""
        self.since_ms = 0.0
        """What is ready now has come at this time or later; as `trio.current_time`, in ms.

        The loop had to wait for it: it has just come. It had not: it may have come at any time since the loop was told
        the last time. A response that is read late because of others costs no broker any time
        (`proxy.session.request_time`).
        """
        self.clock: Callable[[], float] = trio.current_time
        """The time as `trio.current_time` tells it, with fewer calls on the way."""
        self.courtesy = Courtesy()
        self.loop: Loop | None = None
        """The compiled loop, which then does all that is said here about waiting together with trio."""
        self._told_s = 0.0
        self._runner: Any = None
        self._trio_fd = -1

    @property
    def nested(self) -> bool:
        """True if trio's own epoll is waited for together with ours."""
        return self._trio_fd >= 0

    def start(self, *, nested: bool = True) -> None:
        """Begin to serve; in the trio loop that the watches' tasks run in."""
        self._epoll = select.epoll()
        if nested:
            self._find_trio()
        trio.lowlevel.add_instrument(self)

    def stop(self) -> None:
        """The end of it; watches that are left are forgotten."""
        trio.lowlevel.remove_instrument(self)
        self._epoll.close()
        self._watches.clear()
        self._late.clear()

    def _find_trio(self) -> None:
        try:
            from trio._core._run import GLOBAL_RUN_CONTEXT, SystemClock

            runner = GLOBAL_RUN_CONTEXT.runner
            if not isinstance(runner.clock, SystemClock):
                return  # a test's clock: trio itself has to see when nothing happens
            fd = runner.io_manager._epoll.fileno()
            clock = runner.clock.current_time
            runner.runq, runner.io_manager.force_wakeup  # noqa: B018 - are they there?
        except (ImportError, AttributeError) as error:
            log.warning("this trio is not known, its loop is used as it stands", error=str(error))
            return
        self._epoll.register(fd, select.EPOLLIN)
        self._runner, self._trio_fd, self.clock = runner, fd, clock
        self.loop = loop_for(self, runner, self._epoll.fileno(), fd)

    def watch(self, sock: socket) -> Watch[Any]:
        """Watch a non-blocking socket. Raises OSError if the kernel can not (no memory, too many watches)."""
        fd = sock.fileno()
        self._epoll.register(fd, _EVENTS)
        watch = self._watches[fd] = Watch(self, fd)
        return watch

    def forget(self, fd: int) -> None:
        """Watch a socket no more."""
        if self._watches.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def come_back(self, at_s: float, watch: Watch[Any]) -> None:
        """See `Watch.come_back`."""
        self._number += 1
        heappush(self._late, (at_s, self._number, watch))
        if self._nap is not None and at_s < self._nap.deadline:
            self._nap.deadline = at_s

    async def run(self) -> None:
        """Serve events where trio's epoll can not be waited for together with ours; returns at once where it can."""
        while not self.nested:
            with trio.move_on_at(self._next_s()) as self._nap:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            self._nap = None
            self._told_s = trio.current_time()
            while self._round(0.0, self._told_s) or self.again or self._next_s() <= trio.current_time():
                await trio.lowlevel.checkpoint()

    def _next_s(self) -> float:
        return self._late[0][0] if self._late else NEVER

    # ---- trio.abc.Instrument ----------------------------------------------------------------------------------------

    def before_io_wait(self, timeout: float) -> None:
        """trio has nothing to run for `timeout` seconds, or (0) lets whoever is ready run next to its tasks."""
        if self._trio_fd < 0:
            return
        if self.loop is not None:
            self.loop.before_io_wait(timeout)
            return
        clock = self.clock
        now_s = clock()
        if timeout <= 0.0:
            self._round(0.0, now_s)
            return
        runner = self._runner
        runq, again = runner.runq, self.again
        until_s = now_s + timeout
        while True:
            wait_s = 0.0 if again else until_s - now_s
            if self._late:
                wait_s = min(wait_s, max(0.0, self._late[0][0] - now_s))
            found = self._round(wait_s, now_s)
            now_s = clock()
            if found or runq or now_s >= until_s:
                # trio must not wait now: not for all of `timeout` again, and not for what it was to find ready either,
                # which a turn may have used up in the meantime (room in a socket). Nobody would watch our sockets.
                runner.io_manager.force_wakeup()
                if self.courtesy.gives_way:  # tasks may start threads, which begin with what this one has
                    self.courtesy.give_way(False)
                return

    def _round(self, wait_s: float, asked_s: float) -> bool:
        """Wait, and let those run for whom something has come; it is `asked_s` now. True if trio has something to do
        too (nested), or if something came at all (not nested)."""
        if wait_s > 0.0:
            self.courtesy.before_wait(asked_s)
        events = self._epoll.poll(wait_s, MAX_EVENTS)
        now_s = self.clock()
        self.since_ms = (now_s if now_s - asked_s > WAITED_S else self._told_s) * 1000.0
        self._told_s = now_s
        again, trio_fd, watches = self.again, self._trio_fd, self._watches
        left = len(again)
        found = trio_fd < 0 and bool(events)
        quick = False
        for fd, flags in events:
            watch = watches.get(fd)
            if watch is not None:
                watch.readable = True
                quick |= now_s - watch.rest_s > QUIET_S
                if flags & _OVER:
                    watch.over = True
                turn = watch.turn  # `watch.run()`, without its call: this is done for each read
                if turn is not None:
                    try:
                        result = turn()
                    except BaseException as error:
                        watch.failed(error)
                    else:
                        if result is not None:
                            watch.ended(result)
            elif fd == trio_fd:
                found = quick = True
        if quick:
            self.courtesy.quick_s = now_s
        while left:
            left -= 1
            again.popleft().run_again()
        if self._late and self._late[0][0] <= now_s:
            self._call_back(now_s)
        return found

    def _call_back(self, now_s: float) -> None:
        late = self._late
        for _ in range(LATE_AT_ONCE):
            at_s, _, watch = heappop(late)
            if watch.back_s == at_s:
                watch.back_s = NEVER
                watch.run()
            if not late or late[0][0] > now_s:
                return
