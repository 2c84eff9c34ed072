"""A file descriptor kept in reserve, so that clients can be turned away when there is none left (ADR 0017).

Without it a client that cannot be accepted waits in the listener's backlog, and the listener stays readable all the
time. With it the reserve is closed, the client accepted in its place and closed at once, so that it knows.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from socket import socket
from typing import Final

KEPT_FREE: Final = 64
"""Descriptors for listeners, pipes, the admin port, files and the sidecar's own requests."""
PER_CONNECTION: Final = 2
"""A connection has a socket to the client and one to the broker."""


def most_connections(wanted: int) -> int:
    """`wanted`, or as many as the process's limit of open files allows; at least one."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(wanted, (descriptors - KEPT_FREE) // PER_CONNECTION), 1)


class SpareFd:
    """An open descriptor whose only use is to be closed when another one is needed."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self.refill()

    def refill(self) -> bool:
        """Open the reserve again, if there is a descriptor for it."""
        if self._descriptor is None:
            with suppress(OSError):
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor is not None

    def turn_away(self, listener: socket) -> bool:
        """Accept the oldest client in the backlog and close its connection. False: there was none, or no reserve."""
        if self._descriptor is None:
            return False
        os.close(self._descriptor)
        self._descriptor = None
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
