"""The start of `kquota run`, before and while its modules are imported: signals wait, optional imports are blocked."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
UNUSED: Final = {
    "hypothesis",  # kio: strategies for its users' tests
    "rich",  # structlog: tracebacks with local variables, which may hold client data; ours are Python's own
    "better_exceptions",  # the same
    "snappy",  # prometheus_client: pushing to a remote write endpoint
}
"""Modules that the sidecar's libraries import where they happen to be installed: up to 18 MB of memory."""


@contextmanager
def held_signals() -> Iterator[None]:
    """Signals wait from here on until `release`: their default ends the process at once, and does nothing in the first
    process of a container."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release() -> None:
    """This thread, the main one, handles them from now on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


@contextmanager
def blocked_imports() -> Iterator[None]:
    """Inside, modules that are not used cannot be imported, unless they are already; afterwards they can be again."""
    modules = cast("dict[str, Any]", sys.modules)
    hidden = dict.fromkeys(UNUSED - modules.keys())
    modules.update(hidden)  # None: ModuleNotFoundError, as Python documents it
    try:
        yield
    finally:
        for name in hidden:
            if modules.get(name, name) is None:
                del modules[name]
