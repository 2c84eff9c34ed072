"""The watchdog: turns of the event loop that use the CPU for long are counted by what they did."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from proxy.core.telemetry.long_turns import LONG_S, LongTurns
from proxy.net.io import host
from proxy.net.io.loop import EventLoop, Handler


def compute() -> None:
    """Use the CPU for four times as long as a turn may."""
    until_s = time.thread_time() + 4 * LONG_S
    while time.thread_time() < until_s:
        pass


def turns_of(work: Callable[[LongTurns], None], *, in_callback: bool) -> dict[str, int]:
    """What is recorded when this is done in a callback, or else in a task."""
    turns = LongTurns()
    loop = EventLoop(turns=turns)
    one, other = socket.socketpair()
    one.setblocking(False)

    class Reader(Handler):
        def run(self) -> None:
            self.readable = False
            with suppress(BlockingIOError):
                if one.recv(1) and in_callback:
                    work(turns)

    async def main() -> None:
        loop.watch(one.fileno(), Reader(), Handler())
        await trio.sleep(0.02)
        other.send(b"x")
        await trio.sleep(0.02)
        if not in_callback:
            work(turns)
        await trio.sleep(0.02)

    with one, other:
        host.run(main, loop)
    return {what: count for what, count in turns.counts.items() if count}


def test_a_long_turn_is_counted_by_what_it_did() -> None:
    def named(turns: LongTurns) -> None:
        turns.begin("AlterClientQuotas", trio.current_time())
        compute()

    assert turns_of(lambda _: compute(), in_callback=True) == {"connections": 1}
    assert turns_of(lambda _: compute(), in_callback=False) == {"tasks": 1}
    assert turns_of(named, in_callback=True) == {"AlterClientQuotas": 1}
    assert turns_of(named, in_callback=False) == {"AlterClientQuotas": 1}


def test_turn_without_cpu_is_not_long() -> None:
    assert turns_of(lambda _: time.sleep(4 * LONG_S), in_callback=True) == {}
