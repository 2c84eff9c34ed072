"""What the unit room refuses (tests/support/room.py). Nothing is refused in this room, so that it can be tried here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from tests.support.room import SLEEP_LIMIT_S, Guard, NotAUnitTestError


@pytest.fixture
def guard() -> Iterator[Guard]:
    one = Guard()
    with one.watching("tests/unit/test_x.py::test_y"):
        yield one


def connect() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 1))


def listen() -> None:
    with socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))


@pytest.mark.parametrize(
    ("act", "room"),
    [
        (lambda: subprocess.run([sys.executable, "--version"], check=False), "system"),
        (lambda: os.system("true"), "system"),
        (lambda: os.posix_spawn(sys.executable, [sys.executable, "--version"], {}), "system"),
        (os.fork, "system"),
        (connect, "loopback"),
        (listen, "loopback"),
        (lambda: socket.getaddrinfo("localhost", 80), "loopback"),
        (lambda: time.sleep(SLEEP_LIMIT_S + 0.01), "loopback"),
    ],
    ids=["run", "system", "posix_spawn", "fork", "connect", "listen", "name", "sleep"],
)
def test_what_belongs_elsewhere_is_refused_and_remembered(guard: Guard, act: Callable[[], object], room: str) -> None:
    with pytest.raises(NotAUnitTestError, match=rf"test_y: .*belongs into tests/{room}, see tests/README.md"):
        act()
    assert len(guard.take()) == 1
    assert guard.take() == []


def test_what_waits_for_nothing_is_allowed(guard: Guard) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
    time.sleep(SLEEP_LIMIT_S / 10)
    assert guard.take() == []


async def test_trio_may_sleep_on_a_fake_clock(autojump_clock: trio.testing.MockClock, guard: Guard) -> None:
    await trio.sleep(3600)
    assert guard.take() == []


async def test_trio_may_not_sleep_on_a_real_clock(guard: Guard) -> None:
    with pytest.raises(NotAUnitTestError, match=r"trio.sleep\(3600\) on a real clock"):
        await trio.sleep(3600)
    await trio.sleep(SLEEP_LIMIT_S / 10)
    assert len(guard.take()) == 1


def test_threads_of_tests_before_go_on() -> None:
    """Spark's and Kafka's clients leave some behind that sleep now and then."""
    go, done = threading.Event(), threading.Event()

    def sleeper() -> None:
        go.wait(20)
        time.sleep(SLEEP_LIMIT_S + 0.01)
        done.set()

    thread = threading.Thread(target=sleeper)
    thread.start()
    guard = Guard()
    with guard.watching("x"):
        go.set()
        assert done.wait(20)
    thread.join()
    assert guard.take() == []
