"""One side's socket as the connection's I/O uses it: reads and writes that never block and do not raise for that.

This version uses a socket object's own methods: for TLS, and for plain sockets where kquota is not compiled.
`proxy.io.calls` makes the system calls for plain sockets itself.
"""

from __future__ import annotations

from socket import IPPROTO_TCP, MSG_MORE, TCP_NODELAY, socket

from proxy.session.framing import Buffer


class Endpoint:
    """A connected non-blocking socket. All methods raise OSError for a connection that has failed."""

    __slots__ = ("ends_soon", "fd", "sock", "splices_from", "splices_into")

    def __init__(self, sock: socket, *, splices: bool) -> None:
        self.sock = sock
        """For everything that is not done on each read."""
        self.fd = sock.fileno()
        self.splices_from = splices
        """A plain socket: splice(2) can read from it."""
        self.splices_into = splices
        """splice(2) can write to it: a plain socket, or one for which the kernel encrypts (`proxy.tls.kernel_tls`)."""
        self.ends_soon = False
        """The connection can continue only for a while: the peer has asked for new TLS keys, and the kernel keeps its
        own."""

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

        `more`: the rest of a large frame follows at once, and may share a packet with its head. What was not taken has
        to be sent again before anything else.
        """
        try:
            return self.sock.send(memoryview(buffer)[start:end], MSG_MORE if more else 0)
        except BlockingIOError:
            return 0

    def push(self) -> None:
        """Have kernel TLS send what it holds back for more to come: each page of a pipe but the last counts as that."""
        if self.splices_into and not self.splices_from:
            self.sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)

    def send_all(self, buffers: list[Buffer], more: bool) -> int:
        """As `send`, for several buffers in order."""
        try:
            return self.sock.sendmsg(buffers, (), MSG_MORE if more else 0)
        except BlockingIOError:
            return 0
