"""Waiting for many sockets at little cost: one edge-triggered epoll instance, served where trio's loop would block.

A task that waits for a socket by `trio.lowlevel.wait_readable` costs, each time, two calls of epoll_ctl, a task put to
sleep and woken, and a pass of the loop: more than all the work on a small request. Here each socket is registered once,
with a `proxy.net.io.loop.Handler`, which runs right where the event is found and does what can be done without
blocking. One that has to run at a certain time (the end of a mute) costs an entry in a heap, not a timer of trio.

    trio has nothing to run                        events of our sockets
      before_io_wait ------> wait for both epolls -------------------> their handlers run ----+
                                 ^    |                                                       |
                                 |    | trio's own epoll is ready, a deadline has come,       |
                                 |    | or a handler has woken a task: back to trio           |
                                 +----|-------------------------------------------------------+

Edge-triggered means that the kernel reports once that a socket is readable. `Handler.readable` remembers it until a
read would block.

Waiting for trio's epoll together with ours takes two undocumented attributes of trio (its epoll instance and its queue
of runnable tasks). Where they are missing, a task waits for our epoll as for any file descriptor: each event then costs
a pass of trio's loop again, and nothing else changes.
"""

from __future__ import annotations

import select

import structlog
import trio

from proxy.core.telemetry.long_turns import LongTurns
from proxy.net.io.loop import Clock, EventLoop

log = structlog.get_logger("kquota.reactor")


class Reactor(trio.abc.Instrument):
    """All watched sockets of one event loop. `start` and `stop` must be called in that loop."""

    def __init__(self, turns: LongTurns | None = None) -> None:
        """`turns` records those that take too long."""
        self.round = EventLoop(Clock(trio.current_time), turns)
        self._nap: trio.CancelScope | None = None
        """Set while `run` waits."""

    @property
    def nested(self) -> bool:
        """True if trio's own epoll is waited for together with ours."""
        return self.round.trio_fd >= 0

    def start(self, *, nested: bool = True) -> None:
        """Begin to serve, in the trio loop that the watches' tasks run in."""
        if nested:
            self._find_trio()
        if not self.nested:
            self.round.on_sooner = self._wake_at
        trio.lowlevel.add_instrument(self)

    def stop(self) -> None:
        """Stop serving; watches that are left are dropped."""
        trio.lowlevel.remove_instrument(self)
        self.round.close()

    def _find_trio(self) -> None:
        loop = self.round
        try:
            from trio._core._run import GLOBAL_RUN_CONTEXT, SystemClock

            runner = GLOBAL_RUN_CONTEXT.runner
            if not isinstance(runner.clock, SystemClock):
                return  # a test's clock: trio itself has to notice that the loop is idle
            fd = runner.io_manager._epoll.fileno()
            clock = Clock(None, runner.clock.offset)
            runq, force_wakeup = runner.runq, runner.io_manager.force_wakeup
        except (ImportError, AttributeError) as error:
            log.warning("unknown version of trio, its event loop is used unchanged", error=str(error))
            return
        loop.poller.register(fd, select.EPOLLIN)
        loop.trio_fd, loop.clock, loop.runq, loop.force_wakeup = fd, clock, runq, force_wakeup

    def _wake_at(self, at_s: float) -> None:
        if self._nap is not None and at_s < self._nap.deadline:
            self._nap.deadline = at_s

    async def run(self) -> None:
        """Serve events where trio's epoll cannot be waited for together with ours; otherwise return at once."""
        loop = self.round
        while not self.nested:
            with trio.move_on_at(loop.next_s()) as self._nap:
                await trio.lowlevel.wait_readable(loop.poller.fd)
            self._nap = None
            loop.told_s = trio.current_time()
            while loop.serve(0.0, loop.told_s) or loop.again or loop.next_s() <= trio.current_time():
                await trio.lowlevel.checkpoint()

    def before_io_wait(self, timeout: float) -> None:
        """trio has nothing to run for `timeout` seconds, or (0) polls for I/O between running its tasks."""
        loop = self.round
        if loop.trio_fd >= 0:
            loop.wait(timeout)
