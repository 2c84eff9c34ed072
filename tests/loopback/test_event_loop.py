"""The loop below trio: what comes is served at once, and trio's own tasks, timers and threads notice nothing."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from proxy.net.io.host import Reactor
from proxy.net.io.loop import LATE_AT_ONCE, NEVER, Handler
from tests.support.scripted_broker import until

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

    def __init__(self, reactor: Reactor, ours: socket.socket) -> None:
        super().__init__()
        self.loop = reactor.round
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


@pytest.fixture(params=[True, False], ids=["below trio", "as trio's guest"])
def nested(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def serving(nursery: trio.Nursery, *, nested: bool) -> Iterator[Reactor]:
    reactor = Reactor()
    reactor.start(nested=nested)
    assert reactor.nested is nested, "this trio keeps its epoll elsewhere: see proxy/net/io/host.py"
    nursery.start_soon(reactor.run)
    try:
        yield reactor
    finally:
        reactor.stop()
        nursery.cancel_scope.cancel()


def in_trio(main: object, *arguments: object) -> object:
    async def limited() -> object:
        with trio.fail_after(LONG_S):
            return await main(*arguments)  # type: ignore[operator]

    return trio.run(limited)


def test_reads_all_bytes_that_come_with_the_end(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs):
                reader = Reader(reactor, ours)
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

    in_trio(main)


def test_an_error_is_that_handlers_alone(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (bad, to_bad), pair() as (good, to_good):
                readers = [Reader(reactor, bad), Reader(reactor, good)]
                await trio.sleep(0.01)
                to_bad.sendall(b"bad!!")
                to_good.sendall(b"good!")
                await trio.sleep(0.01)
                to_good.close()
                for reader in readers:
                    await reader.ended.wait()
                assert [reader.error for reader in readers] == ["not liked", ""]
                assert readers[1].read == [b"good!"]

    in_trio(main)


def test_whoever_has_much_to_read_lets_others_in_between(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs), pair() as (other, to_other):
                much, little = Reader(reactor, ours), Reader(reactor, other)
                await trio.sleep(0.01)
                theirs.sendall(b"x" * 50_000)  # 10 000 turns
                to_other.sendall(b"now")
                while not little.read:
                    await trio.lowlevel.checkpoint()
                assert len(much.read) < 5_000
                while len(much.read) < 10_000:
                    await trio.lowlevel.checkpoint()

    in_trio(main)


def test_tasks_timers_threads_and_trios_own_sockets_go_on(nested: bool) -> None:
    """While traffic comes without a pause, and while none comes."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs):
                reader = Reader(reactor, ours)

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

    in_trio(main)


def test_a_woken_task_does_not_wait_for_the_next_timer(nested: bool) -> None:
    """trio is about to sleep for 20 s when a turn has a result for its task."""

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs):
                reader = Reader(reactor, ours)
                nursery.start_soon(trio.to_thread.run_sync, lambda: (time.sleep(0.02), theirs.close()))
                begin_s = trio.current_time()
                await reader.ended.wait()
                return trio.current_time() - begin_s

    took_s = in_trio(main)
    assert isinstance(took_s, float)
    assert 0.01 < took_s < LONG_S / 2


class Timed(Handler):
    """Calls `then` at its times."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then

    def on_time(self) -> None:
        self.then()


def test_runs_at_its_time_and_the_last_word_counts(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor:
                begin_s, loop = trio.current_time(), reactor.round
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

    in_trio(main)


def test_reads_sockets_between_many_that_resume(nested: bool) -> None:
    """What comes while hundreds of mutes end waits for a few of them, not for all."""
    many = 20 * LATE_AT_ONCE

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs):
                back: list[int] = []
                found: list[int] = []
                all_back = trio.Event()

                class Looking(Reader):
                    def run(self) -> None:
                        super().run()
                        if self.read and not found:
                            found.append(len(back))

                reader = Looking(reactor, ours)

                def muted() -> None:
                    back.append(1)
                    if len(back) == 1:
                        theirs.sendall(b"x")
                    if len(back) == many:
                        all_back.set()

                at_s = trio.current_time()
                for _ in range(many):
                    reactor.round.come_back(at_s, Timed(muted))
                await all_back.wait()
                await until(lambda: found)
                assert 1 <= found[0] <= 2 * LATE_AT_ONCE
                reader.close()

    in_trio(main)


async def test_a_forgotten_socket_and_its_number_are_not_mixed_up() -> None:
    async with trio.open_nursery() as nursery:
        with serving(nursery, nested=True) as reactor:
            numbers = set()
            for _ in range(3):
                with pair() as (ours, theirs):
                    numbers.add(ours.fileno())
                    reader = Reader(reactor, ours)
                    theirs.sendall(b"abc")
                    theirs.close()
                    await reader.ended.wait()
                    assert reader.read == [b"abc"]
                    reader.close()
            assert len(numbers) == 1


def test_with_a_clock_of_its_own_trio_is_left_alone() -> None:
    """An autojump clock has to see that nothing happens, or it would never jump."""

    async def main() -> float:
        reactor = Reactor()
        reactor.start()
        try:
            assert not reactor.nested
            await trio.sleep(1000.0)
            return trio.current_time()
        finally:
            reactor.stop()

    begin_s = time.monotonic()
    assert trio.run(main, clock=MockClock(autojump_threshold=0)) >= 1000.0
    assert time.monotonic() - begin_s < LONG_S


async def test_a_busy_event_loop_is_behind_and_an_idle_one_is_not() -> None:
    """`since_ms`. On a machine with much to do either may be mistaken for the other now and then, not always."""
    async with trio.open_nursery() as nursery:
        with serving(nursery, nested=True) as reactor:
            seen = set()
            for _ in range(200):
                before_s = trio.current_time()
                await trio.sleep(0.005)  # the loop waits: what is ready afterwards came after that
                if reactor.round.since_ms / 1000 > before_s:
                    seen.add("idle")
                told_ms = reactor.round.since_ms
                time.sleep(0.005)  # noqa: ASYNC251 - the loop is held up
                await trio.lowlevel.checkpoint()
                if reactor.round.since_ms < told_ms + 4:
                    seen.add("busy")
                if len(seen) == 2:
                    break
            assert seen == {"idle", "busy"}


async def test_what_trio_was_to_find_ready_may_be_used_up_by_then() -> None:
    """A task waits, through trio, for room in a socket; a turn takes that room before trio looks. trio has nothing to
    do then, and must not wait where our sockets are not watched."""

    def fill(sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(b"x" * 65_536)

    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=True) as reactor, pair() as (full, drain), pair() as (ours, theirs):
                fill(full)
                nursery.start_soon(trio.lowlevel.wait_writable, full)

                class Filling(Reader):
                    def run(self) -> None:
                        super().run()
                        fill(full)

                reader = Filling(reactor, ours)

                def later() -> None:
                    time.sleep(0.1)
                    theirs.sendall(b"2nd")

                await trio.sleep(0.01)
                drain.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while drain.recv(1 << 20):
                        pass
                theirs.sendall(b"1st")  # both are ready when the loop looks
                threading.Thread(target=later).start()
                while len(reader.read) < 2:  # noqa: ASYNC110 - trio has to sleep meanwhile
                    await trio.sleep(LONG_S / 100)
                assert reader.read == [b"1st", b"2nd"]
