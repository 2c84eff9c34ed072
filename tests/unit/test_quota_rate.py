"""The sampled rate against Kafka's numbers (RateTest, SampledStatTest, MetricsTest, QuotaUtilsTest: cases D)."""

import pytest

from quota.rate import MAX_THROTTLE_MS, SampledRate, throttle_ms

LONE = {0: 10_000, 250: 10_250, 999: 10_999, 1000: 10_000, 9999: 10_999, 10_000: 10_000, 10_500: 10_500}


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


@pytest.mark.parametrize(
    ("observed", "bound", "window_ms", "expected"),
    [
        (16.5, 16.5, 1000, 0),  # D8
        (16.5, 20.4, 1000, -191),  # D9: negative; -3.9 / 20.4 * 1000 = -191.2
        (100, 50, 2000, 2000),  # D10: (100 - 50) / 50 * 2000
        (55, 50, 1000, 100),  # D11: 5 / 50 * 1000
        (100, 50, 9000, 9000),  # D12 before its bound of 500, which the request quota applies
        (1e18, 0.001, 10_000, MAX_THROTTLE_MS),  # clamped where Kafka wraps around
    ],
)
def test_throttle_time(observed: float, bound: float, window_ms: int, expected: int) -> None:
    assert throttle_ms(observed, bound, window_ms) == expected
