"""Where the event loop and trio meet: the loop is the host, and trio's run is its guest (`trio.lowlevel`).

    the loop's thread                                     trio's thread
      EventLoop.serve --> handlers of ready sockets         waits for trio's own sockets and deadlines,
                     +--> posted calls: trio's tasks <----- and posts a call when there is something to run

All Python code of both runs in the loop's thread. A task that waits for a socket of the data path would cost two calls
of epoll_ctl, a task put to sleep and woken, and a pass of trio's scheduler for each event: more than all the work on a
small request.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from proxy.net.io import ticks
from proxy.net.io.loop import EventLoop

if TYPE_CHECKING:
    from outcome import Outcome

T = TypeVar("T")


class MonotonicClock(trio.abc.Clock):
    """The loop's clock, for trio."""

    def start_clock(self) -> None:
        """Nothing to do."""

    def current_time(self) -> float:
        """CLOCK_MONOTONIC, in seconds."""
        return ticks.monotonic_s()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """How long it is to `deadline`, in seconds."""
        return deadline - ticks.monotonic_s()


def run(main: Callable[[], Awaitable[T]], loop: EventLoop) -> T:
    """Run `main` in trio, as `trio.run` does, with `loop` as the host; then close the loop."""
    ended: list[Outcome[T]] = []

    def end(outcome: Outcome[T]) -> None:
        ended.append(outcome)
        loop.running = False

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.post,
        run_sync_soon_not_threadsafe=loop.soon,
        done_callback=end,
        clock=MonotonicClock(),
    )
    loop.run()
    loop.close()
    return ended.pop().unwrap()


async def serve(loop: EventLoop) -> None:
    """Serve within a trio that another host runs (tests' own), until cancelled: each event costs a pass of trio."""
    try:
        while True:
            loop.asleep = True
            deadline_s = -math.inf if loop.again else loop.next_s()
            with trio.move_on_at(deadline_s):
                await trio.lowlevel.wait_readable(loop.poller.fd)
            loop.asleep = False
            now_s = loop.serve(0.0, loop.woken_s)
            while loop.served or loop.again or loop.next_s() <= now_s:
                await trio.lowlevel.checkpoint()
                now_s = loop.serve(0.0, trio.current_time())
    finally:
        loop.asleep = False
