"""Connections to brokers, plain or TLS, each with a deadline."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from proxy.core.errors import UpstreamError
from proxy.core.telemetry.observer import Counters
from proxy.net.listen.transparent import Destination, local_address, spelled
from proxy.net.tls.contexts import ClientTls
from proxy.net.tls.handshakes import Handshakes

Dial = Callable[[], Awaitable[socket.socket]]


def loop_error(host: str, port: int) -> str:
    """The error for an address at which the sidecar reaches itself."""
    return f"{host}:{port} leads to this sidecar: expected a broker"


async def resolve(host: str, port: int) -> list[Any]:
    """The addresses of a host, as `socket.getaddrinfo` returns them."""
    return await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def open_stream(host: str, port: int, found: Sequence[Any]) -> trio.SocketStream:
    """Connect to a host whose addresses are `found`: by a race between them (`trio.open_tcp_stream`, a quarter of a
    connection's CPU) if there are several. Raises OSError: that of the first address if none is reached."""
    try:
        (first, *others) = found
        if others:
            return await trio.open_tcp_stream(host, port)
        plain = trio.socket.socket(*first[:3])
        try:
            await plain.connect(first[4])
        except BaseException:
            plain.close()
            raise
        return trio.SocketStream(plain)
    except OSError as error:
        if isinstance(error.__cause__, ExceptionGroup):
            raise error.__cause__.exceptions[0] from error
        raise


@dataclass(frozen=True, slots=True)
class Dialer:
    """Connects to brokers."""

    timeout_s: float
    """For everything: the name, the connection and the TLS handshake."""
    tls: ClientTls | None
    counters: Counters
    handshakes: Handshakes
    listeners: Callable[[], Iterable[socket.socket]]
    """The sidecar's own: where they are reached instead of a broker, each connection would make the next."""

    async def dial(self, host: str, port: int) -> socket.socket:
        """A non-blocking socket, a TlsSocket if brokers are reached by TLS. Raises UpstreamError."""
        missing = "answer from DNS"
        try:
            with trio.fail_after(self.timeout_s):
                found = await resolve(host, port)
                missing = "connection"
                stream = await open_stream(host, port, found)
                broker = socket.socket(fileno=stream.socket.detach())  # trio's stream has set TCP_NODELAY
                broker.setblocking(False)
                missing = "TLS handshake"
                if self._leads_here(broker):
                    broker.close()
                    raise UpstreamError(loop_error(host, port))
                if self.tls is not None:
                    broker = await self.handshakes.with_broker(self.tls, broker, host, port)
        except (trio.TooSlowError, OSError, UnicodeError, UpstreamError) as error:  # a label too long for IDNA
            self.counters.upstream_connect_failures += 1
            if isinstance(error, UpstreamError):
                raise
            why = f"no {missing} within {self.timeout_s:g} s" if isinstance(error, trio.TooSlowError) else error
            raise UpstreamError(f"{host}:{port}: {why}") from error
        self.counters.upstream_connects += 1
        return broker

    def _leads_here(self, broker: socket.socket) -> bool:
        try:
            there = broker.getpeername()
        except OSError:  # reset by now: its first use fails
            return False
        if there[0] != broker.getsockname()[0]:  # it has left this machine
            return False
        peer = spelled(there)
        hosts = (peer.host, "::") if ":" in peer.host else (peer.host, "::", "0.0.0.0")
        return any(one.port == peer.port and one.host in hosts for one in map(local_address, self.listeners()))

    def through(
        self,
        destination: Destination,
        connect: Callable[[Destination], Awaitable[socket.socket]],
        server_name: str | None = None,
    ) -> Dial:
        """As `dial`, where `connect(destination)` makes the plain connection itself. The broker has to prove to be
        `server_name`, unless that is configured; None: the destination's address."""
        tls = self.tls
        if tls is None:
            return partial(connect, destination)

        async def dial() -> socket.socket:
            plain = await connect(destination)
            with trio.move_on_after(self.timeout_s):
                return await self.handshakes.with_broker(tls, plain, server_name or destination.host, destination.port)
            raise UpstreamError(f"{destination} did not finish the TLS handshake within {self.timeout_s:g} s")

        return dial
