"""A TLS connection with the interface of a plain non-blocking socket, so that the pumps need not care which it is.

`TlsSocket` is made by the contexts of `proxy.net.tls.contexts` (``SSLContext.sslsocket_class``). What the pumps rely on
with plain sockets holds here too: "would block" is BlockingIOError, a short read has emptied the socket, and a send
that was not taken is repeated with the same bytes.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
import termios
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from quota import compiled

if TYPE_CHECKING:
    from proxy.net.tls._openssl import Channel

_APPLICATION_DATA: Final = 23
_ALERT: Final = 21
_RECORD_HEADER_BYTES: Final = 5
_ALERT_BYTES: Final = 19
"""An encrypted alert in TLS 1.3 looks like application data of this length: level and description, the content type,
and an authentication tag of 16 bytes (RFC 8446, section 5.2). No request of Kafka's fits in its two bytes."""


def _why_not() -> str:
    if compiled.WHY_NOT:
        return compiled.WHY_NOT
    try:
        from proxy.net.tls import _openssl
    except ImportError as error:
        return str(error)
    return _openssl.why_not()


WHY_NOT: Final[str] = _why_not()
"""Why records are read and written by Python's `ssl`; empty where OpenSSL is called directly."""


class TlsSocket(ssl.SSLSocket):
    """Used by the event loop's thread alone, except for steps of the handshake."""

    server_name: str | None = None
    """The name in the client's ClientHello (SNI), on the server's side."""
    channel: Channel | None = None
    """Reads and writes by calling OpenSSL directly, once the handshake is done; None where impossible (`WHY_NOT`)."""

    def established(self) -> None:
        """The handshake is done."""
        if not WHY_NOT:
            from proxy.net.tls import _openssl

            self.channel = _openssl.Channel(self)

    def close(self) -> None:
        """Close, as any socket."""
        if self.channel is not None:
            self.channel.close()
        super().close()

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Read as much as there is, across record boundaries. Raises BlockingIOError when it would block."""
        view = memoryview(buffer)
        wanted = nbytes or len(view)
        if self.channel is not None:
            got = self.channel.receive(view[:wanted])
            if got < 0:
                raise BlockingIOError
            return got
        got = 0
        try:
            while got < wanted:
                count = self.read(wanted - got, view[got:])
                if not count:
                    self._show_end(got)
                    break
                got += count  # type: ignore[operator]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not got:
                raise BlockingIOError from None
        except OSError:
            if not got:
                raise
            self._show_end(got)
        return got

    def _show_end(self, got: int) -> None:
        """Return what came before the end first. A close_notify without the end of the connection after it has then
        been taken from the kernel already, and the reader would wait for ever."""
        if got:
            with suppress(OSError):
                socket.socket.shutdown(self, socket.SHUT_RD)

    def send(self, data: Any, flags: int = 0) -> int:
        """Returns how much of `data` was taken, or raises BlockingIOError. The rest has to be sent again before
        anything else."""
        if self.channel is not None:
            if not (sent := self.channel.send(data)) and len(data):
                raise BlockingIOError
            return sent
        try:
            return super().send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """As `send`, joined: few large records cost less than many small ones."""
        return self.send(b"".join(buffers))

    def shutdown(self, how: int) -> None:
        """SHUT_RD: wakes a reader, which finds the end, as on a plain socket. SHUT_WR: sends close_notify first."""
        if how != socket.SHUT_RD:
            with suppress(OSError, ValueError):  # the peer's own close_notify is not waited for
                self.unwrap()
        socket.socket.shutdown(self, how)

    def unread_bytes(self) -> int:
        """Bytes, encrypted ones among them, that came and have not been read; a lone close_notify does not count."""
        waiting = received_bytes(self) - self._goodbye_bytes()
        if self.channel is not None:
            waiting += self.channel.encrypted_ahead_bytes
        return waiting + (self.pending() if self._sslobj is not None else 0)  # type: ignore[attr-defined]

    def _goodbye_bytes(self) -> int:
        """Length of the alert that is all there is to read: close_notify, which many clients send before they close."""
        try:
            head = socket.socket.recv(self, 64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
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
            return bool(socket.socket.recv(self, limit))
        except OSError:
            return False


def received_bytes(sock: socket.socket) -> int:
    """Bytes received by the kernel and not read yet (FIONREAD)."""
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0])
