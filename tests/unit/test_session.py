"""The session as transcripts: bytes in on one side, out on the other, and until when the client is muted."""

from __future__ import annotations

import struct

import pytest
from kio.schema.errors import ErrorCode

from proxy.core.errors import CloseReason, SessionError
from tests.support.session_tools import (
    API_VERSIONS,
    FETCH,
    MB,
    METADATA,
    THREE_WAYS,
    Cut,
    answers,
    encode,
    from_broker,
    from_client,
    kio_message,
    ledger,
    produce,
    produce_response,
    request,
    response,
    resumed,
    session,
)

three_ways = pytest.mark.parametrize("cut", THREE_WAYS)


@three_ways
def test_requests_and_responses_pass_unchanged_and_in_order(cut: Cut) -> None:
    one = session(ledger())
    requests = produce(1, 200) + request(METADATA, 1, 2, b"\0\0\0\0") + request(999, 3, 3, b"opaque") + produce(4, 90)
    assert from_client(one, requests, cut=cut) == requests
    assert [pending.correlation_id for pending in one.exchange] == [1, 2, 3, 4]
    responses = produce_response(1)
    assert from_broker(one, responses, cut=cut) == responses
    # An unknown API's response passes untouched; Metadata's has its turn first.
    assert [pending.correlation_id for pending in one.exchange] == [2, 3, 4]
    assert from_broker(one, response(METADATA, 1, 2, struct.pack(">iii", 0, -1, 0)), cut=cut)
    unknown = struct.pack(">ii", 12, 3) + b"whatever"
    assert from_broker(one, unknown + produce_response(4), cut=cut) == unknown + produce_response(4)
    assert one.quiet


@three_ways
def test_acks_0_has_no_response(cut: Cut) -> None:
    one = session(ledger())
    requests = produce(1, 100, acks=0) + produce(2, 100)
    assert from_client(one, requests, cut=cut) == requests
    assert from_broker(one, produce_response(2), cut=cut) == produce_response(2)
    assert one.quiet


@three_ways
def test_over_quota_produce_mutes_at_once_and_tells_the_rest(cut: Cut) -> None:
    # KIP-13: 5 MB/s, ten windows of 1 s. 60 MB at once: 60 MB / 10 s = 6 MB/s, (6 - 5) / 5 * 10 s = 2 s.
    one = session(ledger(produce_rate=5 * MB, smooth=False))
    first = produce(1, 60 * MB)
    sent = from_client(one, first[:1000], 0.0, cut)
    assert one.requests.reader.movable() == len(first) - 1000
    one.client_moved(len(first) - 1000, 0.0)
    assert sent == first[:1000]
    assert one.mute_until_ms == 2000.0
    # The broker took 300 ms: 1 700 ms are left, which is more than the broker's own 5 ms.
    assert from_broker(one, produce_response(1, throttle_ms=5), 300.0, cut) == produce_response(1, throttle_ms=1700)


def test_the_brokers_own_throttle_time_wins_when_it_is_longer() -> None:
    one = session(ledger(produce_rate=100, smooth=False))
    from_client(one, produce(1, 2000))  # 2 000 B in 10 s = 200 B/s; (200 - 100) / 100 * 10 s = 10 s
    assert one.mute_until_ms == 10_000.0
    assert from_broker(one, produce_response(1, 20_000), 0.0) == produce_response(1, 20_000)


def test_a_slow_broker_leaves_nothing_to_wait_for() -> None:
    one = session(ledger(produce_rate=100, smooth=False))
    from_client(one, produce(1, 2000))
    assert from_broker(one, produce_response(1), 10_500.0) == produce_response(1, 0)


def test_acks_0_is_muted_without_a_response() -> None:
    one = session(ledger(produce_rate=100, smooth=False))
    from_client(one, produce(1, 2000, acks=0))
    assert one.mute_until_ms == 10_000.0
    assert one.quiet


def test_requests_read_with_a_throttled_one_wait_for_the_mute() -> None:
    one = session(ledger(produce_rate=100, smooth=False))
    first, second, third = produce(1, 2000), produce(2, 50), request(METADATA, 1, 3, b"\0\0\0\0")
    assert from_client(one, first + second + third[:5]) == first
    assert one.has_backlog
    # Replies flow during the mute (KIP-219).
    assert from_broker(one, produce_response(1), 0.0) == produce_response(1, 10_000)
    # 2 000 B and 50 B more than 11 s later: the first sample (last event at 0) is out of the window, 50 B are fine.
    assert resumed(one, 11_000.0) == second
    assert not one.has_backlog
    assert from_client(one, third[5:], 11_000.0) == third


def test_too_many_requests_in_flight_stop_the_client() -> None:
    one = session(ledger(), max_in_flight=2)
    requests = [produce(number, 60) for number in range(4)]
    assert from_client(one, b"".join(requests)) == requests[0] + requests[1]
    assert one.must_wait
    assert one.has_backlog
    from_broker(one, produce_response(0))
    assert one.taken() == requests[2]
    assert one.must_wait
    assert one.has_backlog


@three_ways
def test_replaces_broker_addresses_and_streams_the_rest(cut: Cut) -> None:
    one = session(ledger())
    from_client(one, request(METADATA, 1, 7, b"\xff\xff\xff\xff"))
    kio = kio_message("metadata", 1, "response")
    body = encode(
        kio.MetadataResponse(
            brokers=(kio.MetadataResponseBroker(node_id=1, host="real-broker", port=9092, rack=None),),
            controller_id=1,
            topics=(),
        )
    )
    changed = encode(
        kio.MetadataResponse(
            brokers=(kio.MetadataResponseBroker(node_id=1, host="sidecar", port=19_001, rack=None),),
            controller_id=1,
            topics=(),
        )
    )
    tail = b"t" * 500  # stands for topics: passed by count, never looked at
    got = from_broker(one, response(METADATA, 1, 7, body + tail), cut=cut)
    assert got == response(METADATA, 1, 7, changed + tail)
    assert one.quiet


@three_ways
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (struct.pack(">i", -1) + b"x" * 20, "frame_size_negative"),
        (struct.pack(">i", 0) + b"x" * 20, "frame_too_small"),
        (struct.pack(">i", 200_000_000) + b"x" * 20, "frame_too_large"),
        (bytes.fromhex("160301020001000001fc0303") + b"x" * 20, "tls_on_plain_port"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http_on_kafka_port"),
    ],
)
def test_what_is_not_kafka_ends_the_connection_and_is_named(raw: bytes, kind: str, cut: Cut) -> None:
    one = session(ledger())
    with pytest.raises(SessionError) as caught:
        from_client(one, raw, cut=cut)
    assert caught.value.reason is CloseReason.CLIENT_MALFORMED
    assert caught.value.kind == kind


@pytest.mark.parametrize("length", range(1, 25))
def test_a_frame_too_short_for_its_header_never_hangs_nor_passes(length: int) -> None:
    """The header cut at each byte, inside a frame whose size says that this is all."""
    payload = request(METADATA, 9, 5, b"", client_id="client-x")[4:][:length]
    one = session(ledger())
    raw = struct.pack(">i", len(payload)) + payload
    with pytest.raises(SessionError) as caught:
        from_client(one, raw + b"\0" * 64)
    assert caught.value.reason is CloseReason.CLIENT_MALFORMED
    assert caught.value.kind is not None


def test_refuses_newer_version_of_api_with_addresses() -> None:
    one = session(ledger())
    from_client(one, request(METADATA, 90, 7, b"\0"))
    with pytest.raises(SessionError) as caught:
        from_broker(one, response(METADATA, 90, 7, b"\0" * 50))
    assert caught.value.reason is CloseReason.UNSUPPORTED_VERSION


def test_refuses_newer_produce_and_fetch_uncountable() -> None:
    for api_key in (0, FETCH):
        with pytest.raises(SessionError) as caught:
            from_client(session(ledger()), request(api_key, 90, 7, b"\0" * 64))
        assert caught.value.reason is CloseReason.UNSUPPORTED_VERSION


def test_local_answers_wait_for_their_turn() -> None:
    one = session(ledger(fetch_rate=100, smooth=False))
    kio = kio_message("fetch", 4, "request")
    body = encode(kio.FetchRequest(replica_id=-1, max_wait=kio_ms(500), min_bytes=1, max_bytes=1000, topics=()))
    from_client(one, request(FETCH, 4, 1, body))
    from_broker(one, response(FETCH, 4, 1, struct.pack(">ii", 0, 0) + b"d" * 2000))  # over the quota now
    slow = request(METADATA, 1, 2, b"\0\0\0\0")
    assert from_client(one, slow + request(FETCH, 4, 3, body)) == slow
    assert answers(one) == b""  # Metadata has not been answered yet
    metadata = response(METADATA, 1, 2, struct.pack(">iii", 0, -1, 0))
    got = from_broker(one, metadata)
    assert got.startswith(metadata)
    size, correlation_id, throttle_ms, topics = struct.unpack(">iiii", got[len(metadata) :])
    assert (size, correlation_id, topics) == (12, 3, 0)
    assert throttle_ms > 0


def kio_ms(milliseconds: int) -> object:
    import datetime

    return datetime.timedelta(milliseconds=milliseconds)


@three_ways
def test_turns_down_newer_api_versions_as_a_broker(cut: Cut) -> None:
    one = session(ledger())
    assert from_client(one, request(API_VERSIONS, 99, 4, b"whatever"), cut=cut) == b""
    # v0 layout whatever was asked: correlation id, error 35 UNSUPPORTED_VERSION, one API: 18 with versions 0 to 5.
    assert answers(one) == struct.pack(">iihihhh", 16, 4, 35, 1, 18, 0, 5)
    after = request(API_VERSIONS, 0, 5, b"")
    assert from_client(one, after, cut=cut) == after


@three_ways
def test_a_throttled_produce_whose_leader_moved_tells_both(cut: Cut) -> None:
    """The node endpoint is rewritten and the throttle time set, in the same response (Produce v10+, KIP-951)."""
    kio = kio_message("produce", 10, "response")

    def answer(host: str, port: int, throttle_ms: int) -> bytes:
        partition = kio.PartitionProduceResponse(
            index=0,
            error_code=ErrorCode.not_leader_or_follower,
            base_offset=-1,
            log_append_time=None,
            record_errors=(),
            current_leader=kio.LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
        )
        return encode(
            kio.ProduceResponse(
                responses=(kio.TopicProduceResponse(name="t", partition_responses=(partition,)),),
                throttle_time=kio_ms(throttle_ms),
                node_endpoints=(kio.NodeEndpoint(node_id=2, host=host, port=port, rack=None),),
            )
        )

    one = session(ledger(produce_rate=100, smooth=False))
    body = b"\0" + struct.pack(">hi", 1, 30_000) + b"r" * 1984
    frame = request(0, 10, 1, body)
    assert len(frame) - 4 == 2003  # (200.3 - 100) / 100 * 10 s = 10.03 s
    from_client(one, frame, cut=cut)
    got = from_broker(one, response(0, 10, 1, answer("real", 9092, 0)), 0.0, cut)
    assert got == response(0, 10, 1, answer("sidecar", 19_002, 10_030))
