"""The data path's system calls, which report "would block" by their result instead of an exception.

This is the pure Python version; `calls.pyx` makes the same calls in C. They belong to one thread.
"""

from __future__ import annotations

import os
import select
from socket import MSG_MORE
from typing import Final

from proxy.core.session.outgoing import Buffer
from proxy.net.io.endpoint import Endpoint

MAX_EVENTS: Final = 256
_LONGEST_WAIT_S: Final = 2e6


class PlainEndpoint(Endpoint):
    """A TCP or Unix socket."""

    def receive(self, buffer: memoryview, count: int) -> int:
        """See :meth:`Endpoint.receive`."""
        try:
            return self.sock.recv_into(buffer, count)
        except BlockingIOError:
            return -1

    def send(self, buffer: Buffer, start: int, end: int, more: bool) -> int:
        """See :meth:`Endpoint.send`."""
        try:
            return self.sock.send(memoryview(buffer)[start:end], MSG_MORE if more else 0)
        except BlockingIOError:
            return 0


def splice(source_fd: int, sink_fd: int, count: int, more: bool) -> int:
    """splice(2) without blocking: how many bytes; 0 at the source's end, -1 if it would block."""
    flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE | (os.SPLICE_F_MORE if more else 0)
    try:
        return os.splice(source_fd, sink_fd, count, flags=flags)
    except BlockingIOError:
        return -1


class Poller:
    """An epoll instance. `wait` is the only call that blocks, and it releases the GIL meanwhile."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._events: list[tuple[int, int]] = []

    def register(self, fd: int, events: int) -> None:
        """Register a descriptor. Raises OSError."""
        self._epoll.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Unregister it. Raises OSError."""
        self._epoll.unregister(fd)

    def wait(self, timeout_s: float) -> int:
        """Wait for events, `timeout_s` at most. Returns their number, for `fd_of` and `flags_of`."""
        self._events = self._epoll.poll(min(timeout_s, _LONGEST_WAIT_S), MAX_EVENTS)
        return len(self._events)

    def found(self, events: list[tuple[int, int]]) -> int:
        """The result of a `wait` that asks another source than the kernel: descriptors with their flags."""
        self._events = events
        return len(events)

    def fd_of(self, number: int) -> int:
        """The descriptor of one of the events."""
        return self._events[number][0]

    def flags_of(self, number: int) -> int:
        """The flags of one of the events: EPOLLIN and so on."""
        return self._events[number][1]

    def close(self) -> None:
        """Close the epoll instance."""
        self._epoll.close()
