"""Unit tests: no processes, no network, no waiting. A test that does any of it fails."""

import socket
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing

HERE: Final = Path(__file__).parent
SLEEP_LIMIT_S: Final = 0.05
"""Long enough to give way to a thread, too short to wait for something that takes time."""
PROCESSES: Final = ["subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "pty.spawn"]
ADDRESSES: Final = ["socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"]
NAMES: Final = ["socket.getaddrinfo", "socket.gethostbyname", "socket.getnameinfo"]
refused: list[str] = []
running = False
"""A unit test is."""
sleep, trio_sleep = time.sleep, trio.sleep


def refuse(what: str, folder: str) -> None:
    if running:
        refused.append(f"{what}, which a unit test may not: it belongs in tests/{folder}")
        raise AssertionError(refused[-1])


def audit(event: str, args: tuple[Any, ...]) -> None:
    if event in PROCESSES:
        refuse(f"{event} {args[:1]}", "system")
    elif event in NAMES or (event in ADDRESSES and args[0].family != socket.AF_UNIX):
        refuse(f"{event} {args[1:]}", "loopback")


def watched_sleep(seconds: float) -> None:
    if seconds > SLEEP_LIMIT_S:
        refuse(f"time.sleep({seconds})", "loopback")
    sleep(seconds)


async def watched_trio_sleep(seconds: float) -> None:
    if seconds > SLEEP_LIMIT_S and not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock):
        refuse(f"trio.sleep({seconds}) on a real clock (autojump_clock is a fake one)", "loopback")
    await trio_sleep(seconds)


sys.addaudithook(audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures of modules are watched as well: they are set up within the first test that wants them."""
    global running
    running = HERE in item.path.parents  # pytest asks for tests of all folders
    refused.clear()
    try:
        return (yield)
    finally:
        running = False


@pytest.fixture(autouse=True)
def nothing_was_refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the code under test swallowed, or a thread of it met, fails the test all the same."""
    monkeypatch.setattr(time, "sleep", watched_sleep)
    monkeypatch.setattr(trio, "sleep", watched_trio_sleep)
    yield
    if refused:
        pytest.fail("\n".join(refused), pytrace=False)
