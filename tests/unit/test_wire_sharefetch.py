"""ShareFetch responses lose their node endpoints while they stream, and keep their length."""

import random
import struct
from dataclasses import replace

import pytest

from proxy.core.wire import apis, primitives
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import framed
from proxy.core.wire.sharefetch import MAX_PARTIAL_BYTES, ShareFetchScrubber, padding
from proxy.core.wire.walk import MAX_ELEMENTS
from tests.support.wire_tools import kio_class, kio_frame, sample, with_unknown_tag


def scrubbed(frame: bytes, version: int, step: int) -> bytes:
    """The frame fed in pieces of `step` bytes."""
    scrubber, out = ShareFetchScrubber(version), bytearray()
    for end in range(step, len(frame) + step, step):
        out += scrubber.feed(memoryview(frame)[end - step : end])
        assert len(out) <= end
        assert (scrubber._left == 0) is (end >= len(frame))
    assert len(out) == len(frame)
    return bytes(out)


def padded(frame: bytes, length: int, tags_bytes: int = 1) -> bytes:
    """A frame that ends with tagged fields of `tags_bytes`, made `length` bytes long by one tagged field more.

    kio refuses unknown tagged fields, so the expected bytes are put together instead of read back.
    """
    at = len(frame) - tags_bytes
    count = bytes((frame[at] + 1,))
    return framed(frame[4:at] + count + frame[at + 1 :] + padding(length - len(frame)))


def every_way(frame: bytes, version: int) -> bytes:
    whole = scrubbed(frame, version, len(frame))
    for step in (1, 2, 7, 64):
        assert scrubbed(frame, version, step) == whole
    return whole


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_endpoints_go_and_nothing_else(version: int, seed: int) -> None:
    message = sample(kio_class(apis.SHARE_FETCH, version), random.Random(seed), repeat=seed if seed < 6 else None)
    frame, none = kio_frame(message), kio_frame(replace(message, node_endpoints=()))
    assert every_way(frame, version) == (padded(none, len(frame)) if message.node_endpoints else frame)
    frame, none = with_unknown_tag(frame), with_unknown_tag(none)
    assert every_way(frame, version) == (padded(none, len(frame), tags_bytes=6) if message.node_endpoints else frame)


def test_version_0_of_kafka_3_9() -> None:
    """kio does not know it: a message by hand, as ShareFetchResponse.json of 3.9.1 has it."""
    endpoint = struct.pack(">i", 5) + b"\x06kafka" + struct.pack(">i", 9092) + b"\0" + b"\0"
    partition = struct.pack(">ih", 3, 0) + b"\0" + struct.pack(">h", 0) + b"\0" + struct.pack(">ii", 5, 1) + b"\0"
    partition += b"\x06hello" + b"\x02" + struct.pack(">qqh", 1, 2, 1) + b"\0" + b"\0"
    before = struct.pack(">i", 1) + b"\0" + struct.pack(">ih", 0, 0) + b"\0"
    before += b"\x02" + bytes(16) + b"\x02" + partition + b"\0"
    frame = framed(before + b"\x02" + endpoint + b"\0")
    clean = every_way(frame, 0)
    # Saved: the endpoint's 4 + 6 + 4 + 1 + 1 bytes, all filled by a tagged field.
    assert clean == framed(before + b"\x01" + b"\x01" + padding(16))
    assert b"kafka" not in clean


@pytest.mark.parametrize("length", [*range(5, 300), *range(16380, 16400), 2_000_000])
def test_padding_fills_exactly(length: int) -> None:
    field = padding(length)
    assert len(field) == length
    tag, after = primitives.read_uvarint(field, 0, length)
    size, content = primitives.read_uvarint(field, after, length)
    assert tag >= 10_000
    assert content + size == length
    assert primitives.uvarint(size) == field[after:content]


def test_wrong_use_is_an_error() -> None:
    for version in (-1, 3):
        with pytest.raises(WireError) as caught:
            ShareFetchScrubber(version)
        assert caught.value.reason == "unsupported_version"
    scrubber = ShareFetchScrubber(1)
    frame = kio_frame(sample(kio_class(apis.SHARE_FETCH, 1), random.Random(3), repeat=1))
    with pytest.raises(ValueError, match="more bytes"):
        scrubber.feed(frame + b"x")


HEAD = struct.pack(">i", 1) + b"\0" + struct.pack(">ih", 0, 0)
BODY = HEAD + b"\0" + bytes(4)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (HEAD + b"\xff\xff\xff\xff\x0f" + bytes(20), "response_malformed"),  # error message of 4 GiB
        (HEAD + b"\xff\xff\xff\xff\xff\xff" + bytes(20), "response_malformed"),  # not a varint
        (BODY + b"\xff\xff\xff\xff\x0f" + bytes(20), "response_malformed"),  # responses
        (BODY + b"\x01", "response_malformed"),  # ends before the endpoints
        (BODY + b"\x01\x7f" + bytes(9), "response_malformed"),  # 126 endpoints
        (BODY + b"\x01\x02" + bytes(5) + b"\x20", "response_malformed"),
        (BODY + b"\x01" + bytes(MAX_PARTIAL_BYTES + 1), "response_too_large"),
        (b"abc", "frame_too_small"),
    ],
)
def test_malformed_share_fetch_is_refused(payload: bytes, reason: str) -> None:
    for step in (1, 5, 1 << 21):
        with pytest.raises(WireError) as caught:
            scrubbed(framed(payload), 1, step)
        assert caught.value.reason == reason


@pytest.mark.parametrize("where", ["tagged fields", "array elements", "arrays of arrays"])
def test_a_response_of_endless_empty_elements_is_refused_early(where: str) -> None:
    before = bytes(1 + 4 + 2 + 1 + 4)  # no tags, throttle time, error and its message, lock timeout
    many = 10 * MAX_ELEMENTS
    partitions = bytes(16) + primitives.uvarint(1001) + bytes(22 * 1000) + b"\0"
    body = {
        "tagged fields": primitives.uvarint(many) + b"\1\0" * many,
        "array elements": before + primitives.uvarint(many + 1) + bytes(18 * many),
        # 1000 topics, each of which says that it has 1000 partitions
        "arrays of arrays": before + primitives.uvarint(1001) + partitions * 1000,
    }[where]
    frame = struct.pack(">ii", len(body) + 4, 7) + body
    scrubber = ShareFetchScrubber(1)
    parts = [memoryview(frame)[at : at + 65_536] for at in range(0, len(frame) // 2, 65_536)]
    with pytest.raises(WireError, match="more than 100000 elements"):
        list(map(scrubber.feed, parts))
