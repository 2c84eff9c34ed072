"""Two ends of a TLS connection in one thread, and everything between them in the test's hands."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.net.tls import channel
from proxy.net.tls.channel import TlsSocket
from proxy.net.tls.contexts import ClientTls, ServerTls
from proxy.net.tls.python_ssl import Context
from tests.support.certificates import Authority, Issued
from tests.support.openssl_peer import Peer

IMPLEMENTATIONS: Final = {"python": Context} | ({} if channel.CONTEXT is Context else {"openssl": channel.CONTEXT})


@contextmanager
def done_by(name: str) -> Iterator[None]:
    """Contexts that are made meanwhile are this implementation's."""
    before, channel.CONTEXT = channel.CONTEXT, IMPLEMENTATIONS[name]
    try:
        yield
    finally:
        channel.CONTEXT = before


@dataclass(slots=True)
class Pair:
    """`ours` is a server's end as the sidecar has it, `theirs` a client's by Python's `ssl`; bytes of one reach the
    other when `carry` is called, in pieces."""

    ours: TlsSocket
    theirs: ssl.SSLSocket
    near: socket.socket
    """What our end is connected to: what it has sent is read here."""
    far: socket.socket

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
        found = bytearray()
        with suppress(ssl.SSLWantReadError):
            while part := self.theirs.recv(65_536):
                found += part
        return bytes(found)


class Contexts(NamedTuple):
    ours: dict[str, Context]
    """A server's, as the sidecar makes it, by who does TLS (`IMPLEMENTATIONS`)."""
    theirs: ssl.SSLContext


def contexts(authority: Authority, host: Issued) -> Contexts:
    ours = {}
    for name in IMPLEMENTATIONS:
        with done_by(name):
            ours[name] = ServerTls(host.pair).context
    return Contexts(ours, ClientTls(authorities=authority.certificate).library_context)


def shake_hands(*ends: TlsSocket | ssl.SSLSocket | Peer, carry: Callable[[], object] = lambda: None) -> None:
    """The handshake of both ends; `carry` passes on what they have sent, where nothing else does."""
    waiting = list(ends)
    while waiting:
        for one in list(waiting):
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                one.do_handshake()
                waiting.remove(one)
        carry()


@contextmanager
def over_tcp(both: Contexts, by: str) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    for one in (far, near):
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ours = TlsSocket(both.ours[by], near)
    theirs = both.theirs.wrap_socket(far, server_hostname="localhost", do_handshake_on_connect=False)
    with ours, theirs:
        shake_hands(ours, theirs)
        yield ours, theirs


@contextmanager
def pair(
    both: Contexts, by: str, *, buffer_bytes: int | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[Pair]:
    """After the handshake. `by`: who does our end's TLS. `buffer_bytes`: of the sockets, to have them full soon."""
    both.theirs.maximum_version = version
    left, near = socket.socketpair()
    far, right = socket.socketpair()
    for one in (left, near, far, right):
        one.setblocking(False)
        if buffer_bytes is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    ours = TlsSocket(both.ours[by], left)
    theirs = both.theirs.wrap_socket(right, server_hostname="localhost", do_handshake_on_connect=False)
    made = Pair(ours, theirs, near, far)
    try:
        shake_hands(ours, theirs, carry=made.settle)
        yield made
    finally:
        for one in (ours, theirs, near, far):
            one.close()
