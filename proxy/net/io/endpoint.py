"""One side's socket as the connection's I/O uses it: reads and writes that never block and do not raise for that."""

from __future__ import annotations

from socket import MSG_MORE, socket

from proxy.core.session.outgoing import Buffer


class Endpoint:
    """A connected non-blocking socket, plain (`proxy.net.io.calls`) or with TLS (`proxy.net.tls`).

    All methods raise OSError for a connection that has failed.
    """

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
        raise NotImplementedError

    def send(self, buffer: Buffer, start: int, end: int, more: bool) -> int:
        """Send `buffer[start:end]`. Returns how many bytes were taken, 0 when the socket is full.

        `more`: the rest of a frame follows, and may share a packet with this. What was not taken has to be sent again
        before anything else.
        """
        raise NotImplementedError

    def send_all(self, buffers: list[Buffer], more: bool) -> int:
        """As `send`, for several buffers in order; this one for a plain socket, compiled or not."""
        try:
            return self.sock.sendmsg(buffers, (), MSG_MORE if more else 0)
        except BlockingIOError:
            return 0
