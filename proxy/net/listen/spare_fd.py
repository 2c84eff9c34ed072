"""The process's file descriptors: how many there are, what they are for, and one in reserve (ADR 0017). When none is
left, the reserve is closed, and the next client accepted in its place and closed at once, so that it knows; otherwise
it would wait in the backlog, and the listener stay readable all the time."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from socket import socket
from typing import Final

KEPT_FREE: Final = 64
"""Descriptors for pipes, the admin port, files and the sidecar's own requests."""
PER_CONNECTION: Final = 2


def raise_limit() -> tuple[int, int] | None:
    """Raise the soft limit of open files (1024 in many containers, for programs that use select(2)) to the hard one, as
    the JVM and Go do. Returns (before, now); None: it is as high as it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # a hard limit above fs.nr_open, which root can set
        return None
    return soft, hard


def descriptors() -> int:
    """How many file descriptors the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def most_connections(wanted: int, listeners: int) -> int:
    """`wanted`, or as many connections as there are descriptors for, besides this many listeners; 0: there are none."""
    return max(min(wanted, (descriptors() - listeners - KEPT_FREE) // PER_CONNECTION), 0)


class SpareFd:
    """An open descriptor whose only use is to be closed when another one is needed."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self.refill()

    def refill(self) -> None:
        """Open the reserve again, if there is a descriptor for it."""
        if self._descriptor is None:
            with suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def turn_away(self, listener: socket) -> bool:
        """Accept the oldest client in the backlog and close its connection. False: there was none, or no reserve."""
        if self._descriptor is None:
            return False
        self.close()
        try:
            client, _ = listener.accept()
        except OSError:  # the client has gone, or another thread took the descriptor
            return False
        else:
            client.close()
            return True
        finally:
            self.refill()

    def close(self) -> None:
        """Close the reserve."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
