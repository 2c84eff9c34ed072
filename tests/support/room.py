"""What a unit test may not do: start processes, use a network, sleep on a real clock."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio
import trio.testing

SLEEP_LIMIT_S: Final = 0.05
"""Long enough to give way to a thread, too short to wait for something that takes time."""
PROCESSES: Final = ["subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "pty.spawn"]
ADDRESSES: Final = ["socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"]
NAMES: Final = ["socket.getaddrinfo", "socket.gethostbyname", "socket.getnameinfo"]


class Guard:
    """Refuses it, while `watching`, to the thread that runs the tests and to those it begins."""

    def __init__(self) -> None:
        self._test = ""
        self._others: set[int | None] = set()
        self._refused: list[str] = []
        self._hooked = False

    @contextmanager
    def watching(self, test: str) -> Iterator[None]:
        """Until the end of the test of this name."""
        if not self._hooked:  # for good: audit hooks cannot be taken back
            sys.addaudithook(self._audit)
            self._hooked = True
        # Threads that another room's test left behind (a Spark session has some) are not the business of this one.
        self._others = {one.ident for one in threading.enumerate()} - {threading.get_ident()}
        self._refused.clear()
        self._test = test
        try:
            with pytest.MonkeyPatch.context() as patch:
                self._watch_sleep(patch)
                yield
        finally:
            self._test = ""

    def take(self) -> list[str]:
        """What was refused since `watching` began or this was last asked."""
        taken, self._refused = self._refused, []
        return taken

    def _watch_sleep(self, patch: pytest.MonkeyPatch) -> None:
        sleep, trio_sleep = time.sleep, trio.sleep

        def watched(seconds: float) -> None:
            if seconds > SLEEP_LIMIT_S:
                self._refuse(f"time.sleep({seconds})", "loopback")
            sleep(seconds)

        async def trio_watched(seconds: float) -> None:
            if seconds > SLEEP_LIMIT_S and not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock):
                self._refuse(f"trio.sleep({seconds}) on a real clock (autojump_clock is a fake one)", "loopback")
            await trio_sleep(seconds)

        patch.setattr(time, "sleep", watched)
        patch.setattr(trio, "sleep", trio_watched)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in PROCESSES:
            self._refuse(f"{event} {args[:1]}", "system")
        elif event in NAMES or (event in ADDRESSES and args[0].family != socket.AF_UNIX):
            self._refuse(f"{event} {args[1:]}", "loopback")

    def _refuse(self, what: str, room: str) -> None:
        if self._test and threading.get_ident() not in self._others:
            message = f"{self._test}: {what}, which a unit test may not: it belongs into tests/{room}"
            self._refused.append(message)
            raise AssertionError(message)
