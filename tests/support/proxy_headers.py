"""PROXY headers as balancers send them."""

from __future__ import annotations

import socket
import struct

from proxy.core.wire.proxy_header import V2

CLIENT = ("203.0.113.7", 40_000)


def v1(host: str = CLIENT[0], port: int = CLIENT[1]) -> bytes:
    return f"PROXY TCP4 {host} 192.0.2.1 {port} 9092\r\n".encode()


OF_CLIENT = socket.inet_aton(CLIENT[0]) + socket.inet_aton("192.0.2.1") + struct.pack("!HH", CLIENT[1], 9092)


def v2(*, command: int = 0x21, family: int = 0x11, addresses: bytes = OF_CLIENT, more: bytes = b"") -> bytes:
    """Version 2; `more` are TLVs."""
    return V2 + struct.pack("!BBH", command, family, len(addresses + more)) + addresses + more


LOCAL = v2(command=0x20, family=0, addresses=b"")
