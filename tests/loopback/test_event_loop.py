"""The event loop, as the host of trio and as a task of it: sockets are served at once, and trio goes on as it does."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import pytest
import trio
import trio.lowlevel

from proxy.net.io import host
from proxy.net.io.loop import LATE_AT_ONCE, NEVER, Clock, EventLoop, Handler
from tests.support.scripted_broker import until

T = TypeVar("T")
LONG_S = 20.0
"""Nothing here takes that long unless it waits for something that does not come."""


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


class Reader(Handler):
    """Reads up to five bytes at a time until the end."""

    def __init__(self, loop: EventLoop, ours: socket.socket) -> None:
        super().__init__()
        self.loop = loop
        self.ours = ours
        self.read: list[bytes] = []
        self.ended = trio.Event()
        self.error = ""
        self.loop.watch(ours.fileno(), self, Handler())

    def run(self) -> None:
        try:
            data = self.ours.recv(5)
        except BlockingIOError:
            self.readable = False
            return
        if not data:
            self.ended.set()
            return
        self.read.append(data)
        if data == b"bad!!":
            raise ValueError("not liked")
        if len(data) < 5 and not self.over:
            self.readable = False
            return
        self.loop.go_on_later(self)

    def failed(self) -> None:
        self.error = str(sys.exc_info()[1])
        self.ended.set()

    def close(self) -> None:
        self.loop.forget(self.ours.fileno())


@pytest.fixture(params=[True, False], ids=["host", "task"])
def hosts(request: pytest.FixtureRequest) -> bool:
    """Whether the loop is trio's host, or served by a task of trio."""
    return bool(request.param)


def serve(main: Callable[[EventLoop], Awaitable[T]], *, hosts: bool) -> T:
    """Run it in trio, next to a loop that serves."""

    async def limited(loop: EventLoop) -> T:
        with trio.fail_after(LONG_S):
            async with trio.open_nursery() as nursery:
                if not hosts:
                    nursery.start_soon(host.serve, loop)
                result = await main(loop)
                nursery.cancel_scope.cancel()
        return result

    if hosts:
        loop = EventLoop()
        return host.run(partial(limited, loop), loop)
    loop = EventLoop(Clock(trio.current_time))
    try:
        return trio.run(limited, loop)
    finally:
        loop.close()


def test_reads_all_bytes_that_come_with_the_end(hosts: bool) -> None:
    async def main(loop: EventLoop) -> None:
        with pair() as (ours, theirs):
            reader = Reader(loop, ours)
            await trio.sleep(0.01)
            theirs.sendall(b"12345678")
            await until(lambda: len(reader.read) == 2)
            assert reader.read == [b"12345", b"678"]
            assert not reader.ended.is_set()
            theirs.sendall(b"90")
            theirs.close()
            await reader.ended.wait()
            assert reader.read == [b"12345", b"678", b"90"]
            reader.close()

    serve(main, hosts=hosts)


def test_an_error_is_that_handlers_alone(hosts: bool) -> None:
    async def main(loop: EventLoop) -> None:
        with pair() as (bad, to_bad), pair() as (good, to_good):
            readers = [Reader(loop, bad), Reader(loop, good)]
            await trio.sleep(0.01)
            to_bad.sendall(b"bad!!")
            to_good.sendall(b"good!")
            await trio.sleep(0.01)
            to_good.close()
            for reader in readers:
                await reader.ended.wait()
            assert [reader.error for reader in readers] == ["not liked", ""]
            assert readers[1].read == [b"good!"]

    serve(main, hosts=hosts)


def test_whoever_has_much_to_read_lets_others_in_between(hosts: bool) -> None:
    async def main(loop: EventLoop) -> None:
        with pair() as (ours, theirs), pair() as (other, to_other):
            much, little = Reader(loop, ours), Reader(loop, other)
            await trio.sleep(0.01)
            theirs.sendall(b"x" * 50_000)  # 10 000 turns
            to_other.sendall(b"now")
            while not little.read:
                await trio.lowlevel.checkpoint()
            assert len(much.read) < 5_000
            while len(much.read) < 10_000:
                await trio.lowlevel.checkpoint()

    serve(main, hosts=hosts)


def test_tasks_timers_threads_and_trios_own_sockets_go_on(hosts: bool) -> None:
    """While traffic comes without a pause, and while none comes."""

    async def main(loop: EventLoop) -> None:
        with pair() as (ours, theirs):
            reader = Reader(loop, ours)

            async def everything() -> None:
                begin_s = trio.current_time()
                await trio.sleep(0.05)
                assert 0.05 <= trio.current_time() - begin_s < LONG_S / 2
                assert await trio.to_thread.run_sync(time.sleep, 0.01) is None
                left, right = trio.socket.socketpair()
                with left, right:
                    async with trio.open_nursery() as inner:
                        inner.start_soon(left.recv, 1)
                        await trio.sleep(0.01)
                        await right.send(b"x")

            await everything()
            stop = trio.Event()

            def flood() -> None:
                while not stop.is_set():
                    theirs.sendall(b"y" * 5)
                    time.sleep(0.0005)

            async with trio.open_nursery() as inner:
                inner.start_soon(trio.to_thread.run_sync, flood)
                await everything()
                stop.set()
            assert reader.read

    serve(main, hosts=hosts)


def test_a_woken_task_does_not_wait_for_the_next_timer(hosts: bool) -> None:
    """trio is about to sleep for 20 s when a turn has a result for its task."""

    async def main(loop: EventLoop) -> float:
        with pair() as (ours, theirs):
            reader = Reader(loop, ours)
            threading.Timer(0.02, theirs.close).start()
            begin_s = trio.current_time()
            await reader.ended.wait()
            return trio.current_time() - begin_s

    took_s = serve(main, hosts=hosts)
    assert isinstance(took_s, float)
    assert 0.01 < took_s < LONG_S / 2


class Timed(Handler):
    """Calls `then` at its times."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then

    def on_time(self) -> None:
        self.then()


def test_runs_at_its_time_and_the_last_word_counts(hosts: bool) -> None:
    async def main(loop: EventLoop) -> None:
        begin_s = trio.current_time()
        called_s: list[float] = []
        enough = trio.Event()

        def turn() -> None:
            called_s.append(trio.current_time() - begin_s)
            if len(called_s) == 2:
                enough.set()
            loop.come_back(begin_s + 0.15, handler)

        def never() -> None:
            raise AssertionError("called although it was taken back")

        handler, quiet = Timed(turn), Timed(never)
        loop.come_back(begin_s + 0.05, quiet)
        loop.come_back(NEVER, quiet)
        loop.come_back(begin_s + 0.02, handler)  # does not count: the next word does
        loop.come_back(begin_s + 0.1, handler)
        await enough.wait()
        assert called_s[0] >= 0.1
        assert called_s[1] >= 0.15

    serve(main, hosts=hosts)


def test_reads_sockets_between_many_that_resume(hosts: bool) -> None:
    """What comes while hundreds of mutes end waits for a few of them, not for all."""
    many = 20 * LATE_AT_ONCE

    async def main(loop: EventLoop) -> None:
        with pair() as (ours, theirs):
            back: list[int] = []
            found: list[int] = []
            all_back = trio.Event()

            class Looking(Reader):
                def run(self) -> None:
                    super().run()
                    if self.read and not found:
                        found.append(len(back))

            reader = Looking(loop, ours)

            def muted() -> None:
                back.append(1)
                if len(back) == 1:
                    theirs.sendall(b"x")
                if len(back) == many:
                    all_back.set()

            at_s = trio.current_time()
            for _ in range(many):
                loop.come_back(at_s, Timed(muted))
            await all_back.wait()
            await until(lambda: found)
            assert 1 <= found[0] <= 2 * LATE_AT_ONCE
            reader.close()

    serve(main, hosts=hosts)


def test_a_forgotten_socket_and_its_number_are_not_mixed_up(hosts: bool) -> None:
    async def main(loop: EventLoop) -> None:
        numbers = set()
        for _ in range(3):
            with pair() as (ours, theirs):
                numbers.add(ours.fileno())
                reader = Reader(loop, ours)
                theirs.sendall(b"abc")
                theirs.close()
                await reader.ended.wait()
                assert reader.read == [b"abc"]
                reader.close()
        assert len(numbers) == 1

    serve(main, hosts=hosts)


def test_a_busy_event_loop_is_behind_and_an_idle_one_is_not() -> None:
    """`since_ms`. On a machine with much to do either may be mistaken for the other now and then, not always."""

    async def main(loop: EventLoop) -> None:
        seen = set()
        for _ in range(200):
            before_s = trio.current_time()
            await trio.sleep(0.005)  # the loop waits: what is ready afterwards came after that
            if loop.since_ms / 1000 > before_s:
                seen.add("idle")
            told_ms = loop.since_ms
            time.sleep(0.005)  # noqa: ASYNC251 - the loop is held up
            await trio.lowlevel.checkpoint()
            if loop.since_ms < told_ms + 4:
                seen.add("busy")
            if len(seen) == 2:
                break
        assert seen == {"idle", "busy"}

    serve(main, hosts=True)


def test_an_error_of_the_main_task_is_raised_to_the_host() -> None:
    async def main(loop: EventLoop) -> None:
        await trio.sleep(0.01)
        raise ValueError("main")

    with pytest.raises(ExceptionGroup) as raised:
        serve(main, hosts=True)
    assert str(raised.value.exceptions[0]) == "main"


def test_signals_reach_tasks_while_the_host_waits() -> None:
    async def main(loop: EventLoop) -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            async for number in signals:
                assert number == signal.SIGUSR1
                return

    serve(main, hosts=True)
