"""Signals of a sidecar that is starting wait until it can handle them: their default ends the process at once, and does
nothing in the first process of a container."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def held_signals() -> Iterator[None]:
    """They wait from here on until `release`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release() -> None:
    """This thread, the main one, handles them from now on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
