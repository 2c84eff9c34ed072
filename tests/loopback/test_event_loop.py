"""The event loop, as the host of trio and as a task of it: sockets are served at once, and trio goes on."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest
import trio
import trio.lowlevel

from proxy.core.telemetry.long_turns import LONG_S, LongTurns
from proxy.net.io import host
from proxy.net.io.loop import LATE_AT_ONCE, NEVER, Clock, EventLoop, Handler
from tests.support.scripted_broker import until


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


class Reader(Handler):
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


def serve(main: Callable[[EventLoop], Awaitable[None]], *, hosts: bool) -> None:
    async def limited(loop: EventLoop) -> None:
        with trio.fail_after(20.0):
            async with trio.open_nursery() as nursery:
                if not hosts:
                    nursery.start_soon(host.serve, loop)
                await main(loop)
                nursery.cancel_scope.cancel()

    if hosts:
        loop = EventLoop()
        return host.run(partial(limited, loop), loop)
    with closing(EventLoop(Clock(trio.current_time))) as loop:
        return trio.run(limited, loop)


def by_host_and_task(main: Callable[[EventLoop], Awaitable[None]]) -> Callable[[bool], None]:
    """A test of a loop that hosts trio, and of one that is a task of it."""

    @pytest.mark.parametrize("hosts", [True, False], ids=["host", "task"])
    def test(hosts: bool) -> None:
        serve(main, hosts=hosts)

    return test


def test_signals_and_errors_reach_trio() -> None:
    async def main(loop: EventLoop) -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            async for number in signals:
                raise ValueError(number)

    with pytest.raises(ExceptionGroup) as raised:
        serve(main, hosts=True)
    assert raised.value.exceptions[0].args == (signal.SIGUSR1,)


@by_host_and_task
async def test_reads_all_bytes_and_an_error_is_that_handlers_alone(loop: EventLoop) -> None:
    for _ in range(3):  # the numbers of sockets come again
        with pair() as (ours, theirs), pair() as (bad, to_bad):
            reader, failing = Reader(loop, ours), Reader(loop, bad)
            await trio.sleep(0.01)
            to_bad.sendall(b"bad!!")
            theirs.sendall(b"12345678")
            await until(lambda: len(reader.read) == 2)  # noqa: B023
            assert reader.read == [b"12345", b"678"]
            assert not reader.ended.is_set()
            theirs.sendall(b"90")
            # trio is about to sleep for long when the end comes
            threading.Timer(0.02, theirs.close).start()
            await reader.ended.wait()
            await failing.ended.wait()
            assert reader.read == [b"12345", b"678", b"90"]
            assert (reader.error, failing.error) == ("", "not liked")
            reader.close()
            failing.close()


@by_host_and_task
async def test_trio_and_other_sockets_go_on_next_to_a_flood(loop: EventLoop) -> None:
    with pair() as (ours, theirs), pair() as (other, to_other):
        much, little = Reader(loop, ours), Reader(loop, other)
        await trio.sleep(0.01)
        theirs.sendall(b"x" * 50_000)  # 10 000 turns
        to_other.sendall(b"now")
        while not little.read:
            await trio.lowlevel.checkpoint()
        assert len(much.read) < 5_000
        stop = trio.Event()

        def flood() -> None:
            while not stop.is_set():
                theirs.sendall(b"y" * 5)
                time.sleep(0.0005)

        async with trio.open_nursery() as inner:
            inner.start_soon(trio.to_thread.run_sync, flood)
            await trio.sleep(0.05)
            assert await trio.to_thread.run_sync(time.sleep, 0.01) is None
            left, right = trio.socket.socketpair()
            with left, right:
                async with trio.open_nursery() as others:
                    others.start_soon(left.recv, 1)
                    await trio.sleep(0.01)
                    await right.send(b"x")
            stop.set()
        await until(lambda: len(much.read) > 10_000)


class Timed(Handler):
    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then

    def on_time(self) -> None:
        self.then()


@by_host_and_task
async def test_runs_at_its_time_and_the_last_word_counts(loop: EventLoop) -> None:
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


@by_host_and_task
async def test_reads_sockets_between_many_that_resume(loop: EventLoop) -> None:
    many = 20 * LATE_AT_ONCE
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


def compute() -> None:
    until_s = time.thread_time() + 4 * LONG_S
    while time.thread_time() < until_s:
        pass


def turns_of(work: Callable[[LongTurns], None], *, in_callback: bool) -> dict[str, int]:
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
    assert turns_of(lambda _: time.sleep(4 * LONG_S), in_callback=True) == {}, "it used no CPU"
