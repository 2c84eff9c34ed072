"""Waiting for a condition, in tests that run in real time and without an event loop."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

import httpx

LIMIT_S: Final = 60.0
"""Long: a condition that is met ends the wait, and a busy machine may take its time."""
POLL_S: Final = 0.05
"""A look at a sidecar's metrics takes CPU on both sides."""
Answer = TypeVar("Answer")
P = ParamSpec("P")


def until(condition: Callable[[], Any], message: str | Callable[[], str] = "", limit_s: float = LIMIT_S) -> Any:
    """The first true answer. Fails with `message` (made then, if it has to be made) after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not (answer := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {limit_s:g} s: {message if isinstance(message, str) else message()}")
        time.sleep(POLL_S)
    return answer


def in_background(work: Callable[P, Answer], *args: P.args, **named: P.kwargs) -> Future[Answer]:
    """What it brings, or raises, in a thread that nothing waits for at the end of the process."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **named))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until_serving(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Until it is true of the HTTP server of a process, which may not listen yet and must not end."""

    def met() -> Any:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        return answered(condition)

    until(met)


def answered(ask: Callable[[], Answer]) -> Answer | None:
    """What a question over HTTP brings; None while nothing answers."""
    try:
        return ask()
    except httpx.HTTPError:
        return None


def listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
