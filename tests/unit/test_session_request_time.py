"""The request quota: the estimate of a broker's busy time on paper, then transcripts of charges and throttle times."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.session.exchange import DEFAULT_BASELINE_MS, HANDOVER_MS, MIN_MS, MS_PER_BYTE, RECENT, RequestTime
from proxy.core.wire import throttle
from proxy.core.wire.apis import API_VERSIONS, CONTROLLED_SHUTDOWN, FETCH, JOIN_GROUP, METADATA, PRODUCE, keys_of
from proxy.core.wire.sasl import SASL_APIS
from proxy.core.wire.schema import API_NAMES, APIS
from quota.entity import Kind
from quota.ledger import Ledger
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, produce, request, response, session
from tests.support.wire_tools import throttle_offset

HEARTBEAT = 12
CHARGED = set(APIS) - SASL_APIS - {PRODUCE, FETCH, CONTROLLED_SHUTDOWN}  # version 0 of the last has no client-id
MAY_WAIT = "Fetch", "ShareFetch", "JoinGroup", "CreateTopics", "OffsetCommit", "EndTxn", "DescribeShareGroupOffsets"
TIMES = st.floats(0, 50)
ANY = st.sampled_from([PRODUCE, FETCH, METADATA, JOIN_GROUP, API_VERSIONS, 999])


def test_latency_less_the_way_there_and_back() -> None:
    of = RequestTime()
    assert of.busy_ms(METADATA, 1000.0, 1005.0) == pytest.approx(5.0 - HANDOVER_MS)
    of.round_trip_ms = 1.5
    of.free_ms = 1005.0
    assert of.busy_ms(METADATA, 1010.0, 1015.0) == pytest.approx(5.0 - 1.5 - HANDOVER_MS)


@given(st.lists(st.tuples(TIMES, TIMES, ANY, st.booleans()), max_size=60), st.floats(0, 20))
def test_charges_never_exceed_time_owed(requests: list[tuple[float, float, int, bool]], round_trip_ms: float) -> None:
    of = RequestTime()
    of.round_trip_ms = round_trip_ms
    sent = free = total = owed = 0.0
    for gap, work, api_key, waits in requests:
        sent += gap
        begin = max(sent, free)
        end = begin + work
        owed += end - begin
        busy = of.busy_ms(api_key, sent, end, 1000 * waits)
        assert 0.0 <= busy <= end - begin + 1e-9
        total += busy
        of.free_ms = free = end
    assert total <= owed + 1e-6


@pytest.mark.parametrize("api_key", [*sorted(keys_of(*MAY_WAIT)), 999])
def test_waiting_that_was_asked_for_is_not_charged(api_key: int) -> None:
    """Nor that of an API newer than the sidecar."""
    of = RequestTime()
    assert of.busy_ms(api_key, 0.0, 30_000.0) == DEFAULT_BASELINE_MS
    of.free_ms = 30_000.0
    assert of.busy_ms(api_key, 30_000.0, 30_000.2) == pytest.approx(0.2 - HANDOVER_MS)  # less than that: as it is


def test_baseline_is_median_of_requests_that_never_wait() -> None:
    of = RequestTime()
    assert of.baseline_ms() == DEFAULT_BASELINE_MS
    for _ in range(RECENT // 2):
        of.busy_ms(METADATA, 0.0, 1000.0 + HANDOVER_MS)
    assert of.baseline_ms() == DEFAULT_BASELINE_MS  # a minority says nothing yet
    of.busy_ms(METADATA, 0.0, 2.0 + HANDOVER_MS)
    assert of.baseline_ms() == pytest.approx(2.0)
    assert of.busy_ms(FETCH, 0.0, 500.0) == pytest.approx(2.0)
    for value in (5.0, 4.0, 3.0, 2.0, 1.0) * 3:
        of.busy_ms(METADATA, 0.0, value + HANDOVER_MS)
        of.busy_ms(FETCH, 0.0, 500.0)  # does not become part of it
    assert of.baseline_ms() == pytest.approx(3.0)


def test_charges_acks_all_without_replica_wait() -> None:
    of = RequestTime()
    assert of.busy_ms(PRODUCE, 0.0, 900.0) == pytest.approx(900.0 - HANDOVER_MS)  # acks=1 waits for no replica
    # 500 000 B * 4 ns + 0.3 ms
    assert of.busy_ms(PRODUCE, 0.0, 900.0, 500_000) == pytest.approx(500_000 * MS_PER_BYTE + DEFAULT_BASELINE_MS)
    assert of.busy_ms(PRODUCE, 0.0, 1.0, 500_000) == pytest.approx(1.0 - HANDOVER_MS)
    assert of.baseline_ms() == DEFAULT_BASELINE_MS  # only the one with acks=1 is one of the recent ones


def heartbeat(correlation_id: int) -> bytes:
    """Heartbeat v3, which never waits."""
    return request(HEARTBEAT, 3, correlation_id, struct.pack(">h1sih1sh", 1, b"g", 1, 1, b"m", -1))


def heartbeat_response(correlation_id: int, throttle_ms: int = 0) -> bytes:
    return response(HEARTBEAT, 3, correlation_id, struct.pack(">ih", throttle_ms, 0))


def charged(of: Ledger) -> float:
    return of.account("", "c").meters[Kind.REQUEST].amount


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
def test_the_throttle_time_is_told_wherever_its_field_stands(cut: tools.Cut) -> None:
    """Produce has it last: the charge is known before the first byte of the response goes on."""
    one = session(of := ledger(request_percentage=0.1))
    from_client(one, produce(1, 500), 0.0, cut)
    assert from_broker(one, tools.produce_response(1), 50.0, cut) == tools.produce_response(1, 1000)
    assert charged(of) == pytest.approx(50.0 - HANDOVER_MS)  # once, in however many parts it came
    assert of.account("", "c").meters[Kind.REQUEST].charges == 1
    assert one.mute_until_ms == 1050.0
    one = session(ledger(request_percentage=0.1))
    from_client(one, heartbeat(1), 0.0)  # what the broker says counts if it is more
    assert from_broker(one, heartbeat_response(1, 5000), 50.0, cut) == heartbeat_response(1, 5000)


@pytest.mark.parametrize("api_key", sorted(CHARGED), ids=lambda key: API_NAMES[key])
def test_every_api_is_charged_and_throttled(api_key: int) -> None:
    """Cases C9 and C14: 0.01 % is 1 ms in ten seconds."""
    _, lowest, highest, *_ = APIS[api_key]
    for version in range(lowest, highest + 1):
        of = ledger(request_percentage=0.01, smooth=False)  # else most of them would not be forwarded yet (ADR 0026)
        one, result = session(of, rewrite=False), list[int]()
        for number in range(30):
            now_ms = max(100.0 * number, one.mute_until_ms)
            from_client(one, request(api_key, version, number, b""), now_ms)
            answer = bytearray(from_broker(one, response(api_key, version, number, bytes(64)), now_ms + 50.0))
            result.append(throttle.read_throttle(answer, 0, len(answer), api_key, version))
        assert charged(of) > 1
        assert tools.throttles(of, "").keys() == {Kind.REQUEST}
        assert one.mute_until_ms > 0
        if throttle_offset(api_key, version) is not None:
            assert 0 < max(result) <= 1000
    assert version == highest


@pytest.mark.parametrize(
    ("api", "element_bytes", "least_ms", "most_ms"),
    [("OffsetCommit", 14, 0.4, 0.55), ("DeleteRecords", 12, 1.6, 1.9), ("AddPartitionsToTxn", 4, 1.7, 2.0)],
)
def test_lists_of_partitions_are_charged_by_size(api: str, element_bytes: int, least_ms: float, most_ms: float) -> None:
    """As brokers charge 3 000 of them, however long the answer waits; short ones cost the baseline."""
    (api_key,) = keys_of(api)
    for count, least, most in ((3000, least_ms, most_ms), (10, DEFAULT_BASELINE_MS, DEFAULT_BASELINE_MS + 0.05)):
        one = session(of := ledger(request_percentage=100))
        from_client(one, request(api_key, 2, 1, bytes(count * element_bytes)), 0.0)
        from_broker(one, response(api_key, 2, 1, bytes(64)), 5000.0)
        assert least < charged(of) < most


def test_neither_charges_nor_throttles_without_a_response() -> None:
    one = session(of := ledger(request_percentage=0.01))
    from_client(one, heartbeat(1), 500.0 - HANDOVER_MS)
    from_broker(one, heartbeat_response(1), 1000.0)
    from_client(one, produce(3, 500, acks=0), 6000.0)
    assert charged(of) == pytest.approx(500.0)


def test_slow_response_does_not_count_for_next_request() -> None:
    """The broker begins with the next request when the last byte of this response has left it."""
    one = session(of := ledger())
    from_client(one, heartbeat(1) + heartbeat(2), 0.0)
    from_broker(one, struct.pack(">ii", 4 + 1_000_000, 1) + bytes(1000), 1.0)
    one.broker_moved(999_000, 800.0)
    from_broker(one, heartbeat_response(2), 801.0)
    assert charged(of) == pytest.approx(1.0 + 1.0 - 2 * HANDOVER_MS)


def test_while_the_broker_itself_mutes_us_no_client_is_busy() -> None:
    one = session(of := ledger())
    from_client(one, heartbeat(1), 0.0)
    from_broker(one, heartbeat_response(1, throttle_ms=700), 1.0)
    from_client(one, heartbeat(2), 100.0)  # old clients do not wait; the broker reads it at 701
    from_broker(one, heartbeat_response(2), 703.0)
    assert charged(of) == pytest.approx(1.0 + 2.0 - 2 * HANDOVER_MS)


def test_a_fetch_that_was_answered_here_costs_the_least() -> None:
    one = session(of := ledger(fetch_rate=1000, request_percentage=100))
    of.charge(of.account("", "c"), Kind.FETCH, 100_000, 0)
    from_client(one, request(FETCH, 4, 1, tools.fetch_body(4, partitions={0: 0})), 0.0)
    assert one.seen()
    assert charged(of) == MIN_MS
    assert tools.throttles(of, "").keys() == {Kind.FETCH}


@pytest.mark.parametrize(
    ("rate", "size", "muted_ms", "told_ms", "named"),
    [
        # Case C11: 1 B/s delays for minutes (cut to max_mute), 0.01 % for one second: only the first is counted.
        (1, 500, 30_000.0, 29_950, {Kind.PRODUCE: (1, 30_000)}),
        # 10 005 B / 10 s are 1 000.5 B/s, 0.0005 * 10 s = 5 ms, over before the response comes.
        (1000, 10_005, 5.0, 1000, {Kind.REQUEST: (1, 1000)}),
    ],
    ids=["produce", "request"],
)
def test_over_both_quotas_the_larger_is_named(
    rate: float, size: int, muted_ms: float, told_ms: int, named: dict[Kind, tuple[int, int]]
) -> None:
    one = session(of := ledger(produce_rate=rate, request_percentage=0.01))
    from_client(one, produce(1, size), 0.0)
    assert one.mute_until_ms == muted_ms
    assert from_broker(one, tools.produce_response(1), 50.0) == tools.produce_response(1, told_ms)
    assert tools.throttles(of, "") == named
