"""Kernel TLS: the kernel encrypts what a connection sends, so that bodies can be spliced into it (splice(2)).

OpenSSL hands the keys to the kernel at the end of a handshake, where it is built for that and the kernel has the module
`tls`; a container cannot load the module. Whatever is missing, connections are encrypted by OpenSSL as ever: nothing
depends on it. What is received is decrypted by OpenSSL in any case.

The kernel keeps its first keys. When a peer asks for new ones (TLS 1.3's KeyUpdate, which Java sends after 128 GiB),
the connection reads no further request, and ends once those in flight are answered.
"""

from __future__ import annotations

import os
import socket
import ssl
from functools import cache
from typing import Final

from proxy.tls import channel
from quota import compiled

VARIABLE: Final = "KQUOTA_KERNEL_TLS"
"""In the environment; "0" does without."""
_TCP_ULP: Final = 31  # linux/tcp.h: the protocol above TCP that the kernel speaks


@cache
def why_not() -> str:
    """Why the kernel encrypts no connection; empty where it is asked to. Tried once."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE} is 0"
    if compiled.WHY_NOT:
        return "the data path is not compiled"
    if channel.WHY_NOT:
        return channel.WHY_NOT
    if ssl.OPENSSL_VERSION_INFO < (3,):
        return f"{ssl.OPENSSL_VERSION} is older than 3.0"
    try:
        _try()
    except OSError as error:
        return f"the kernel's module tls is not loaded ({error.strerror or error})"
    return ""


def description() -> str:
    """For people: in the log line at start."""
    reason = why_not()
    return f"off: {reason}" if reason else "on"


def _try() -> None:
    """Raises OSError where the kernel has no TLS for a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connected,
    ):
        connected.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
