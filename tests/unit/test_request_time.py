"""The estimate of a broker's busy time, on paper: what counts once, what is not counted, and what is capped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.session.exchange import DEFAULT_BASELINE_MS, HANDOVER_MS, MS_PER_BYTE, RECENT, RequestTime
from proxy.core.wire.schema import APIS

KEYS = {known[0]: key for key, known in APIS.items()}
PRODUCE, FETCH, METADATA = KEYS["Produce"], KEYS["Fetch"], KEYS["Metadata"]
TIMES = st.floats(0, 50)
ANY = st.sampled_from([PRODUCE, FETCH, METADATA, KEYS["JoinGroup"], KEYS["ApiVersions"], 999])


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


@pytest.mark.parametrize(
    "name",
    ["Fetch", "ShareFetch", "JoinGroup", "CreateTopics", "OffsetCommit", "EndTxn", "DescribeShareGroupOffsets", None],
)
def test_waiting_that_was_asked_for_is_not_charged(name: str | None) -> None:
    """Nor that of an API newer than the sidecar."""
    of, api_key = RequestTime(), KEYS.get(name or "", 999)
    assert of.busy_ms(api_key, 0.0, 30_000.0) == DEFAULT_BASELINE_MS
    of.free_ms = 30_000.0
    assert of.busy_ms(api_key, 30_000.0, 30_000.2) == pytest.approx(0.2 - HANDOVER_MS)  # less than that: as it is


def test_baseline_is_median_of_requests_that_never_wait() -> None:
    of = RequestTime()
    assert of.baseline_ms == DEFAULT_BASELINE_MS
    for _ in range(RECENT // 2):
        of.busy_ms(METADATA, 0.0, 1000.0 + HANDOVER_MS)
    assert of.baseline_ms == DEFAULT_BASELINE_MS  # a minority says nothing yet
    of.busy_ms(METADATA, 0.0, 2.0 + HANDOVER_MS)
    assert of.baseline_ms == pytest.approx(2.0)
    assert of.busy_ms(FETCH, 0.0, 500.0) == pytest.approx(2.0)
    for value in (5.0, 4.0, 3.0, 2.0, 1.0) * 3:
        of.busy_ms(METADATA, 0.0, value + HANDOVER_MS)
        of.busy_ms(FETCH, 0.0, 500.0)  # does not become part of it
    assert of.baseline_ms == pytest.approx(3.0)


def test_charges_acks_all_without_replica_wait() -> None:
    of = RequestTime()
    assert of.busy_ms(PRODUCE, 0.0, 900.0) == pytest.approx(900.0 - HANDOVER_MS)  # acks=1 waits for no replica
    # 500 000 B * 4 ns + 0.3 ms
    assert of.busy_ms(PRODUCE, 0.0, 900.0, 500_000) == pytest.approx(500_000 * MS_PER_BYTE + DEFAULT_BASELINE_MS)
    assert of.busy_ms(PRODUCE, 0.0, 1.0, 500_000) == pytest.approx(1.0 - HANDOVER_MS)
    assert of.baseline_ms == DEFAULT_BASELINE_MS  # only the one with acks=1 is one of the recent ones
