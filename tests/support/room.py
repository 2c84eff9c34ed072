"""What a unit test may not do: start processes, use a network, sleep on a real clock."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio
import trio.testing

SLEEP_LIMIT_S: Final = 0.05
"""Long enough to give way to a thread, too short to wait for something that takes time."""

PROCESSES: Final = frozenset(
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "pty.spawn")
)
ADDRESSES: Final = frozenset(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"))
NAMES: Final = frozenset(("socket.getaddrinfo", "socket.gethostbyname", "socket.getnameinfo"))


class NotAUnitTestError(AssertionError):
    """A unit test did what belongs into another room."""


class Guard:
    """Refuses what `refusal` names, while `watching`, to the thread that runs the tests and to those it begins."""

    def __init__(self) -> None:
        self._test = ""
        self._others: frozenset[int] = frozenset()
        self._refused: list[str] = []
        self._hooked = False

    @contextmanager
    def watching(self, test: str) -> Iterator[None]:
        """Until the end of the test of this name."""
        if not self._hooked:  # for good: audit hooks cannot be taken back
            sys.addaudithook(self._audit)
            self._hooked = True
        # Threads that another room's test left behind (a Spark session has some) are not the business of this one.
        mine = threading.get_ident()
        self._others = frozenset(one.ident for one in threading.enumerate() if one.ident not in (None, mine))
        self._refused.clear()
        self._test = test
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(time, "sleep", self._sleep(time.sleep))
                patch.setattr(trio, "sleep", self._trio_sleep(trio.sleep))
                yield
        finally:
            self._test = ""

    def take(self) -> list[str]:
        """What was refused since `watching` began or this was last asked."""
        taken, self._refused = self._refused, []
        return taken

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._watched() and (what := refusal(event, args)):
            self._refuse(*what)

    def _watched(self) -> bool:
        return self._test != "" and threading.get_ident() not in self._others

    def _refuse(self, what: str, room: str) -> None:
        message = f"{self._test}: {what}, which a unit test may not: it belongs into tests/{room}, see tests/README.md"
        self._refused.append(message)
        raise NotAUnitTestError(message)

    def _sleep(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        def watched(seconds: float) -> None:
            if seconds > SLEEP_LIMIT_S and self._watched():
                self._refuse(f"time.sleep({seconds})", "loopback")
            sleep(seconds)

        return watched

    def _trio_sleep(self, sleep: Any) -> Any:
        async def watched(seconds: float) -> None:
            if seconds > SLEEP_LIMIT_S and not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock):
                self._refuse(f"trio.sleep({seconds}) on a real clock (autojump_clock is a fake one)", "loopback")
            await sleep(seconds)

        return watched


def refusal(event: str, args: tuple[Any, ...]) -> tuple[str, str] | None:
    """What the audited event is, and the room for tests that need it; None: allowed."""
    if event in PROCESSES:
        return f"starts a process ({event}: {args[0]!r})" if args else f"starts a process ({event})", "system"
    if event in ADDRESSES and args[0].family != socket.AF_UNIX:
        return f"uses the network ({event}: {args[1]!r})", "loopback"
    if event in NAMES:
        return f"asks for a name ({event}: {args[0]!r})", "loopback"
    return None
