"""Listening sockets, non-blocking."""

from __future__ import annotations

import errno
import socket
from typing import Final

BACKLOG: Final = 1024
LOOPBACK_HOSTS: Final = ("127.0.0.1", "::1")


def bind_all(host: str, port: int) -> list[socket.socket]:
    """The transparent listeners, on one port. A loopback host means both families, as rules for IPv4 lead to 127.0.0.1
    and those for IPv6 to ::1. A machine without IPv6 gets IPv4 alone. Raises OSError."""
    if host not in (*LOOPBACK_HOSTS, "localhost"):
        return [bind(host, port)]
    first = bind("127.0.0.1" if host == "localhost" else host, port)
    other = "::1" if first.family == socket.AF_INET else "127.0.0.1"
    try:
        return [first, bind(other, first.getsockname()[1])]
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return [first]
        first.close()
        raise


def bind(host: str, port: int, of: str = "") -> socket.socket:
    """One listener; ``::`` takes IPv4 as well, alone on a machine without IPv6. Raises OSError that names `of`."""
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == "::")
    except OSError as error:
        reason = (error.strerror or "").partition(" (while")[0]  # create_server appends the address
        raise OSError(error.errno, f"cannot listen on {host}:{port}{of}: {reason}") from error
    listener.setblocking(False)
    return listener
