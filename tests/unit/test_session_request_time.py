"""The request quota as transcripts: what responses tell, until when the client is muted, and which quota is named."""

from __future__ import annotations

import struct

import pytest

from proxy.core.session.request_time import DEFAULT_BASELINE_MS, EXEMPT, HANDOVER_MS, MIN_MS, NEVER_WAIT
from proxy.core.wire import responses
from proxy.core.wire.sasl import SASL_APIS
from proxy.core.wire.schema import API_NAMES, APIS
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.counters import snapshots
from tests.support.session_tools import (
    FETCH,
    THREE_WAYS,
    Cut,
    Driven,
    answers,
    byte_by_byte,
    fetch_body,
    from_broker,
    from_client,
    ledger,
    produce,
    produce_response,
    request,
    response,
    session,
    throttles,
)
from tests.support.wire_tools import throttle_offset

HEARTBEAT, JOIN_GROUP, WRITE_TXN_MARKERS = 12, 11, 27
three_ways = pytest.mark.parametrize("cut", THREE_WAYS)


def heartbeat(correlation_id: int, client_id: str = "c") -> bytes:
    """Heartbeat v3, which never waits."""
    body = struct.pack(">h1sih1sh", 1, b"g", 1, 1, b"m", -1)
    return request(HEARTBEAT, 3, correlation_id, body, client_id)


def heartbeat_response(correlation_id: int, throttle_ms: int = 0) -> bytes:
    return response(HEARTBEAT, 3, correlation_id, struct.pack(">ih", throttle_ms, 0))


def fetch_request(correlation_id: int) -> bytes:
    return request(FETCH, 4, correlation_id, fetch_body(4, partitions={0: 0}))


def busy(of: Driven, correlation_id: int, busy_ms: float, at_ms: float, client_id: str = "c") -> int:
    """A Heartbeat that keeps the broker busy until `at_ms`; the throttle time in its response."""
    from_client(of, heartbeat(correlation_id, client_id), at_ms - busy_ms - HANDOVER_MS)
    (throttle_ms,) = struct.unpack_from(">i", from_broker(of, heartbeat_response(correlation_id), at_ms), 8)
    return int(throttle_ms)


def charged(of: Ledger, client_id: str = "c") -> float:
    return of.account("", client_id).meters[Kind.REQUEST].amount


def test_busy_time_against_the_quota_as_a_broker_does_it() -> None:
    """Cases C1 and C2: 1 %, 4 ms busy each second, then 67.1 ms: (40 + 67.1) / 10 500 ms are 1.02 %, 2 % over,
    0.02 * 10 500 ms = 210 ms."""
    of = ledger(request_percentage=1)
    one = session(of)
    start_ms = 1000.0
    assert [busy(one, n, 4.0, start_ms + n * 1000.0) for n in range(10)] == [0] * 10
    assert one.mute_until_ms == 0
    assert busy(one, 10, 67.1, start_ms + 10_500.0) == 210
    assert one.mute_until_ms == start_ms + 10_500.0 + 210
    assert throttles(of, "") == {Kind.REQUEST: (1, 210)}


def test_a_delay_lasts_one_window_at_most() -> None:
    """Case C6: 500 ms at 1 % are 5 % of the window, 40 s; cut to 1 s."""
    one = session(ledger(request_percentage=1, smooth=False))
    assert busy(one, 1, 500.0, 1000.0) == 1000
    assert one.mute_until_ms == 2000.0
    for turn in range(2, 5):
        # Again and again, until the spike leaves the window.
        assert busy(one, turn, 0.0, one.mute_until_ms + 0.1) == 1000


@three_ways
def test_the_throttle_time_is_told_wherever_its_field_stands(cut: Cut) -> None:
    """Produce has it last: the charge is known before the first byte of the response goes on."""
    of = ledger(request_percentage=0.1)
    one = session(of)
    from_client(one, produce(1, 500), 0.0)
    answer = from_broker(one, produce_response(1), 50.0, cut)
    assert answer == produce_response(1, 1000)
    assert charged(of) == pytest.approx(50.0 - HANDOVER_MS)  # once, in however many parts it came
    assert one.mute_until_ms == 1050.0


@pytest.mark.parametrize("api_key", sorted(set(APIS) - EXEMPT - SASL_APIS - {0, FETCH}), ids=lambda key: API_NAMES[key])
def test_every_api_is_charged_and_throttled(api_key: int) -> None:
    """Case C9: 0.01 % is 1 ms in ten seconds."""
    _, lowest, highest, _ = APIS[api_key]
    for version in range(lowest, highest + 1):
        of = ledger(request_percentage=0.01, smooth=False)  # else most of them would not be forwarded yet (ADR 0026)
        one = session(of, rewrite=False)
        told: list[int] = []
        for number in range(30):
            now_ms = max(100.0 * number, one.mute_until_ms)
            from_client(one, request(api_key, version, number, b""), now_ms)
            answer = bytearray(from_broker(one, response(api_key, version, number, bytes(64)), now_ms + 50.0))
            told.append(responses.read_throttle(answer, 0, len(answer), api_key, version))
        assert charged(of) > 1
        assert of.account("", "c").meters[Kind.REQUEST].throttled > 0
        assert one.mute_until_ms > 0
        if throttle_offset(api_key, version) is not None:
            assert 0 < max(told) <= 1000
    assert version == highest


def test_exempt_requests_are_neither_charged_nor_throttled() -> None:
    """Case C13."""
    of = ledger(request_percentage=0.01)
    one = session(of)
    busy(one, 1, 500.0, 1000.0)
    from_client(one, request(WRITE_TXN_MARKERS, 1, 2, b"\x01\0"), 5000.0)
    from_broker(one, response(WRITE_TXN_MARKERS, 1, 2, b"\x01\0"), 5900.0)
    assert one.mute_until_ms == 2000.0
    assert charged(of) == pytest.approx(500.0)
    from_client(one, produce(3, 500, acks=0), 6000.0)  # acks=0 has no response, and costs no request time
    assert charged(of) == pytest.approx(500.0)


def test_charges_late_read_answers_from_possible_arrival() -> None:
    of = ledger()
    one = session(of)
    from_client(one, heartbeat(1), 0.0)
    one.broker_sends(heartbeat_response(1), 30.0, 4.0)
    assert charged(of) == pytest.approx(4.0 - HANDOVER_MS)
    from_client(one, heartbeat(2) + heartbeat(3), 30.0)
    one.broker_sends(heartbeat_response(2), 40.0, 32.0)
    # The broker was free for the third one from 32 ms on, not from 40.
    one.broker_sends(heartbeat_response(3), 45.0, 45.0)
    assert charged(of) == pytest.approx(4.0 + 2.0 + 13.0 - 3 * HANDOVER_MS)


def test_charges_behind_long_poll_from_its_response() -> None:
    of = ledger()
    one = session(of)
    from_client(one, request(JOIN_GROUP, 0, 1, b"") + heartbeat(2), 0.0)
    assert from_broker(one, response(JOIN_GROUP, 0, 1, bytes(20)), 3000.0)
    assert charged(of) == pytest.approx(DEFAULT_BASELINE_MS)
    from_broker(one, heartbeat_response(2), 3002.0)
    assert charged(of) == pytest.approx(DEFAULT_BASELINE_MS + 2.0 - HANDOVER_MS)


def test_charges_slow_request_from_its_last_byte() -> None:
    of = ledger()
    one = session(of)
    frame = produce(1, 5000)
    from_client(one, frame[:2000], 0.0)
    one.client_moved(len(frame) - 2000, 900.0)
    from_broker(one, produce_response(1), 902.0)
    assert charged(of) == pytest.approx(2.0 - HANDOVER_MS)


def test_slow_response_does_not_count_for_next_request() -> None:
    """The broker begins with the next request when the last byte of this response has left it."""
    of = ledger()
    one = session(of)
    from_client(one, heartbeat(1) + heartbeat(2), 0.0)
    from_broker(one, struct.pack(">ii", 4 + 1_000_000, 1) + bytes(1000), 1.0)
    one.broker_moved(999_000, 800.0)
    from_broker(one, heartbeat_response(2), 801.0)
    assert charged(of) == pytest.approx(1.0 + 1.0 - 2 * HANDOVER_MS)


def test_while_the_broker_itself_mutes_us_no_client_is_busy() -> None:
    of = ledger()
    one = session(of)
    from_client(one, heartbeat(1), 0.0)
    from_broker(one, heartbeat_response(1, throttle_ms=700), 1.0)
    from_client(one, heartbeat(2), 100.0)  # old clients do not wait; the broker reads it at 701
    from_broker(one, heartbeat_response(2), 703.0)
    assert charged(of) == pytest.approx(1.0 + 2.0 - 2 * HANDOVER_MS)


def test_a_fetch_that_was_answered_here_costs_the_least() -> None:
    of = ledger(fetch_rate=1000, request_percentage=100)
    one = session(of)
    of.charge(of.account("", "c"), Kind.FETCH, 100_000, 0)
    from_client(one, fetch_request(1), 0.0)
    assert answers(one)
    assert charged(of) == MIN_MS
    assert throttles(of, "").keys() == {Kind.FETCH}


def test_produce_over_both_quotas_names_the_larger() -> None:
    """Case C11: 1 B/s delays for minutes (cut to max_mute), 0.01 % for one second: only the first is counted."""
    of = ledger(produce_rate=1, request_percentage=0.01)
    one = session(of)
    from_client(one, produce(1, 500), 0.0)
    assert one.mute_until_ms == 30_000.0
    assert from_broker(one, produce_response(1), 50.0) == produce_response(1, 29_950)
    assert throttles(of, "") == {Kind.PRODUCE: (1, 30_000)}
    assert one.mute_until_ms == 30_000.0


def test_names_request_quota_if_it_is_the_larger() -> None:
    """10 005 B at 1 000 B/s: 10 005 / 10 s are 1 000.5 B/s, 0.0005 * 10 s = 5 ms, over before the response comes."""
    of = ledger(produce_rate=1000, request_percentage=0.01)
    one = session(of)
    from_client(one, produce(1, 10_005), 0.0)
    assert one.mute_until_ms == 5.0
    assert from_broker(one, produce_response(1), 50.0) == produce_response(1, 1000)
    assert throttles(of, "") == {Kind.REQUEST: (1, 1000)}


def test_what_the_broker_says_counts_if_it_is_more() -> None:
    of = ledger(request_percentage=0.01)
    one = session(of)
    from_client(one, heartbeat(1), 0.0)
    assert from_broker(one, heartbeat_response(1, throttle_ms=5000), 50.0) == heartbeat_response(1, throttle_ms=5000)


def test_two_levels_at_once() -> None:
    """alice may use 1 % with client-id etl and 50 % with any other; the two do not share a counter."""
    entries = [
        Entry(user="ANONYMOUS", client_id="etl", request_percentage=1),
        Entry(user="ANONYMOUS", client_id=DEFAULT, request_percentage=50),
    ]
    of = Ledger(QuotaTable(entries))
    one = session(of)
    assert busy(one, 1, 300.0, 1000.0, "other") == 0
    assert busy(one, 2, 300.0, 2000.0, "etl") == 1000
    assert busy(one, 3, 300.0, 4000.0, "other") == 0
    assert throttles(of, "", "etl") == {Kind.REQUEST: (1, 1000)}
    assert throttles(of, "", "other") == {}


def test_a_shadow_quota_is_measured_only() -> None:
    of = Ledger(QuotaTable([Entry(client_id="c", request_percentage=0.01, mode="shadow")]))
    one = session(of)
    assert busy(one, 1, 500.0, 1000.0) == 0
    assert one.mute_until_ms == 0
    (group,) = snapshots(of, 1000.0)
    assert group.shadow is not None
    assert (group.shadow.throttled, group.shadow.throttle_ms) == (1, 1000)


def test_byte_by_byte_no_byte_is_charged_twice() -> None:
    of = ledger()
    one = session(of)
    for number in range(3):
        from_client(one, heartbeat(number), number * 10.0, byte_by_byte)
        from_broker(one, heartbeat_response(number), number * 10.0 + 5.0, byte_by_byte)
    assert of.account("", "c").meters[Kind.REQUEST].charges == 3
    assert charged(of) == pytest.approx(3 * (5.0 - HANDOVER_MS))


def test_which_apis_are_which() -> None:
    """The lists are by name; here is what they come to: three sorts, none in two of them."""
    assert {"Metadata", "Heartbeat", "ListOffsets"} <= {API_NAMES[key] for key in NEVER_WAIT}
    assert {"Fetch", "JoinGroup", "SyncGroup", "ShareFetch", "OffsetCommit"}.isdisjoint(
        API_NAMES[key] for key in NEVER_WAIT | EXEMPT
    )
