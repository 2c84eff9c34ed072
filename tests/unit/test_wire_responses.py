"""Addresses and versions in responses: replaced where they must be, all else byte for byte as the broker sent it."""

import random
import struct
import uuid
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from kio.static.constants import EntityType

from proxy.core.wire import apis, messages, responses, schema, throttle
from proxy.core.wire.frames import WireError
from proxy.core.wire.responses import NeedMore, NodeAddress, Rewritten
from proxy.core.wire.walk import Short, Walker
from tests.support import wire_tools as wire

ADDRESSES = [
    (key, version)
    for key, version in wire.kio_versions()
    if key != apis.FETCH and apis.is_known(key, version) and responses.carries_addresses(key, version)
]
Nodes = Sequence[NodeAddress]


def shorter(nodes: Nodes, complete: bool) -> list[tuple[str, int] | None]:
    return [("h", 1 + node.node_id % 60_000) for node in nodes]


TRANSLATIONS: dict[str, responses.Translate] = {
    "shorter": shorter,
    "longer": lambda nodes, _: [(f"broker-{'x' * 140}", 65_535 - node.port % 5) for node in nodes],
    "some": lambda nodes, _: [None if node.port % 2 else ("h", 1) for node in nodes],
}


def answer(api_key: int, version: int, correlation_id: int = 1, **fields: Any) -> bytes:
    """A response, as kafka-python encodes it."""
    cls = wire.kafka_python_class(api_key, "response")
    return wire.kafka_python_frame(cls, version, correlation_id, **fields)


def never(nodes: Nodes, complete: bool) -> list[tuple[str, int] | None]:
    raise AssertionError(f"nothing is to be wire.translated, least of all nodes {nodes}")


@pytest.mark.parametrize(("key", "version"), ADDRESSES)
@pytest.mark.parametrize("translation", TRANSLATIONS)
def test_rewrites_addresses_as_kio_encodes(key: int, version: int, translation: str) -> None:
    """kio's own encoding of the same message with other addresses is the oracle."""
    translate = TRANSLATIONS[translation]
    for seed in range(4):
        message = wire.sample(wire.kio_class(key, version), random.Random(seed), repeat=2 if seed else None)
        frame, expected = wire.kio_frame(message), wire.kio_frame(wire.translated(message, translate))
        found = wire.rewritten(key, version, frame, translate)
        # (kio leaves out the tagged field of Produce when no endpoint is left)
        assert found == expected or wire.kio_read(found, key, version) == wire.kio_read(expected, key, version)
        if getattr(message, "endpoint_type", 1) != 2:
            assert wire.rewritten(key, version, frame, lambda nodes, _: [node[1:] for node in nodes]) == frame


@pytest.mark.parametrize(("key", "version"), [p for p in ADDRESSES if apis.is_flexible(*p) and p[0] != apis.PRODUCE])
def test_unknown_tagged_fields_survive(key: int, version: int) -> None:
    message = wire.sample(wire.kio_class(key, version), random.Random(5), repeat=1)
    expected = wire.with_unknown_tag(wire.kio_frame(wire.translated(message, shorter)))
    assert wire.rewritten(key, version, wire.with_unknown_tag(wire.kio_frame(message)), shorter) == expected


@pytest.mark.parametrize("version", range(10, 14))
def test_unknown_tagged_fields_around_the_endpoints_of_produce(version: int) -> None:
    """The endpoints are in tagged field 0 themselves; others before and behind it stay as they are."""
    frames = []
    for host, port in (("kafka-7", 9092), ("h", 8)):
        endpoints = [{"node_id": 7, "host": host, "port": port, "rack": None}]
        plain = answer(apis.PRODUCE, version, responses=[], throttle_time_ms=3, node_endpoints=endpoints)
        at = 4 + 4 + 1 + 1 + 4  # size, correlation id, header's tags, no responses, throttle time: here are the tags
        assert plain[at : at + 2] == b"\x01\x00"
        frames.append(messages.framed(plain[4:at] + b"\x03" + b"\x4d\x03new" + plain[at + 1 :] + b"\x4e\x00"))
    assert wire.rewritten(0, version, frames[0], shorter) == frames[1]


def test_nodes_that_do_not_exist_are_left_alone() -> None:
    for version in range(4):
        frame = answer(apis.FIND_COORDINATOR, version, error_code=15, node_id=-1, host="", port=-1)
        assert wire.rewritten(10, version, frame, never) == frame
    frame = answer(apis.FIND_COORDINATOR, 3, error_code=0, node_id=5, host="", port=9092)
    assert wire.rewritten(10, 3, frame, never) == frame


def test_describe_cluster_shows_no_controllers() -> None:
    brokers = [{"broker_id": 4, "host": "a", "port": 1, "rack": "r"}]
    for version in (1, 2):
        frame, none = (answer(60, version, cluster_id="c", brokers=one, endpoint_type=2) for one in (brokers, []))
        assert wire.rewritten(60, version, frame, never) == none


@pytest.mark.parametrize("version", range(14))
def test_partitions_of_a_hidden_broker_have_no_leader(version: int) -> None:
    """As brokers themselves answer for a broker that is not alive."""
    seen = []

    def hide_two(nodes: Nodes, complete: bool) -> list[tuple[str, int] | None]:
        seen.append(([node.node_id for node in nodes], complete))
        return [None if node.node_id == 2 else ("h", node.node_id) for node in nodes]

    def metadata(brokers: dict[int, tuple[str, int]], leaders: list[tuple[int, int]]) -> bytes:
        copies = {"replica_nodes": [1, 2, 3], "isr_nodes": [2]}
        copies |= {"offline_replicas": [1, 3]} if version >= 5 else {}
        copies |= {"leader_epoch": 7} if version >= 7 else {}
        partitions = [
            {"error_code": error, "partition_index": index, "leader_id": leader, **copies}
            for index, (error, leader) in enumerate(leaders)
        ]
        nodes = [{"node_id": one, "host": host, "port": port} for one, (host, port) in brokers.items()]
        topics = [
            {"error_code": 0, "name": name, "partitions": partitions[first:]} for name, first in (("a", 0), ("b", 2))
        ]
        return answer(apis.METADATA, version, brokers=nodes, topics=topics)

    kafka = {one: (f"kafka-{one}", 9092) for one in (3, 2, 1)}
    frame = metadata(kafka, [(0, 1), (0, 2), (0, 3), (0, 2), (5, -1)])
    expected = metadata({3: ("h", 3), 1: ("h", 1)}, [(0, 1), (5, -1), (0, 3), (5, -1), (5, -1)])
    assert wire.rewritten(apis.METADATA, version, frame, hide_two) == expected
    assert set(map(str, seen)) == {str(([3, 2, 1], True))}


def test_large_metadata_needs_only_its_head() -> None:
    brokers = [{"node_id": n, "host": "kafka", "port": 9092, "rack": None} for n in range(3)]
    frame = answer(apis.METADATA, 12, brokers=brokers, topics=[])
    head = frame[: frame.rindex(b"kafka") + 5 + 4]
    whole = struct.pack(">i", 5_000_000) + frame[4:]
    more = responses.rewrite(3, 12, whole, 0, len(head), shorter)
    # The tag bytes and the rack of the last broker may be waited for: the walk ends with the array.
    assert isinstance(more, NeedMore)
    assert more.wanted <= len(head) + 2
    done = responses.rewrite(3, 12, whole, 0, len(head) + 2, shorter)
    assert isinstance(done, Rewritten)
    less = 3 * 4  # "kafka" became "h" three times
    assert (done.consumed, len(done.head)) == (len(head), len(head) - less)
    assert struct.unpack_from(">i", done.head)[0] == 5_000_000 - less


def produced(version: int, topics: int, partitions: int) -> bytes:
    """A response without errors for so many topics of so many partitions, with a throttle of 98 765 ms."""
    parts = [{"index": index, "error_code": 0, "base_offset": 1 << 40} for index in range(partitions)]
    names = [{"topic_id": uuid.UUID(int=7)} if version >= 13 else {"name": n * "ß" + "t"} for n in range(topics)]
    said = [{**name, "partition_responses": parts} for name in names]
    return answer(apis.PRODUCE, version, responses=said, throttle_time_ms=98_765)


def walked(frame: bytes, version: int) -> int:
    """Where a walk over all fields finds the throttle; -1: nowhere."""
    walker = Walker(frame, len(frame), len(frame))
    try:
        end = walker.run(throttle._THROTTLE_WALKS[version], apis.response_header_version(0, version) + 8)
    except (Short, WireError):
        return -1
    return walker.throttle_at if end <= len(frame) else -1


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (1, 300), (3, 2), (130, 1)])
@pytest.mark.parametrize("version", range(1, 14))
def test_reads_plain_produce_responses(version: int, topics: int, partitions: int) -> None:
    frame = produced(version, topics, partitions)
    assert responses.rewrite(0, version, frame, 0, len(frame), never) is None
    buf = bytearray(frame)
    assert throttle.patch_throttle(buf, 0, len(buf), 0, version, 98_766)
    assert buf == frame.replace(struct.pack(">i", 98_765), struct.pack(">i", 98_766))
    assert throttle.plain_produce(frame, 0, len(frame), version) == walked(frame, version)


@pytest.mark.parametrize("version", range(9, 14))
def test_other_produce_responses_are_not_plain(version: int) -> None:
    if version >= 10:
        moved = wire.kio_frame(wire.sample(wire.kio_class(0, version), random.Random(1), repeat=1))
        assert throttle.plain_produce(moved, 0, len(moved), version) == -1, "with endpoints"
    frame, plain = produced(version, 2, 2), 0
    for at, byte in product(range(4, len(frame)), (0, 1, 2, 3, 0x7F, 0x80, 0xFF)):
        changed = frame[:at] + bytes((byte,)) + frame[at + 1 :]
        found = throttle.plain_produce(changed, 0, len(changed), version)
        assert found in (-1, walked(changed, version)), at
        plain += found > 0
    assert plain > 2 * 2 * 30, "errors, offsets and times may be any"
    for end in range(5, len(frame)):
        throttle.plain_produce(frame[:end], 0, end, version)  # raises nothing


def api_versions(version: int, offered: dict[int, tuple[int, int]]) -> bytes:
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in offered.items()]
    extra = {"throttle_time_ms": 9} if version else {}
    return answer(apis.API_VERSIONS, version, 6, error_code=0, api_keys=keys, **extra)


@pytest.mark.parametrize(
    ("key", "version", "body", "text"),
    [
        (3, 4, "00000000 7fffffff", "elements"),  # an array of two billion brokers
        (3, 4, "00000000 fffffffe", "-2 elements"),
        (3, 4, "00000000 00000001 00000007 fffe", "length is -2"),
        (3, 4, "00000000 00000001 00000007 7fff", "past the end"),
        (3, 12, "00 00000000 ffffffff0f 00000000", "."),  # brokers
        (3, 12, "00 00000000 ffffffffff01 00000000", "."),  # a varint of more than 32 bits
        (3, 12, "00 00000000 02 00000007 ffffffff0f 00000000", "."),  # host
        (3, 12, "01 05 ffffffff0f 00000000", "."),  # tagged field in the header
        (3, 12, "ffffffff0f 00000000", "."),  # tagged fields in the header
        (18, 3, "0000 ffffffff0f", "."),
        (18, 3, "0000 80808080808001", "."),
        (18, 3, "0000 7f 000300", "."),
        (18, 0, "0000 000003e9" + "0000 0000 0014" * 1001, "declares 1001 APIs"),  # more than there can be
        (0, 10, "00 01 00000000 01 00 01 02 00000001 0261 00000009 0000", "than its declared size"),  # 1, says its tag
        (18, 6, api_versions(4, {3: (0, 12)}), "."),  # another layout
        (18, 3, api_versions(3, {3: (50, 60)}), "Metadata from version 50 on"),
    ],
)
def test_absurd_lengths_and_unknown_layouts_are_refused(key: int, version: int, body: str | bytes, text: str) -> None:
    frame = body if isinstance(body, bytes) else messages.framed(struct.pack(">i", 1) + bytes.fromhex(body))
    with pytest.raises(WireError, match=text) as caught:
        responses.rewrite(key, version, frame, 0, len(frame), never if key == 18 else shorter)
    assert caught.value.reason == ("unsupported_version" if isinstance(body, bytes) else "response_malformed")


@pytest.mark.parametrize("version", range(19))
def test_empty_fetch_response(version: int) -> None:
    frame = messages.empty_fetch_response(version, -5, wire.THROTTLE_MS, 77)
    extra = {"throttle_time_ms": wire.THROTTLE_MS} if version else {}
    extra |= {"error_code": 0, "session_id": 77} if version >= 7 else {}
    assert frame == answer(apis.FETCH, version, -5, responses=[], **extra)


def test_own_requests_name_their_broker_and_no_topics() -> None:
    """What brokers answer to each version: tests/broker/test_wire_against_broker.py."""
    named = messages.api_versions_request(5, 3, "kquota", "kquota", "1.2", cluster_id="abc", node_id=7)
    assert named.endswith(b"\7kquota\0041.2\4abc\0\0\0\7\0")  # as a broker reads it: tests/broker
    unnamed = messages.api_versions_request(5, 3, "kquota", "kquota", "1.2")
    assert unnamed.endswith(b"\7kquota\0041.2\0\xff\xff\xff\xff\0")
    for version in range(1, schema.APIS[apis.METADATA][2] + 1):
        asked = wire.kio_read(messages.metadata_request(version, 3, "c"), apis.METADATA, version, EntityType.request)
        assert (asked.topics, getattr(asked, "allow_auto_topic_creation", False)) == ((), False)
    with pytest.raises(ValueError, match="all of them"):
        messages.metadata_request(0, 1, "c")
    with pytest.raises(WireError):
        messages.metadata_request(99, 1, "c")


@pytest.mark.parametrize("version", range(5))
def test_newer_versions_of_apis_with_addresses_are_not_offered(version: int) -> None:
    offered = dict.fromkeys(schema.APIS, (0, 90)) | {500: (0, 7)}
    expected = {
        key: (0, schema.APIS[key][2] if key in schema.ADDRESS_WALKS or key == 18 else high)
        for key, (_, high) in offered.items()
    } | {500: (0, 7)}
    found = wire.rewritten(18, version, api_versions(version, offered), never)
    assert found == api_versions(version, expected)
    assert wire.read_api_versions(version, found) == expected
    frame = api_versions(version, {key: (low, high) for key, (_, low, high, *_) in schema.APIS.items()})
    assert wire.rewritten(18, version, frame, never) == frame
