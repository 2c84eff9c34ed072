"""Two ends of a TLS connection in one thread, and everything between them in the test's hands."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from proxy.net.tls.channel import TlsSocket
from proxy.net.tls.contexts import ClientTls, KeyPair, ServerTls
from tests.support.certificates import Authority, Issued


@dataclass(slots=True)
class Pair:
    """`ours` is a server's end as the sidecar has it, `theirs` a client's by Python's `ssl`; bytes of one reach the
    other when `carry` is called, in pieces."""

    ours: TlsSocket
    theirs: ssl.SSLSocket
    near: socket.socket
    """What our end is connected to: what it has sent is read here."""
    far: socket.socket
    """What their end is connected to."""

    def carry(self, random_: random.Random | None = None, piece: int = 65_536) -> int:
        """Pass on what either has sent, in pieces of at most so many bytes; how many bytes that were."""
        moved = 0
        for source, sink in ((self.near, self.far), (self.far, self.near)):
            size = random_.randint(1, piece) if random_ is not None else piece
            with suppress(BlockingIOError):
                data = source.recv(size, socket.MSG_PEEK)
                sent = sink.send(data) if data else 0
                moved += len(source.recv(sent)) if sent else 0
        return moved

    def settle(self) -> None:
        """Until nothing is under way."""
        while self.carry():
            pass

    def all_of_theirs(self) -> bytes:
        """What their end finds."""
        found = bytearray()
        with suppress(ssl.SSLWantReadError):
            while part := self.theirs.recv(65_536):
                found += part
        return bytes(found)


def contexts(authority: Authority, host: Issued) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's, as the sidecar makes them."""
    server = ServerTls(KeyPair(host.chain, host.key)).context
    client = ClientTls(authorities=authority.certificate).context
    client.sslsocket_class = ssl.SSLSocket
    return server, client


def shake_hands(ours: TlsSocket, theirs: ssl.SSLSocket, carry: Callable[[], object] = lambda: None) -> None:
    """The handshake of both ends; `carry` passes on what they have sent, where nothing else does."""
    waiting: list[ssl.SSLSocket] = [ours, theirs]
    while waiting:
        for one in list(waiting):
            with suppress(ssl.SSLWantReadError):
                one.do_handshake()
                waiting.remove(one)
        carry()


@contextmanager
def over_tcp(both: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """Our end and theirs after the handshake, over a TCP connection."""
    server, client = both
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    for one in (far, near):
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ours = server.wrap_socket(near, server_side=True, do_handshake_on_connect=False)
    theirs = client.wrap_socket(far, server_hostname="localhost", do_handshake_on_connect=False)
    assert isinstance(ours, TlsSocket)
    with ours, theirs:
        shake_hands(ours, theirs)
        ours.established()
        yield ours, theirs


@contextmanager
def pair(
    both: tuple[ssl.SSLContext, ssl.SSLContext],
    *,
    direct: bool,
    buffer_bytes: int | None = None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Iterator[Pair]:
    """After the handshake. `direct`: our end reads and writes by OpenSSL itself where that is compiled, else by
    Python's `ssl`. `buffer_bytes`: of the sockets, to have them full soon."""
    server, client = both
    client.maximum_version = version
    left, near = socket.socketpair()
    far, right = socket.socketpair()
    for one in (left, near, far, right):
        one.setblocking(False)
        if buffer_bytes is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    ours = server.wrap_socket(left, server_side=True, do_handshake_on_connect=False)
    theirs = client.wrap_socket(right, server_hostname="localhost", do_handshake_on_connect=False)
    assert isinstance(ours, TlsSocket)
    made = Pair(ours, theirs, near, far)
    try:
        shake_hands(ours, theirs, made.settle)
        if direct:
            ours.established()
        yield made
    finally:
        for one in (ours, theirs, near, far):
            one.close()
