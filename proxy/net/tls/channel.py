"""A TLS connection with the interface of a plain non-blocking socket, so that the pumps need not care which it is.

What the pumps rely on with plain sockets holds here too: "would block" is BlockingIOError, a short read has emptied the
socket, and a send that was not taken is repeated with the same bytes.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from proxy.net.tls import python_ssl
from quota import compiled

if TYPE_CHECKING:
    from proxy.net.tls import _openssl

    Context = _openssl.Context | python_ssl.Context

_APPLICATION_DATA: Final = 23
_ALERT: Final = 21
_RECORD_HEADER_BYTES: Final = 5
_ALERT_BYTES: Final = 19
"""An encrypted alert in TLS 1.3 looks like application data of this length: level and description, the content type,
and an authentication tag of 16 bytes (RFC 8446, section 5.2). No request of Kafka's fits in its two bytes."""


def _choose() -> tuple[type[Context], str]:
    if compiled.WHY_NOT:
        return python_ssl.Context, compiled.WHY_NOT
    try:
        from proxy.net.tls import _openssl
    except ModuleNotFoundError:
        return python_ssl.Context, "kquota was compiled without the headers of OpenSSL 3 (Debian: libssl-dev)"
    except ImportError as error:
        return python_ssl.Context, str(error)
    return _openssl.Context, ""


CONTEXT, WHY_NOT = _choose()
"""How contexts and connections are made, and why not by calling OpenSSL directly; empty where they are."""


def description() -> str:
    """For people: what TLS is done by."""
    if WHY_NOT:
        return f"Python's ssl: {WHY_NOT}"
    from proxy.net.tls import _openssl

    return _openssl.LIBRARY


class TlsSocket(socket.socket):
    """Used by the event loop's thread alone, except for steps of the handshake."""

    def __init__(self, context: Context, plain: socket.socket, server_name: str | None = None) -> None:
        """Takes over the descriptor of `plain`. `server_name`: asked of a server, None if we are one."""
        self.channel: Final = context.channel(plain.fileno(), server_name)
        super().__init__(fileno=plain.detach())
        self.setblocking(False)

    def do_handshake(self) -> None:
        """Go on with the handshake. As `ssl.SSLSocket`, raises SSLWantReadError, SSLWantWriteError and OSError."""
        self.channel.handshake()

    def close(self) -> None:
        """Close, as any socket."""
        self.channel.close()
        super().close()

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read as much as there is, across record boundaries. Raises BlockingIOError when it would block."""
        view = memoryview(buffer)
        got = self.channel.receive(view[: nbytes or len(view)])
        if got < 0:
            raise BlockingIOError
        return got

    def send(self, data: Any, flags: int = 0) -> int:
        """Returns how much of `data` was taken, or raises BlockingIOError. The rest has to be sent again before
        anything else."""
        if not (sent := self.channel.send(data)) and len(data):
            raise BlockingIOError
        return sent

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """As `send`, joined: few large records cost less than many small ones."""
        return self.send(b"".join(buffers))

    def shutdown(self, how: int) -> None:
        """SHUT_RD: wakes a reader, which finds the end, as on a plain socket. SHUT_WR: sends close_notify first."""
        if how != socket.SHUT_RD:
            with suppress(OSError):  # the peer's own close_notify is not waited for
                self.channel.say_goodbye()
        super().shutdown(how)

    def unread_bytes(self) -> int:
        """Bytes, encrypted ones among them, that came and have not been read; a lone close_notify does not count."""
        return received_bytes(self) - self._goodbye_bytes() + self.channel.unread_bytes

    def _goodbye_bytes(self) -> int:
        """Length of the alert that is all there is to read: close_notify, which many clients send before they close."""
        try:
            head = super().recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return 0
        if len(head) < _RECORD_HEADER_BYTES:
            return 0
        kind, length = head[0], int.from_bytes(head[3:5], "big")
        total = _RECORD_HEADER_BYTES + length
        alert = kind == _ALERT or (kind == _APPLICATION_DATA and length == _ALERT_BYTES)
        return total if alert and received_bytes(self) == total else 0

    def discard(self, limit: int) -> bool:
        """Discard up to `limit` received bytes without decrypting them. False at the end or when it would block."""
        try:
            return bool(super().recv(limit))
        except OSError:
            return False


def received_bytes(sock: socket.socket) -> int:
    """Bytes received by the kernel and not read yet (FIONREAD)."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0])
