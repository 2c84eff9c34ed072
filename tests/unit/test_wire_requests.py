"""Request headers of every API and version, and the body fields that quotas need."""

import random
import struct
from typing import Any

import pytest
from kio.static.constants import EntityType

from proxy.core.wire import apis, requests
from proxy.core.wire.frames import MAX_FRAME_BYTES, WireError, diagnose
from proxy.core.wire.messages import framed
from proxy.core.wire.primitives import uvarint
from tests.support import wire_tools as wire
from tests.support.session_tools import encode

REQUEST = EntityType.request
HTTP = [b"GET / HTTP/1.1\r\n", b"POST /topics HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n", b"HTTP/1.1 400 Bad\r\n"]


def header_of(frame: bytes) -> tuple[object, ...] | None:
    """Everything in the header, `body` relative to the frame; the same in all three ways."""

    def parse(buf: bytearray, start: int, end: int) -> tuple[object, ...] | None:
        one = requests.parse_request_header(buf, start, end)
        fields = ("size", "api_key", "api_version", "correlation_id", "client_id")
        return None if one is None else (*(getattr(one, name) for name in fields), one.body - start, one.known)

    found: tuple[object, ...] | None = wire.every_way(parse, frame)
    return found


def parsed(frame: bytes) -> requests.RequestHeader:
    found = requests.parse_request_header(frame, 0, len(frame))
    assert found is not None
    return found


def header(api_key: int, version: int, correlation_id: int, client_id: bytes | None, tags: bytes = b"") -> bytes:
    length = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return struct.pack(">hhi", api_key, version, correlation_id) + length + tags


@pytest.mark.parametrize("client_id", ["client-ß", "", None])
def test_header_of_every_kio_request(client_id: str | None) -> None:
    for key, version in wire.kio_versions(REQUEST):
        message = wire.sample(wire.kio_class(key, version, REQUEST), random.Random(key), repeat=1)
        frame = wire.kio_frame(message, -2, client_id)
        known = apis.is_known(key, version)
        body = len(frame) - len(encode(message)) if known else 14 + len((client_id or "").encode())
        assert header_of(frame) == (len(frame) - 4, key, version, -2, client_id or "", body, known), (key, version)
        assert diagnose(frame) is None, "Kafka itself is not another protocol"


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (32767, 32767), (0, -1), (0, 99), (18, 99), (17, 2)])
def test_unknown_apis_and_versions_have_readable_headers(key: int, version: int) -> None:
    _, *found, _, known = header_of(framed(header(key, version, -7, b"who", b"\0") + b"\xff" * 9)) or ()
    assert (found, known) == ([key, version, -7, "who"], False)
    for length, text in ((99, "."), (-2, "length is -2")):
        with pytest.raises(WireError, match=text) as caught:
            requests.parse_request_header(framed(header(key, version, 1, b"")[:-2] + struct.pack(">h", length)), 0, 14)
        assert caught.value.reason == "header_malformed"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (header(3, 9, 5, b"c", b"\x02\x05\x03abc\x81\x01\x00"), (3, 9, 5, "c")),  # tags 5 and 129
        (header(3, 1, 5, b"a\xff"), (3, 1, 5, "a\N{REPLACEMENT CHARACTER}")),  # as Java does
        (struct.pack(">hhi", 7, 0, 5), (7, 0, 5, "")),  # ControlledShutdown 0 has no client id
    ],
    ids=["tags", "utf8", "none"],
)
def test_odd_headers_are_read(head: bytes, expected: tuple[object, ...]) -> None:
    for body in (b"", b"body"):
        size = len(head) + len(body)
        assert header_of(framed(head + body)) == (size, *expected, 4 + len(head), True)


def reason_of(frame: bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> str:
    """The reason of the WireError, which comes as soon as possible with single bytes too, and nothing else before."""
    reasons = set()
    for buf, end in wire.growing(frame + wire.TRAILING):
        try:
            assert requests.parse_request_header(buf, 0, end, max_frame_bytes) is None
        except WireError as error:
            reasons.add((error.reason, str(error) != ""))
    ((reason, explained),) = reasons
    assert explained
    return reason


def sized(size: int, head: bytes | None = None) -> bytes:
    return struct.pack(">i", size) + (head or header(3, 1, 1, b"c"))


SHORT = [
    sized(size, whole)
    for key, version, needed in ((3, 1, 16), (3, 9, 17), (999, 1, 16))
    for whole in [header(key, version, 1, b"client", b"\0")]
    for size in range(8, len(whole) - 17 + needed)
]
"""The header does not fit into the frame."""
TAGS = [b"\x01\x00\x7f", b"\xff\xff\xff\xff\x0f" + b"\0" * 20, b"\x80\x80\x80\x80\x80\x80"]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        *((sized(size), "frame_size_negative") for size in (-1, -(1 << 31))),
        *((sized(size), "frame_too_small") for size in (0, 7)),
        *((sized(size), "frame_too_large") for size in (MAX_FRAME_BYTES + 1, (1 << 31) - 1)),
        *((frame, "header_malformed") for frame in (*SHORT, framed(struct.pack(">hhih", 3, 1, 1, -2)))),
        *((framed(header(3, 9, 1, b"c", tags)), "header_malformed") for tags in TAGS),
    ],
)
def test_frames_without_a_header_are_refused(frame: bytes, reason: str) -> None:
    assert reason_of(frame) == reason


def test_the_limit_itself_is_allowed() -> None:
    assert parsed(sized(MAX_FRAME_BYTES)).size == MAX_FRAME_BYTES
    assert reason_of(sized(1000), max_frame_bytes=999) == "frame_too_large"


def test_refuses_endless_tagged_fields_unwalked() -> None:
    many = [uvarint(count) + b"\1\0" * 10 for count in (requests.MAX_HEADER_TAGS + 1, 2**31 - 1)]
    for tags in (b"\x01\x00\x80\x80\x80\x20", *many):  # 64 MiB of one, or many
        with pytest.raises(WireError, match="tagged fields"):
            parsed(struct.pack(">i", 90_000_000) + header(3, 9, 1, b"c", tags))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        *((bytes.fromhex(first), "tls_on_plain_port") for first in ("16030102000100", "16030300ff")),
        *((first, "http_on_kafka_port") for first in HTTP),
        (b"SSH-2.0-OpenSSH\r\n", "ssh_on_kafka_port"),
        (b"PROXY TCP4 1.2.3.4\r\n", "proxy_protocol_on_kafka_port"),
        (b"\r\n\r\n\0\r\nQUIT\n", "proxy_protocol_on_kafka_port"),
    ],
)
def test_other_protocols_are_named(first: bytes, reason: str) -> None:
    assert (diagnose(first) or ("",))[0] == reason
    assert reason_of(first + bytes(20)) == reason
    assert diagnose(first[:3]) is None
    # Even where frames of that size are allowed, unless what follows is a known API.
    with pytest.raises(WireError) as caught:
        requests.parse_request_header(first[:4] + b"\x7f" * 20, 0, 24, (1 << 31) - 1)
    assert caught.value.reason == reason


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("transactional_id", [None, "", "tx", "t" * 126, "t" * 127, "t" * 150])
def test_reads_acks(version: int, acks: int, transactional_id: str | None) -> None:
    cls = wire.kafka_python_class(apis.PRODUCE, "request")
    names: dict[str, Any] = {"transactional_id": transactional_id} if version >= 3 else {}
    frame = wire.kafka_python_frame(cls, version, acks=acks, timeout_ms=0x01010101, topic_data=[], **names)
    body = parsed(frame).body

    def parse(buf: bytearray, start: int, end: int) -> int | None:
        found = requests.produce_acks(buf, start + body, max(end, start + body), version)
        return None if found == requests.NO_ACKS_YET else found

    assert wire.every_way(parse, frame[: body + 200]) == acks


@pytest.mark.parametrize(
    ("body", "version", "text"),
    [
        (b"\xff\xfe\0\0\0\0", 3, "length is -2"),
        (b"\xff\xff\xff\xff\xff\xff", 9, "not a number"),
        (b"\xff\xff\xff\xff\x0f", 9, "the transactional id's length is"),  # 4 GiB
        (b"\x81\x80\x02", 9, "the transactional id's length is"),  # 32 768, one more than Kafka's strings have
    ],
)
def test_acks_after_invalid_lengths(body: bytes, version: int, text: str) -> None:
    with pytest.raises(WireError, match=text):
        requests.produce_acks(body, 0, len(body), version)
    assert requests.produce_acks(b"\x80\x80\x02", 0, 3, 9) == requests.NO_ACKS_YET  # 32 767: there may be more to come


FETCH_FIELDS = {"min_bytes": 0, "max_bytes": None, "session_id": 0, "session_epoch": -1}
"""And what they are in versions that lack them."""
PLACES = ("min_bytes", "max_bytes", "session_epoch")


@pytest.mark.parametrize("version", range(19))
@pytest.mark.parametrize("seed", range(3))
def test_reads_fetch(version: int, seed: int) -> None:
    wait, least, most, session, epoch, replica = random.Random(seed).sample(range(1, 1 << 31), 6)
    given: dict[str, Any] = {"max_wait_ms": wait, "min_bytes": least, "topics": []}
    given |= {"replica_id": replica} if version < 15 else {}
    given |= {"max_bytes": most} if version >= 3 else {}
    given |= {"isolation_level": 1} if version >= 4 else {}
    given |= {"session_id": session, "session_epoch": epoch, "forgotten_topics_data": []} if version >= 7 else {}
    frame = wire.kafka_python_frame(wire.kafka_python_class(apis.FETCH, "request"), version, **given)
    body = parsed(frame).body

    def parse(buf: bytearray, start: int, end: int) -> tuple[list[int | None], list[int]] | None:
        fields = requests.parse_fetch(buf, start + body, max(end, start + body), version)
        if fields is None:
            return None
        places = [*(getattr(fields, f"{name}_at") for name in PLACES), fields.rest]
        return [getattr(fields, name) for name in FETCH_FIELDS], [max(at - start, -1) for at in places]

    found, (*places, rest) = wire.every_way(parse, frame)
    assert found == [given.get(name, default) for name, default in FETCH_FIELDS.items()]
    for name, at in zip(PLACES, places, strict=True):
        assert frame[at : at + 4] == struct.pack(">i", given[name]) if name in given else at == -1
    # What is left: an empty array of topics, from 7 on one of forgotten topics, from 11 on an empty rack, the tags.
    array = 1 if version >= 12 else 4
    rack = 0 if version < 11 else 1 if version >= 12 else 2
    assert rest == len(frame) - array - (array if version >= 7 else 0) - rack - (version >= 12)


def test_cache_of_client_ids_is_bounded() -> None:
    for client_id in (*(b"id-%d" % number for number in range(10_000)), b"x" * 32767):
        assert parsed(framed(header(3, 1, 5, client_id))).client_id == client_id.decode()
    assert len(requests._client_ids) <= requests._MAX_CACHED_CLIENT_IDS
    assert b"x" * 32767 not in requests._client_ids
