"""Connections to brokers, plain or TLS, each with a deadline."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from proxy.core.errors import UpstreamError
from proxy.core.telemetry.observer import Counters
from proxy.net.listen.transparent import Destination, local_address, spelled
from proxy.net.tls.contexts import ClientTls
from proxy.net.tls.handshakes import Handshakes

Dial = Callable[[], Awaitable[socket.socket]]
Connect = Callable[[list[str]], Awaitable[socket.socket]]
"""Its argument is what `time_limit` returns."""


def loop_error(host: str, port: int) -> str:
    """The error for an address at which the sidecar reaches itself."""
    return f"{host}:{port} leads to this sidecar: expected a broker"


@contextmanager
def time_limit(limit_s: float) -> Iterator[list[str]]:
    """One limit for several steps: the block notes what each of them waits for. Raises TimeoutError, which names what
    was missing."""
    waits_for: list[str] = []
    try:
        with trio.fail_after(limit_s):
            yield waits_for
    except trio.TooSlowError:
        raise TimeoutError(f"no {waits_for[-1]} within {limit_s:g} s") from None


async def open_stream(host: str, port: int, waits_for: list[str]) -> trio.SocketStream:
    """Connect to a host: by a race between its addresses (`trio.open_tcp_stream`, a quarter of a connection's CPU) if
    there are several. Raises OSError: that of the first address if none is reached. `waits_for` is a `time_limit`'s."""
    waits_for.append("answer from DNS")
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    waits_for.append("connection")
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

    async def dial(
        self,
        host: str,
        port: int,
        connect: Connect | None = None,
        *,
        server_name: str | None = None,
        plain: bool = False,
    ) -> socket.socket:
        """A non-blocking socket, a TlsSocket if brokers are reached by TLS, unless it is to be `plain`. `connect` makes
        the plain connection, where that is special. The broker has to prove to be `server_name`, unless that is
        configured; None: `host`. Raises UpstreamError."""
        try:
            with time_limit(self.timeout_s) as waits_for:
                broker = await (connect(waits_for) if connect else self._connect(host, port, waits_for))
                if self.tls is not None and not plain:
                    waits_for.append("TLS handshake")
                    broker = await self.handshakes.with_broker(self.tls, broker, server_name or host, port)
        except (OSError, UnicodeError, UpstreamError) as error:  # a label too long for IDNA
            self.counters.upstream_connect_failures += 1
            if isinstance(error, UpstreamError):
                raise
            raise UpstreamError(f"{Destination(host, port)}: {error}") from error
        self.counters.upstream_connects += 1
        return broker

    async def _connect(self, host: str, port: int, waits_for: list[str]) -> socket.socket:
        stream = await open_stream(host, port, waits_for)
        broker = socket.socket(fileno=stream.socket.detach())  # trio's stream has set TCP_NODELAY
        broker.setblocking(False)
        if self._leads_here(broker):
            broker.close()
            raise UpstreamError(loop_error(host, port))
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
