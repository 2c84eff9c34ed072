"""The PROXY protocol, versions 1 and 2: the header by which a balancer names the client of a connection.

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt. TLVs are skipped.
"""

from __future__ import annotations

import ipaddress
from typing import Final

V1: Final = b"PROXY "
V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
MAX_V1_BYTES: Final = 107
"""The longest line of version 1, its CRLF included."""
FIXED_BYTES: Final = 16
"""Of version 2: signature, version and command, family and protocol, length of the rest."""
MAX_PEEK_BYTES: Final = 4096

_LOCAL: Final = 0
_PROXIED: Final = 1
_STREAMS: Final = {0x11: 4, 0x21: 16}
"""Family and protocol of TCP over IPv4 and IPv6, and the bytes of an address."""


class ProxyHeaderError(ValueError):
    """The bytes are not a PROXY header."""


class ProxyHeader:
    """Takes a header from the beginning of a stream, however it is split, and nothing behind it."""

    __slots__ = ("_head", "_rest", "client", "done")

    def __init__(self) -> None:
        self._head = bytearray()
        self._rest = 0
        """Bytes of version 2 that are still to come behind the fixed ones."""
        self.done = False
        self.client: tuple[str, int] | None = None
        """(address, port) of the client; None: the balancer speaks for itself (LOCAL, UNKNOWN), or for a client that
        has no TCP address."""

    @property
    def begun(self) -> bool:
        """Whether any byte has come."""
        return bool(self._head)

    def feed(self, data: bytes) -> int:
        """Take what belongs to the header; returns how many bytes, at least 1 unless `done`. Raises
        ProxyHeaderError."""
        taken = 0
        while not self.done and taken < len(data):
            taken += self._take(data[taken:])
        return taken

    def _take(self, data: bytes) -> int:
        head = self._head
        if head[:1] == V1[:1]:
            return self._take_line(data)
        if len(head) < FIXED_BYTES:
            count = min(FIXED_BYTES - len(head), len(data)) if head else 1
            head += data[:count]
            if not (V1.startswith(head) or V2.startswith(head[: len(V2)])):
                raise ProxyHeaderError("the connection does not begin with a PROXY header")
            if len(head) == FIXED_BYTES:
                self._rest = int.from_bytes(head[14:], "big")
                self._check_fixed()
        else:
            count = min(self._rest, len(data))
            head += data[: max(0, FIXED_BYTES + 36 - len(head))]  # two IPv6 addresses and ports
            self._rest -= count
        if len(head) >= FIXED_BYTES and not self._rest:
            self._end_v2()
        return count

    def _take_line(self, data: bytes) -> int:
        head = self._head
        end = data.find(b"\n", 0, MAX_V1_BYTES - len(head)) + 1
        count = end or min(len(data), MAX_V1_BYTES - len(head))
        head += data[:count]
        if not head.startswith(V1[: len(head)]):
            raise ProxyHeaderError("the connection does not begin with a PROXY header")
        if end:
            self.client = _client_of_line(bytes(head))
            self.done = True
        elif len(head) == MAX_V1_BYTES:
            raise ProxyHeaderError(f"a PROXY header of version 1 with more than {MAX_V1_BYTES} bytes")
        return count

    def _check_fixed(self) -> None:
        version, command = divmod(self._head[12], 16)
        family, protocol = divmod(self._head[13], 16)
        if version != 2 or command not in (_LOCAL, _PROXIED) or family > 3 or protocol > 2:
            code = self._head[12:14].hex(" ")
            raise ProxyHeaderError(f"a PROXY header of unknown version, command or protocol: {code}")
        size = _STREAMS.get(self._head[13], 0) if command == _PROXIED else 0
        if size and self._rest < 2 * size + 4:
            raise ProxyHeaderError(f"a PROXY header whose addresses have {self._rest} bytes, not {2 * size + 4}")

    def _end_v2(self) -> None:
        self.done = True
        head = self._head
        size = _STREAMS.get(head[13], 0) if head[12] & 15 == _PROXIED else 0
        if size:
            address = ipaddress.ip_address(bytes(head[FIXED_BYTES : FIXED_BYTES + size]))
            port = FIXED_BYTES + 2 * size
            self.client = str(address), int.from_bytes(head[port : port + 2], "big")


def _client_of_line(line: bytes) -> tuple[str, int] | None:
    words = line.decode("latin-1").removesuffix("\r\n").split(" ")
    if line.endswith(b"\r\n") and words[1] == "UNKNOWN":
        return None
    try:
        if not line.endswith(b"\r\n") or len(words) != 6:
            raise ValueError
        family = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}[words[1]]
        client, _ = family(words[2]), family(words[3])
        port, _ = _port(words[4]), _port(words[5])
    except (KeyError, ValueError):
        raise ProxyHeaderError(f"a PROXY header of version 1 that cannot be parsed: {line!r}") from None
    return str(client), port


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 5 and int(word) < 65_536):
        raise ValueError(word)
    return int(word)
