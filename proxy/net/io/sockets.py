"""The endpoint for a non-blocking socket, and how to close it."""

from __future__ import annotations

from contextlib import suppress
from socket import SHUT_WR, socket

import trio

from proxy.net.io import calls
from proxy.net.io.endpoint import Endpoint
from proxy.net.tls.channel import TlsSocket


def close(sock: socket) -> None:
    """Say so to the other side and close, whatever state the connection is in."""
    trio.lowlevel.notify_closing(sock)
    with suppress(OSError):  # already reset by the peer
        sock.shutdown(SHUT_WR)
    sock.close()


def endpoint_of(sock: object) -> Endpoint:
    """The endpoint for this socket, plain or TLS."""
    if isinstance(sock, TlsSocket):
        return sock.endpoint()
    return calls.PlainEndpoint(sock, splices=True)  # type: ignore[arg-type]
