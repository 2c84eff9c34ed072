"""Connections to brokers, plain or TLS, each with a deadline."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from proxy.core.errors import CloseReason, SessionError, UpstreamError
from proxy.core.telemetry.observer import Counters
from proxy.net.listen.transparent import Destination, OwnConnections, local_address, spelled
from proxy.net.tls.contexts import ClientTls
from proxy.net.tls.handshakes import Handshakes

Dial = Callable[[], Awaitable[socket.socket]]


async def open_stream(host: str, port: int) -> trio.SocketStream:
    """As `trio.open_tcp_stream`, but for the error if no address of the host can be reached: that of the first one."""
    try:
        return await trio.open_tcp_stream(host, port)
    except OSError as error:
        if isinstance(error.__cause__, ExceptionGroup):
            raise error.__cause__.exceptions[0] from error
        raise


class Dialer:
    """Connects to brokers."""

    def __init__(self, timeout_s: float, tls: ClientTls | None, counters: Counters, handshakes: Handshakes) -> None:
        """`timeout_s` covers everything: the name, the connection and the TLS handshake."""
        self._timeout_s = timeout_s
        self._tls = tls
        self._counters = counters
        self._handshakes = handshakes
        self._dialled = OwnConnections()

    async def dial(self, host: str, port: int) -> socket.socket:
        """A non-blocking socket, a TlsSocket if brokers are reached by TLS. Raises UpstreamError."""
        try:
            with trio.fail_after(self._timeout_s):
                broker = await self._connect(host, port)
                if self._tls is not None:
                    broker = await self._handshakes.with_broker(self._tls, broker, host, port)
        except trio.TooSlowError:
            self._counters.upstream_connect_failures += 1
            raise UpstreamError(f"{host}:{port}: no connection within {self._timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:  # a label may be too long for IDNA
            self._counters.upstream_connect_failures += 1
            raise UpstreamError(f"{host}:{port}: {error}") from error
        except UpstreamError:
            self._counters.upstream_connect_failures += 1
            raise
        self._counters.upstream_connects += 1
        with suppress(OSError):  # it may have been reset by now
            self._dialled.add(broker, spelled(broker.getpeername()))
        return broker

    def for_client(self, client: socket.socket, address: tuple[str, int], name: str, dial: Dial) -> Dial:
        """As `dial`, unless the client at `address` is this sidecar: then it raises SessionError. Call it when the
        client has sent a request: no connection of ours has done so before `dial` knew it."""
        came_from, here = spelled(address), local_address(client)

        async def checked() -> socket.socket:
            if self._dialled.has(came_from, here):
                text = f"{name} leads to this sidecar: expected brokers in upstream.bootstrap and advertised.listeners"
                raise SessionError(CloseReason.LOOP, text)
            return await dial()

        return checked

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

    async def _connect(self, host: str, port: int) -> socket.socket:
        stream = await open_stream(host, port)
        broker = socket.socket(fileno=stream.socket.detach())  # trio's stream has set TCP_NODELAY
        broker.setblocking(False)
        return broker
