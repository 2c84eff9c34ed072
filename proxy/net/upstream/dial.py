"""Connections to brokers, plain or TLS, each with a deadline."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
    """Connect to a host whose addresses are `found`. Raises OSError: that of the first address if none is reached.

    A race between addresses (`trio.open_tcp_stream`) costs a quarter of a connection's CPU; one address needs none.
    """
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


class Dialer:
    """Connects to brokers."""

    def __init__(
        self,
        timeout_s: float,
        tls: ClientTls | None,
        counters: Counters,
        handshakes: Handshakes,
        listeners: Callable[[], Iterable[socket.socket]],
    ) -> None:
        """`timeout_s` covers everything: the name, the connection and the TLS handshake. `listeners()` are the
        sidecar's own: where they are reached instead of a broker, each connection would make the next."""
        self._timeout_s = timeout_s
        self._tls = tls
        self._counters = counters
        self._handshakes = handshakes
        self._listeners = listeners

    async def dial(self, host: str, port: int) -> socket.socket:
        """A non-blocking socket, a TlsSocket if brokers are reached by TLS. Raises UpstreamError."""
        missing = "answer from DNS"
        try:
            with trio.fail_after(self._timeout_s):
                found = await resolve(host, port)
                missing = "connection"
                stream = await open_stream(host, port, found)
                broker = socket.socket(fileno=stream.socket.detach())  # trio's stream has set TCP_NODELAY
                broker.setblocking(False)
                missing = "TLS handshake"
                if self._leads_here(broker):
                    broker.close()
                    raise UpstreamError(loop_error(host, port))
                if self._tls is not None:
                    broker = await self._handshakes.with_broker(self._tls, broker, host, port)
        except trio.TooSlowError:
            self._counters.upstream_connect_failures += 1
            raise UpstreamError(f"{host}:{port}: no {missing} within {self._timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:  # a label may be too long for IDNA
            self._counters.upstream_connect_failures += 1
            raise UpstreamError(f"{host}:{port}: {error}") from error
        except UpstreamError:
            self._counters.upstream_connect_failures += 1
            raise
        self._counters.upstream_connects += 1
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
        return any(one.port == peer.port and one.host in hosts for one in map(local_address, self._listeners()))

    def through(
        self,
        destination: Destination,
        connect: Callable[[Destination], Awaitable[socket.socket]],
        server_name: str | None = None,
    ) -> Dial:
        """As `dial`, where `connect(destination)` makes the plain connection itself. The broker has to prove to be
        `server_name`, unless that is configured; None: the destination's address."""
        tls = self._tls
        if tls is None:
            return partial(connect, destination)

        async def dial() -> socket.socket:
            plain = await connect(destination)
            with trio.move_on_after(self._timeout_s):
                return await self._handshakes.with_broker(tls, plain, server_name or destination.host, destination.port)
            raise UpstreamError(f"{destination} did not finish the TLS handshake within {self._timeout_s:g} s")

        return dial
