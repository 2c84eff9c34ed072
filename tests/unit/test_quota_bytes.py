"""Rates and delays against Kafka's numbers: ClientQuotaManagerTest (cases A), KIP-13's example, the request quota (C),
RateTest, SampledStatTest, MetricsTest and QuotaUtilsTest (D).

Default configuration unless said: 11 samples of 1 s. Kafka has no pacing and no cap on a delay, so neither have these
ledgers.
"""

from collections.abc import Sequence

import pytest

from quota.entity import DEFAULT, Kind
from quota.rate import MAX_THROTTLE_MS, SampledRate
from quota.table import RATE_FIELD, Entry, QuotaTable
from tests.support.session_tools import kafka_ledger

PRODUCE, REQUEST = Kind.PRODUCE, Kind.REQUEST
Charged = tuple[float, Sequence[int], list[int]]  # an amount, the times at which it is charged, and the delay each time


DELAYS: dict[tuple[str, Kind, float], list[Charged]] = {
    # A2: 6300 in 10.5 s = 600 B/s; (600 - 500) / 500 * 10 500. A4, A5: the window holds 400 for each second plus the
    # 2300, so it stays over until the spike's sample (last event at 10 500) is 11 s old.
    ("A1-A5", PRODUCE, 500): [
        (400, range(0, 10_000, 1000), [0] * 10),
        (2300, [10_500], [2100]),
        (400, range(12_600, 22_600, 1000), [1200] * 8 + [1700, 0]),
        (0, [22_600], [0]),
    ],
    # 1000 each second. At 5000: 6000 / 10 s = 600; 100 / 500 * 10 000 = 2000; then 2000 more each second; from 10 000
    # on always eleven records in 10.0 s = 1100 B/s: 600 / 500 * 10 000 = 12 000
    ("A22", PRODUCE, 500): [(1000, range(0, 30_000, 1000), [0] * 5 + [*range(2000, 12_000, 2000)] + [12_000] * 20)],
    # Eleven records in 10.0 s = 550 B/s; 50 / 500 * 10 000 = 1000
    ("A23", PRODUCE, 500): [(500, range(0, 20_000, 1000), [0] * 10 + [1000] * 10)],
    # An hour of silence leaves a fresh window: 600 against 500 as before
    ("A27", PRODUCE, 500): [(6000, [0, 3_600_000], [2000, 2000])],
    # 60 MB in ten windows of 1 s against 5 MB/s: (6 - 5) / 5 * 10 s
    ("KIP-13", PRODUCE, 5e6): [(6e6, range(0, 10_000, 1000), [0] * 8 + [800, 2000])],
    # Semantics 1.5: (10 - 1) / 1 * 10 000; Kafka wraps beyond int32
    ("int32", PRODUCE, 1): [(100, [0], [90_000]), (1e12, [0], [MAX_THROTTLE_MS])],
    # Request quota in ms of busy time: 4 ms each second = 0.4 %; (4.0 + 6.71) / 10.5 s = 1.02 %; 0.02 / 1 * 10 500
    ("C1-C5", REQUEST, 1): [
        (4, range(0, 10_000, 1000), [0] * 10),
        (67.1, [10_500], [210]),
        (4, range(10_710, 21_710, 1000), [400] * 10 + [900]),
        (0, [21_710], [0]),
    ],
    # 500 ms = 50 percent-seconds / 10 s = 5 %: 4 / 1 * 10 000 = 40 s, capped at one window
    ("C6", REQUEST, 1): [(500, [0], [1000]), (0, range(1000, 12_000, 1000), [1000] * 10 + [0])],
}
LONE = {0: 10_000, 250: 10_250, 999: 10_999, 1000: 10_000, 9999: 10_999, 10_000: 10_000, 10_500: 10_500}


@pytest.mark.parametrize("case", DELAYS, ids=[case[0] for case in DELAYS])
def test_delays_are_kafkas(case: tuple[str, Kind, float]) -> None:
    _, kind, limit = case
    ledger = kafka_ledger(Entry(client_id=DEFAULT, **{RATE_FIELD[kind]: limit}))
    account = ledger.account("", "client1")
    for amount, times, delays in DELAYS[case]:
        assert [ledger.charge(account, kind, amount, now) for now in times] == delays


def test_set_and_remove_a_quota() -> None:
    # A13
    ledger = kafka_ledger()
    account = ledger.account("userA", "client1")
    # 11 000 / 10 s = 1100 B/s; (1100 - 10) / 10 * 10 000 = 1 090 000. Without a quota of this kind nothing is recorded.
    for entries, delay_ms in (([], 0), ([Entry(user=DEFAULT, producer_byte_rate=10)], 1_090_000), ([], 0)):
        ledger.swap(QuotaTable(entries))
        assert ledger.charge(account, PRODUCE, 11_000, 0) == delay_ms


def test_usage_without_a_limit_counts_once_a_limit_comes() -> None:
    # Kafka records every client once any quota of the kind exists, with a limit of Long.MAX
    ledger = kafka_ledger(Entry(user="userB", producer_byte_rate=1))
    account = ledger.account("userA", "client1")
    assert ledger.charge(account, PRODUCE, 11_000, 0) == 0
    assert ledger.charge_mutation(account, 1e9, True, 0) == (True, 0)  # no quota of this kind
    ledger.swap(QuotaTable([*ledger.table.entries, Entry(user="userA", producer_byte_rate=10)]))
    assert ledger.charge(account, PRODUCE, 0, 0) == 1_090_000  # same tags (userA, ""), same history


def test_request_delay_is_capped_by_the_configured_window() -> None:
    # D12's bound: 10 samples of 500 ms, cap 500; 100 % observed against 50 % would be 4.5 s
    ledger = kafka_ledger(Entry(client_id=DEFAULT, request_percentage=50), num_samples=10, window_ms=500)
    assert ledger.charge(ledger.account("", "c"), Kind.REQUEST, 4500, 0) == 500


@pytest.mark.parametrize(
    ("num_samples", "window_ms", "amount", "recorded", "measured", "expected", "seen_ms"),
    [
        # D1: 50 / ((W - 1 ms) + (n - 1) * W): samples that never were count as whole ones
        (1, 1000, 50, [0], 999, 50 / 0.999, 999),
        (1, 11_000, 50, [0], 10_999, 50 / 10.999, 10_999),
        (11, 1000, 50, [0], 999, 50 / 10.999, 10_999),
        (11, 11_000, 50, [0], 10_999, 50 / 120.999, 120_999),
        (1, 1000, 50, [0], 0, 50_000, 1),  # D2: a window is at least 1 ms
        (3, 30_000, 100, [0, 30_000], 75_000, 200 / 75, 75_000),  # D3
        (3, 30_000, 100, [0, 30_000], 165_000, 0, 60_000),  # D3: both are older than 90 s
        (2, 1000, 1, [0, 999], 3500, 0, 1000),  # D5: 3500 - 999 >= 2000: purged
        (2, 1000, 1, [0, 999], 2500, 2 / 2.5, 2500),  # D6 (3.8+): 2500 - 999 < 2000: alive, though it began 2500 ms ago
        (2, 1000, 1, [0, 999, 1100, 2099, 2200], 2200, 5 / 2.2, 2200),  # D7 (3.8+): one sample more than configured
        # D18: the window of a lone record, filled up to ten whole samples
        *((11, 1000, 1, [0], now, 1000 / seen, seen) for now, seen in LONE.items()),
    ],
)
def test_rate(
    num_samples: int, window_ms: int, amount: int, recorded: list[int], measured: int, expected: float, seen_ms: int
) -> None:
    rate = SampledRate(num_samples, window_ms)
    for at in recorded:
        rate.record(amount, at)
    assert rate.measure(measured) == pytest.approx(expected, abs=1e-6)
    assert rate.window_ms == rate.peek(measured)[1] == seen_ms
