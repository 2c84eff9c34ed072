"""Connections from balancers: each begins with a PROXY header, which names the client. What a balancer opens for itself
(no header, or LOCAL, UNKNOWN, or its own address in it, as HAProxy's checks in version 1) and closes without a request
is no client: it is not counted, logged or limited. If it goes on, it is a client with the balancer's own address."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from socket import MSG_PEEK
from typing import Final

import trio

from proxy.core.errors import CloseReason
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.proxy_header import MAX_PEEK_BYTES, ProxyHeader, ProxyHeaderError
from proxy.net.close_log import CloseLogLimiter
from proxy.net.listen.transparent import is_in, spelled

CLIENT: Final = "client"
LOCAL: Final = "local"
HEALTH_CHECK: Final = "health_check"
REFUSED: Final = "refused"
OUTCOMES: Final = (CLIENT, LOCAL, HEALTH_CHECK, REFUSED)


@dataclass(frozen=True, slots=True)
class Balancers:
    """The networks whose connections begin with a PROXY header."""

    networks: Sequence[IPv4Network | IPv6Network]
    timeout_s: float
    counters: Counters
    close_log: CloseLogLimiter

    def send(self, host: str) -> bool:
        """Whether a connection from this address has to begin with a header."""
        return bool(self.networks) and is_in(self.networks, host)

    async def client_of(self, client: socket.socket, balancer: tuple[str, int]) -> tuple[str, int] | None:
        """Take the header off a non-blocking socket: the client's address. None: it is no client's, and closed."""
        header = ProxyHeader()
        outcome, error = REFUSED, f"no PROXY header within {self.timeout_s:g} s"
        try:
            with trio.move_on_after(self.timeout_s) as deadline:
                await _read(client, header)
                if header.client is not None and spelled(header.client) == spelled(balancer):
                    header.client = None
                if header.client is None:
                    outcome = HEALTH_CHECK
                    await peek(client, 1)
            if not deadline.cancelled_caught:
                outcome = LOCAL if header.client is None else CLIENT
        except ProxyHeaderError as wrong:
            error = str(wrong)
        except OSError:  # closed; by a health check often with a reset
            error = "the connection was closed inside the PROXY header"
            outcome = REFUSED if header.begun and not header.done else HEALTH_CHECK
        finally:
            if outcome not in (CLIENT, LOCAL):
                client.close()
        self.counters.proxy_headers[outcome] += 1
        if outcome == REFUSED:
            self.counters.connections.opened += 1
            self.counters.connections.closed[str(CloseReason.PROXY_HEADER)] += 1
            peer = f"{balancer[0]}:{balancer[1]}"
            self.close_log.closed(str(CloseReason.PROXY_HEADER), peer=peer, error=error)
        elif outcome != HEALTH_CHECK:
            return header.client or balancer
        return None


async def _read(client: socket.socket, header: ProxyHeader) -> None:
    while not header.done:
        taken = header.feed(await peek(client, MAX_PEEK_BYTES))
        while taken:
            taken -= len(client.recv(taken))


async def peek(client: socket.socket, most: int) -> bytes:
    """What has come. Raises OSError when the connection has been closed."""
    while True:
        await trio.lowlevel.wait_readable(client)
        with suppress(BlockingIOError):
            data = client.recv(most, MSG_PEEK)
            if not data:
                raise ConnectionResetError
            return data
