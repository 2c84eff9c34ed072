"""The loop below trio: what comes is served at once, and trio's own tasks, timers and threads notice nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from proxy.net.io.reactor import Reactor, take
from proxy.net.io.rounds import AGAIN, LATE_AT_ONCE, Again, Watch
from tests.support.scripted_broker import until

LONG_S = 20.0
"""Nothing here takes that long unless it waits for something that does not come."""


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


class Reader:
    """Reads up to five bytes at a time until the end."""

    def __init__(self, ours: socket.socket, watch: Watch) -> None:
        self.ours = ours
        self.watch = watch
        self.read: list[bytes] = []
        self.turns = 0

    def turn(self) -> str | Again | None:
        self.turns += 1
        try:
            data = self.ours.recv(5)
        except BlockingIOError:
            self.watch.readable = False
            return None
        if not data:
            return "end"
        self.read.append(data)
        if data == b"bad!!":
            raise ValueError("not liked")
        if len(data) < 5 and not self.watch.over:
            self.watch.readable = False
            return None
        return AGAIN


@pytest.fixture(params=[True, False], ids=["below trio", "as trio's guest"])
def nested(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def serving(nursery: trio.Nursery, *, nested: bool) -> Iterator[Reactor]:
    reactor = Reactor()
    reactor.start(nested=nested)
    assert reactor.nested is nested, "this trio keeps its epoll elsewhere: see proxy/net/io/reactor.py"
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
                reader = Reader(ours, reactor.watch(ours))
                ends: list[str] = []

                async def read() -> None:
                    ends.append(await take(reader.watch, reader.turn))

                async with trio.open_nursery() as readers:
                    readers.start_soon(read)
                    await trio.sleep(0.01)
                    theirs.sendall(b"12345678")
                    await until(lambda: len(reader.read) == 2)
                    assert (reader.read, ends) == ([b"12345", b"678"], [])
                    theirs.sendall(b"90")
                    theirs.close()
                assert reader.read == [b"12345", b"678", b"90"]
                assert ends == ["end"]
                reader.watch.close()

    in_trio(main)


def test_an_error_reaches_only_the_task_that_waits(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with (
                serving(nursery, nested=nested) as reactor,
                pair() as (bad, to_bad),
                pair() as (good, to_good),
            ):
                readers = [Reader(bad, reactor.watch(bad)), Reader(good, reactor.watch(good))]
                seen: list[str] = []

                async def read(reader: Reader) -> None:
                    try:
                        seen.append(await take(reader.watch, reader.turn))
                    except ValueError as error:
                        seen.append(str(error))

                async with trio.open_nursery() as inner:
                    for reader in readers:
                        inner.start_soon(read, reader)
                    await trio.sleep(0.01)
                    to_bad.sendall(b"bad!!")
                    to_good.sendall(b"good!")
                    await trio.sleep(0.01)
                    to_good.close()
                assert seen == ["not liked", "end"]
                assert readers[1].read == [b"good!"]

    in_trio(main)


def test_whoever_has_much_to_read_lets_others_in_between(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs), pair() as (other, to_other):
                much, little = Reader(ours, reactor.watch(ours)), Reader(other, reactor.watch(other))
                async with trio.open_nursery() as inner:
                    inner.start_soon(take, much.watch, much.turn)
                    inner.start_soon(take, little.watch, little.turn)
                    await trio.sleep(0.01)
                    theirs.sendall(b"x" * 50_000)  # 10 000 turns
                    to_other.sendall(b"now")
                    while not little.read:
                        await trio.lowlevel.checkpoint()
                    assert len(much.read) < 5_000
                    while len(much.read) < 10_000:
                        await trio.lowlevel.checkpoint()
                    inner.cancel_scope.cancel()

    in_trio(main)


def test_tasks_timers_threads_and_trios_own_sockets_go_on(nested: bool) -> None:
    """While traffic comes without a pause, and while none comes."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, theirs):
                reader = Reader(ours, reactor.watch(ours))
                nursery.start_soon(take, reader.watch, reader.turn)

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
                reader = Reader(ours, reactor.watch(ours))
                nursery.start_soon(trio.to_thread.run_sync, lambda: (time.sleep(0.02), theirs.close()))
                begin_s = trio.current_time()
                assert await take(reader.watch, reader.turn) == "end"
                return trio.current_time() - begin_s

    took_s = in_trio(main)
    assert isinstance(took_s, float)
    assert 0.01 < took_s < LONG_S / 2


def test_a_turn_comes_back_at_its_time_and_the_last_word_counts(nested: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, pair() as (ours, _theirs), pair() as (other, _far):
                watch: Watch = reactor.watch(ours)
                closed: Watch = reactor.watch(other)
                begin_s = trio.current_time()
                called_s: list[float] = []

                def turn() -> str | None:
                    called_s.append(trio.current_time() - begin_s)
                    if len(called_s) == 1:
                        watch.come_back(begin_s + 0.02)  # does not count: the next word does
                        watch.come_back(begin_s + 0.1)
                    if len(called_s) == 2:
                        watch.come_back(begin_s + 0.15)
                    return "enough" if len(called_s) == 3 else None

                waits = trio.Event()

                def once() -> str | None:
                    assert not waits.is_set(), "called although closed"
                    closed.come_back(begin_s + 0.05)
                    waits.set()
                    return None

                nursery.start_soon(take, closed, once)
                await waits.wait()
                closed.close()
                assert await take(watch, turn) == "enough"
                assert called_s[1] >= 0.1
                assert called_s[2] >= 0.15
                watch.close()

    in_trio(main)


def test_reads_sockets_between_many_that_resume(nested: bool) -> None:
    """What comes while hundreds of mutes end waits for a few of them, not for all."""
    many = 20 * LATE_AT_ONCE

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=nested) as reactor, contextlib.ExitStack() as stack:
                back: list[int] = []
                all_back = trio.Event()
                at_s = LONG_S + trio.current_time()
                ours, theirs = stack.enter_context(pair())
                reader: Watch = reactor.watch(ours)
                watches: list[Watch] = []

                def read() -> str | None:
                    with contextlib.suppress(BlockingIOError):
                        ours.recv(100)
                        return f"after {len(back)}"
                    return None

                def muted(number: int) -> str | None:
                    if trio.current_time() < at_s:
                        return None
                    back.append(number)
                    if len(back) == 1:
                        theirs.sendall(b"x")
                    if len(back) == many:
                        all_back.set()
                    return "back"

                for number in range(many):
                    watches.append(reactor.watch(stack.enter_context(pair())[0]))
                    stack.callback(watches[-1].close)
                    nursery.start_soon(take, watches[-1], partial(muted, number))
                for _ in range(3):
                    await trio.lowlevel.checkpoint()  # now all wait
                at_s = trio.current_time()
                for watch in watches:
                    watch.come_back(at_s)
                found = await take(reader, read)
                assert 1 <= int(found.split()[1]) <= 2 * LATE_AT_ONCE
                await all_back.wait()
                reader.close()

    in_trio(main)


async def test_whoever_waits_can_be_cancelled_and_wait_again() -> None:
    async with trio.open_nursery() as nursery:
        with serving(nursery, nested=True) as reactor, pair() as (ours, theirs):
            reader = Reader(ours, reactor.watch(ours))
            with trio.move_on_after(0.01) as scope:
                await take(reader.watch, reader.turn)
            assert scope.cancelled_caught
            theirs.sendall(b"late")
            await trio.sleep(0.01)
            assert reader.read == []  # no task waited for it
            theirs.close()
            assert await take(reader.watch, reader.turn) == "end"
            assert reader.read == [b"late"]


async def test_a_closed_watch_and_a_number_used_again_are_not_mixed_up() -> None:
    async with trio.open_nursery() as nursery:
        with serving(nursery, nested=True) as reactor:
            numbers = set()
            for _ in range(3):
                with pair() as (ours, theirs):
                    numbers.add(ours.fileno())
                    reader = Reader(ours, reactor.watch(ours))
                    theirs.sendall(b"abc")
                    theirs.close()
                    assert await take(reader.watch, reader.turn) == "end"
                    assert reader.read == [b"abc"]
                    reader.watch.close()
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
                watch: Watch = reactor.watch(ours)
                seen: list[bytes] = []

                def turn() -> str | None:
                    try:
                        seen.append(ours.recv(100))
                    except BlockingIOError:
                        watch.readable = False
                        return None
                    fill(full)
                    return "twice" if len(seen) == 2 else None

                def later() -> None:
                    time.sleep(0.1)
                    theirs.sendall(b"second")

                async with trio.open_nursery() as inner:
                    inner.start_soon(take, watch, turn)
                    await trio.sleep(0.01)
                    drain.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        while drain.recv(1 << 20):
                            pass
                    theirs.sendall(b"first")  # both are ready when the loop looks
                    threading.Thread(target=later).start()
                assert seen == [b"first", b"second"]
