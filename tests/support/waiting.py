"""Waiting for a condition, in tests that run in real time and without an event loop."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

LIMIT_S: Final = 60.0
"""Long: a condition that is met ends the wait, and a busy machine may take its time."""
POLL_S: Final = 0.02


def until(condition: Callable[[], Any], message: str | Callable[[], str] = "", limit_s: float = LIMIT_S) -> Any:
    """The first true answer. Fails with `message` (made then, if it has to be made) after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s: {message if isinstance(message, str) else message()}")
        time.sleep(POLL_S)
    return answer


def until_serving(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Until it is true of the HTTP server of a process, which may not listen yet and must not end."""

    def met() -> Any:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        try:
            return condition()
        except httpx.HTTPError:
            return None

    until(met)
