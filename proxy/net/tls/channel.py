"""A TLS connection as a socket: for all but its bytes, which go through its `channel`, an endpoint."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NoReturn

from proxy.net.tls.python_ssl import Context
from quota import compiled

_APPLICATION_DATA: Final = 23
_ALERT: Final = 21
_RECORD_HEADER_BYTES: Final = 5
_ALERT_BYTES: Final = 19
"""An encrypted alert in TLS 1.3 looks like application data of this length: level and description, the content type,
and an authentication tag of 16 bytes (RFC 8446, section 5.2). No request of Kafka's fits in its two bytes."""


def _choose() -> tuple[type[Context], str]:
    if compiled.WHY_NOT:
        return Context, f"Python's ssl: {compiled.WHY_NOT}"
    try:
        openssl: Any = import_module("proxy.net.tls._openssl")
    except ModuleNotFoundError:
        return Context, "Python's ssl: kquota was compiled without the headers of OpenSSL 3 (Debian: libssl-dev)"
    except ImportError as error:
        return Context, f"Python's ssl: {error}"
    return openssl.Context, openssl.LIBRARY


CONTEXT, DESCRIPTION = _choose()
"""The implementation of TLS in use: OpenSSL called directly, with its version, or Python's `ssl`, with the reason."""


class TlsSocket(socket.socket):
    """Used by the event loop's thread alone, except for steps of the handshake."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("plaintext of a TLS connection goes through its channel")

    recv = recv_into = send = sendall = sendmsg = _refuse  # type: ignore[assignment]

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
