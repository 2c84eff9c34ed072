"""One side's connection as the turns use it: bytes in and out, without waiting and without an exception for that.

This is the way over a socket object's own methods: for TLS, and for plain sockets where kquota is not compiled.
`proxy.io.calls` makes the system calls itself for plain sockets.
"""

from __future__ import annotations

from socket import MSG_MORE, socket

from proxy.session.framing import Buffer


class Endpoint:
    """A connected non-blocking socket. All methods raise OSError for a connection that has failed."""

    __slots__ = ("fd", "sock", "splices")

    def __init__(self, sock: socket, *, splices: bool) -> None:
        self.sock = sock
        """For all that is not done with each read."""
        self.fd = sock.fileno()
        self.splices = splices
        """The kernel itself can move its bytes, and says how many have come: a plain socket."""

    def receive(self, buffer: memoryview, count: int) -> int:
        """Read up to `count` bytes into the beginning of `buffer`: how many; 0 at the end, -1 if there is nothing now.

        Fewer than asked for are all there was.
        """
        try:
            return self.sock.recv_into(buffer, count)
        except BlockingIOError:
            return -1

    def send(self, buffer: Buffer, start: int, end: int, more: bool) -> int:
        """Send `buffer[start:end]`: how many bytes were taken, which is 0 when the socket is full.

        `more`: the rest of a large frame will follow at once, and may share a packet with its head. What was not taken
        is sent again before anything else.
        """
        try:
            return self.sock.send(memoryview(buffer)[start:end], MSG_MORE if more else 0)
        except BlockingIOError:
            return 0

    def send_all(self, buffers: list[Buffer], more: bool) -> int:
        """As `send`, for several buffers in order."""
        try:
            return self.sock.sendmsg(buffers, (), MSG_MORE if more else 0)
        except BlockingIOError:
            return 0
