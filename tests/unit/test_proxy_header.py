"""PROXY headers, versions 1 and 2, in whatever pieces they come."""

import pytest

from proxy.core.wire.proxy_header import V2, ProxyHeader, ProxyHeaderError
from tests.support.proxy_headers import v1, v2

SIX = bytes.fromhex("20010db8" + 11 * "00" + "01")
LONGEST = b":".join([b"ffff"] * 8)
HEADERS = {
    "v1 tcp4": (v1(), ("203.0.113.7", 40_000)),
    "v1 tcp6": (b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n", ("2001:db8::1", 65_535)),
    "v1 longest": (b"PROXY TCP6 " + LONGEST + b" " + LONGEST + b" 65535 65535\r\n", (LONGEST.decode(), 65_535)),
    "v1 unknown with more": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "v2 tcp4": (v2(), ("203.0.113.7", 40_000)),
    "v2 tcp4 with TLVs": (v2(more=b"\x04\0\x05hello" * 1000), ("203.0.113.7", 40_000)),
    "v2 tcp6": (v2(family=0x21, addresses=2 * SIX + b"\0\x01\0\x02"), ("2001:db8::1", 1)),
    "v2 local with addresses": (v2(command=0x20), None),
    "v2 longest": (v2(command=0x20, family=0, addresses=bytes(65_535)), None),
    "v2 unspecified": (v2(family=0, addresses=b""), None),
    "v2 unix": (v2(family=0x31, addresses=bytes(216)), None),
}


@pytest.mark.parametrize("case", HEADERS)
@pytest.mark.parametrize("piece", [1, 5, 16, 70_000])
def test_header_ends_where_it_ends(case: str, piece: int) -> None:
    data, client = HEADERS[case]
    header, stream = ProxyHeader(), data + b"\0\0\0\x17"
    place = 0
    while not header.done:
        taken = header.feed(stream[place : place + piece])
        assert 1 <= taken <= piece
        place += taken
    assert place == len(data)
    assert header.client == client
    assert len(header._head) <= 107


WRONG = {
    "Kafka": b"\0\0\0\x17\0\x12",
    "TLS": b"\x16\x03\x01",
    "HTTP": b"GET / HTTP/1.1\r\n",
    "no space": b"PROXYTCP4 1.1.1.1 1.1.1.1 1 1\r\n",
    "another family": b"PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n",
    "IPv6 as IPv4": b"PROXY TCP4 ::1 ::1 1 1\r\n",
    "IPv4 as IPv6": b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
    "leading zero": b"PROXY TCP4 01.1.1.1 1.1.1.1 1 1\r\n",
    "no ports": b"PROXY TCP4 1.1.1.1 1.1.1.1\r\n",
    "a word more": b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n",
    "port 65536": b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
    "Arabic digits": "PROXY TCP4 1.1.1.1 1.1.1.1 ١ 1\r\n".encode(),
    "line feed alone": b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n",
    "108 bytes": b"PROXY UNKNOWN " + bytes(92) + b"\r\n",
    "no end": b"PROXY " + b"x" * 200,
    "another signature": V2[:11] + b"\r" + bytes(4),
    "version 3": v2(command=0x31),
    "an unknown command": v2(command=0x22),
    "an unknown family": v2(family=0x41),
    "an unknown protocol": v2(family=0x13),
    "short addresses": v2(addresses=bytes(11)),
    "IPv4 addresses as IPv6": v2(family=0x21, addresses=bytes(12)),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("piece", [1, 70_000])
def test_refuses_what_is_no_header(case: str, piece: int) -> None:
    header, data = ProxyHeader(), WRONG[case]
    with pytest.raises(ProxyHeaderError, match="PROXY header"):
        list(map(header.feed, (data[place : place + piece] for place in range(0, len(data), piece))))
