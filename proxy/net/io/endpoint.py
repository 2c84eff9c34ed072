"""One side's socket as the connection's I/O uses it: reads and writes that never block and do not raise for that.

This version uses a socket object's own methods, where kquota is not compiled: `proxy.net.io.calls` makes the system
calls for plain sockets itself. A TLS connection is an endpoint of its own (`proxy.net.tls`).
"""

from __future__ import annotations

from socket import MSG_MORE, socket

from proxy.core.session.outgoing import Buffer


class Endpoint:
    """A connected non-blocking socket. All methods raise OSError for a connection that has failed."""

    __slots__ = ("fd", "sock", "splices")

    def __init__(self, sock: socket, *, splices: bool) -> None:
        self.sock = sock
        """For everything that is not done on each read."""
        self.fd = sock.fileno()
        self.splices = splices
        """A plain socket: splice(2) can move its bytes, and the kernel reports how many are queued."""

    def receive(self, buffer: memoryview, count: int) -> int:
        """Read up to `count` bytes into the beginning of `buffer`. Returns how many; 0 at the end, -1 if it would
        block.

        A short read has emptied the socket.
        """
        try:
            return self.sock.recv_into(buffer, count)
        except BlockingIOError:
            return -1

    def send(self, buffer: Buffer, start: int, end: int, more: bool) -> int:
        """Send `buffer[start:end]`. Returns how many bytes were taken, 0 when the socket is full.

        `more`: the rest of a frame follows, and may share a packet with this. What was not taken has to be sent again
        before anything else.
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
