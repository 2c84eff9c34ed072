"""The session as transcripts: bytes in on one side, out on the other, and until when the client is muted."""

import random
import struct
from dataclasses import replace
from datetime import timedelta

import pytest

from proxy.core.errors import CloseReason, SessionError
from proxy.core.wire.apis import API_VERSIONS, FETCH, METADATA, PRODUCE
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, produce, request, response, session
from tests.support.wire_tools import kio_class, sample

three_ways = pytest.mark.parametrize("cut", tools.THREE_WAYS)


@three_ways
def test_requests_and_responses_pass_unchanged_and_in_order(cut: tools.Cut) -> None:
    one = session(ledger())
    requests = produce(1, 200) + request(METADATA, 1, 2, b"\0\0\0\0") + request(999, 3, 3, b"opaque") + produce(4, 90)
    assert from_client(one, requests, cut=cut) == requests
    assert [pending.correlation_id for pending in one.exchange] == [1, 2, 3, 4]
    responses = tools.produce_response(1)
    assert from_broker(one, responses, cut=cut) == responses
    # An unknown API's response passes untouched; Metadata's has its turn first.
    assert [pending.correlation_id for pending in one.exchange] == [2, 3, 4]
    assert from_broker(one, response(METADATA, 1, 2, struct.pack(">iii", 0, -1, 0)), cut=cut)
    unknown = struct.pack(">ii", 12, 3) + b"whatever"
    assert from_broker(one, unknown + tools.produce_response(4), cut=cut) == unknown + tools.produce_response(4)
    assert one.quiet


@three_ways
def test_over_quota_produce_mutes_at_once_and_tells_the_rest(cut: tools.Cut) -> None:
    # KIP-13: 5 MB/s, ten windows of 1 s. 60 MB at once: 60 MB / 10 s = 6 MB/s, (6 - 5) / 5 * 10 s = 2 s.
    one = session(ledger(produce_rate=5_000_000, smooth=False))
    first = produce(1, 60_000_000)
    sent = from_client(one, first[:1000], 0.0, cut)
    assert one.requests.reader.movable() == len(first) - 1000
    one.client_moved(len(first) - 1000, 0.0)
    assert sent == first[:1000]
    assert one.mute_until_ms == 2000.0
    # The broker took 300 ms: 1 700 ms are left, which is more than the broker's own 5 ms.
    assert from_broker(one, tools.produce_response(1, throttle_ms=5), 300.0, cut) == tools.produce_response(
        1, throttle_ms=1700
    )


def test_requests_read_with_a_throttled_one_wait_for_the_mute() -> None:
    one = session(ledger(produce_rate=100, smooth=False))
    first, second, third = produce(1, 2000), produce(2, 50), request(METADATA, 1, 3, b"\0\0\0\0")
    assert from_client(one, first + second + third[:5]) == first
    assert one.has_backlog
    # Replies flow during the mute (KIP-219).
    assert from_broker(one, tools.produce_response(1), 0.0) == tools.produce_response(1, 10_000)
    # 2 000 B and 50 B more than 11 s later: the first sample (last event at 0) is out of the window, 50 B are fine.
    assert tools.resumed(one, 11_000.0) == second
    assert not one.has_backlog
    assert from_client(one, third[5:], 11_000.0) == third


@three_ways
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (struct.pack(">i", 200_000_000) + b"x" * 20, "frame_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http_on_kafka_port"),
        (request(METADATA, 9, 5, b"", "client-x")[:15].replace(b"\0\0\0\x13", b"\0\0\0\x0b"), "header_malformed"),
        (request(PRODUCE, 7, 1, b"\xff"), "request_malformed"),  # ends before its acks
    ],
)
def test_what_is_not_kafka_ends_the_connection_and_is_named(raw: bytes, kind: str, cut: tools.Cut) -> None:
    with pytest.raises(SessionError) as caught:
        from_client(session(ledger()), raw, cut=cut)
    assert (caught.value.reason, caught.value.kind) == (CloseReason.CLIENT_MALFORMED, kind)


def test_refuses_newer_versions_with_addresses_or_charges() -> None:
    one = session(ledger())
    from_client(one, request(METADATA, 90, 7, b"\0"))
    with pytest.raises(SessionError) as caught:
        from_broker(one, response(METADATA, 90, 7, b"\0" * 50))
    assert caught.value.reason is CloseReason.UNSUPPORTED_VERSION
    for api_key in (PRODUCE, FETCH):
        with pytest.raises(SessionError) as caught:
            from_client(session(ledger()), request(api_key, 90, 7, b"\0" * 64))
        assert caught.value.reason is CloseReason.UNSUPPORTED_VERSION


@three_ways
def test_turns_down_newer_api_versions_as_a_broker(cut: tools.Cut) -> None:
    one = session(ledger())
    assert from_client(one, request(API_VERSIONS, 99, 4, b"whatever"), cut=cut) == b""
    # v0 layout whatever was asked: correlation id, error 35 UNSUPPORTED_VERSION, one API: 18 with versions 0 to 5.
    assert one.seen() == struct.pack(">iihihhh", 16, 4, 35, 1, 18, 0, 5)
    after = request(API_VERSIONS, 0, 5, b"")
    assert from_client(one, after, cut=cut) == after


@three_ways
def test_a_throttled_produce_whose_leader_moved_tells_both(cut: tools.Cut) -> None:
    """The node endpoint is rewritten and the throttle time set, in the same response (Produce v10+, KIP-951)."""
    message = sample(kio_class(PRODUCE, 10), random.Random(1), throttle_ms=0, repeat=1)
    (endpoint,) = message.node_endpoints
    moved = replace(endpoint, host="sidecar", port=19_000 + endpoint.node_id)
    changed = replace(message, node_endpoints=(moved,), throttle_time=timedelta(milliseconds=10_030))
    one = session(ledger(produce_rate=100, smooth=False))
    frame = request(PRODUCE, 10, 1, b"\0" + struct.pack(">hi", 1, 30_000) + b"r" * 1984)
    assert len(frame) - 4 == 2003  # (200.3 - 100) / 100 * 10 s = 10.03 s
    from_client(one, frame, cut=cut)
    told = from_broker(one, response(PRODUCE, 10, 1, tools.encode(message)), 0.0, cut)
    assert told == response(PRODUCE, 10, 1, tools.encode(changed))
