"""What `proxy/net/tls/_openssl.pyx` does, by Python's `ssl` alone: slower, where that module is not built."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from socket import SHUT_RD, socket
from typing import Any, Final, cast

from proxy.core.session.outgoing import Buffer
from proxy.net.files import in_memory
from proxy.net.io.endpoint import Endpoint
from proxy.net.tls.certificates import EncryptedKeyError

CIPHERS: Final = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""Of TLS 1.2: CPython's own, which distributions change."""
CHUNK_BYTES: Final = 131_072
"""Encrypted at once, and asked of the kernel at once at most."""
_MIN_BYTES: Final = 17_408
"""At least a record is asked of the kernel."""


class Context:
    """What all connections of one side have in common; it is not changed any more once one has been made."""

    def __init__(self, server: bool, verify: ssl.VerifyMode, names: bool = False) -> None:
        """`server`: towards clients. `verify`: whether peers show a certificate; `names`: and prove their names."""
        self.context = NamedContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = names
        self.context.verify_mode = verify
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java an authority need not be a root
        self.context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: it makes reads write, at our expense mostly
        self.context.set_ciphers(CIPHERS)
        self._server = server
        if server:
            self.context.sni_callback = _note_server_name

    def trust(self, authorities: Sequence[bytes] | None) -> None:
        """Believe what these authorities (DER) have signed; None: those that the system trusts. Raises SSLError."""
        if authorities is None:
            self.context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            self.context.load_verify_locations(cadata=b"".join(authorities))

    def own(self, chain: Sequence[bytes], key: bytes) -> None:
        """Show this certificate, with its chain (DER); the key is PEM. Raises OSError and EncryptedKeyError."""
        pem = "".join(map(ssl.DER_cert_to_PEM_cert, chain)).encode()
        # Python's ssl reads files only, and could block on whatever has replaced them meanwhile.
        with in_memory(pem) as certificate_path, in_memory(key) as key_path:
            self.context.load_cert_chain(certificate_path, key_path, password=_no_password)

    def channel(self, fd: int, server_name: str | None = None) -> Channel:
        """A connection over this socket, whose handshake comes next. `server_name`: asked of a server (SNI)."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return Channel(fd, self.context.wrap_bio(incoming, outgoing, self._server, server_name), incoming, outgoing)


class NamedContext(ssl.SSLContext):
    """A library that makes its own connections with it asks for one name, whatever host it connects to."""

    server_name: str | None = None

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        """As in any context, with our name."""
        if self.server_name is not None:
            named["server_hostname"] = self.server_name
        return super().wrap_socket(*arguments, **named)


def _note_server_name(tls: Any, name: str | None, _: ssl.SSLContext) -> None:
    tls.name_asked = name


def _no_password() -> str:
    raise EncryptedKeyError  # otherwise OpenSSL asks on the terminal


class Channel(Endpoint):
    """A connection, made by a context; the endpoint that the event loop uses."""

    def __init__(self, fd: int, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.fd = fd
        self.splices = False
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._unsent = b""
        self._encrypted_bytes = 0
        """How much plaintext of the next send is already among them."""

    def close(self) -> None:
        """The socket is closed: its descriptor may become another's."""
        self.sock, self.fd = None, -1  # type: ignore[assignment]

    def handshake(self) -> None:
        """Go on. Raises SSLWantReadError or SSLWantWriteError until it is done, another OSError if it has failed."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush_all()
                if self._fill(_MIN_BYTES) < 0:
                    raise
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # the alert
                raise
            else:
                return self._flush_all()

    @property
    def server_name(self) -> str | None:
        """The name that the client has asked for (SNI)."""
        return getattr(self._tls, "name_asked", None)

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate (DER); None if it has shown none."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def unread_bytes(self) -> int:
        """Bytes taken from the socket, and still to be decrypted or read."""
        return self._incoming.pending + self._tls.pending()

    def receive(self, buffer: memoryview, count: int) -> int:
        """Read plaintext of as many records as there are."""
        got, ended = 0, False
        free_bytes = min(max(count, _MIN_BYTES), CHUNK_BYTES)
        read_bytes = free_bytes
        try:
            while got < count and not ended:
                try:
                    part = cast("int", self._tls.read(count - got, buffer[got:count]))
                except ssl.SSLWantReadError:
                    if got and read_bytes < free_bytes:
                        break  # a record was read whole, and nothing follows it
                    read_bytes = self._fill(free_bytes)
                    if read_bytes < 0:
                        break
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    ended = True
                else:
                    got += part
                    ended = not part
        except OSError:
            if not got:
                raise
            ended = True
        finally:
            with suppress(OSError):  # the next send meets it again; here, what was read counts
                self._flush()  # an alert, or the answer to a key update: goes before the next data
        if ended and got:  # what came before the end goes first, and the kernel has to report the end again
            with suppress(OSError), socket(fileno=os.dup(self.fd)) as again:
                again.shutdown(SHUT_RD)
        return got if got or ended or not count else -1

    def send(self, buffer: Buffer, start: int, end: int, more: bool) -> int:
        """After a short send the same bytes have to be sent next, as some of them have been encrypted."""
        view, done = memoryview(buffer)[start:end], 0
        while self._flush():
            done += self._encrypted_bytes
            self._encrypted_bytes = 0
            if done > len(view):
                raise ValueError(f"expected at least the {done} bytes that were encrypted before, got {len(view)}")
            chunk = view[done : done + CHUNK_BYTES]
            if not chunk:
                break
            self._tls.write(chunk)
            self._encrypted_bytes = len(chunk)
        return done

    def send_all(self, buffers: list[Buffer], more: bool) -> int:
        """As `send`, joined: few large records cost less than many small ones."""
        joined = b"".join(buffers)
        return self.send(joined, 0, len(joined), more)

    def say_goodbye(self) -> None:
        """Send close_notify, unless what comes before it has still to be sent. Raises OSError."""
        if self._flush():
            with suppress(OSError):  # the peer's own is not waited for
                self._tls.unwrap()
            self._flush()

    def _fill(self, count: int) -> int:
        """Take encrypted bytes from the socket. Returns how many, 0 at the end, -1 if it would block."""
        try:
            data = os.read(self.fd, count)
        except BlockingIOError:
            return -1
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)

    def _flush(self) -> bool:
        """Send encrypted bytes. False: the socket is full; the rest goes first next time."""
        self._unsent += self._outgoing.read()
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self.fd, self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _flush_all(self) -> None:
        if not self._flush():
            raise ssl.SSLWantWriteError
