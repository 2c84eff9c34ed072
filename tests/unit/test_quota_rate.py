"""The sampled rate against Kafka's numbers (RateTest, SampledStatTest, MetricsTest, QuotaUtilsTest: cases D)."""

import pytest

from quota.rate import MAX_THROTTLE_MS, SampledRate, throttle_ms


@pytest.mark.parametrize(
    ("num_samples", "window_s", "expected"),
    [
        # D1: 50 / ((W - 1 ms) + (n - 1) * W), everything in seconds
        (1, 1, 50.050050),  # 50 / 0.999
        (1, 11, 4.545868),  # 50 / 10.999
        (11, 1, 4.545868),  # 50 / (0.999 + 10)
        (11, 11, 0.413227),  # 50 / (10.999 + 110)
    ],
)
def test_rate_without_earlier_samples_assumes_whole_ones(num_samples: int, window_s: int, expected: float) -> None:
    rate = SampledRate(num_samples, window_s * 1000)
    rate.record(50, 0)
    assert rate.measure(window_s * 1000 - 1) == pytest.approx(expected, abs=1e-6)


def test_a_window_is_at_least_one_millisecond() -> None:
    # D2: n = 1, measured in the very millisecond of the record: 50 / 0.001 s
    rate = SampledRate(1, 1000)
    rate.record(50, 0)
    assert rate.measure(0) == 50_000
    assert rate.window_ms == 1


def test_rate_windowing() -> None:
    # D3: 3 samples of 30 s; (100 + 100) / 75 s; at 165 s both are older than 90 s
    rate = SampledRate(3, 30_000)
    rate.record(100, 0)
    rate.record(100, 30_000)
    assert rate.measure(75_000) == pytest.approx(2.666667, abs=1e-6)
    assert rate.window_ms == 75_000
    assert rate.measure(165_000) == 0


def test_a_sample_that_does_not_overlap_the_window_is_purged() -> None:
    # D5: 2 x 1 s, last event at 999; 3500 - 999 = 2501 >= 2000
    rate = SampledRate(2, 1000)
    rate.record(1, 0)
    rate.record(1, 999)
    assert rate.measure(3500) == 0


def test_a_sample_that_overlaps_the_window_is_kept() -> None:
    # D6 (Kafka 3.8+): 2500 - 999 = 1501 < 2000, so it lives although it started 2500 ms ago
    rate = SampledRate(2, 1000)
    rate.record(1, 0)
    rate.record(1, 999)
    assert rate.measure(2500) == pytest.approx(2 / 2.5)


def test_one_sample_more_than_configured_can_be_alive() -> None:
    # D7 (Kafka 3.8+): samples [0, 999], [1100, 2099] and one event at 2200: 5 events over 2.2 s
    rate = SampledRate(2, 1000)
    for t in (0, 999, 1100, 2099, 2200):
        rate.record(1, t)
    assert rate.measure(2200) == pytest.approx(5 / 2.2)
    assert len(rate.samples) == 3


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


@pytest.mark.parametrize(
    ("now", "window_ms"),
    [(0, 10_000), (250, 10_250), (999, 10_999), (1000, 10_000), (9999, 10_999), (10_000, 10_000), (10_500, 10_500)],
)
def test_window_of_a_lone_record(now: int, window_ms: int) -> None:
    # D18: topped up to ten whole samples, so it saw-tooths between 10.000 and 10.999 s
    rate = SampledRate()
    rate.record(1, 0)
    rate.measure(now)
    assert rate.window_ms == window_ms
    assert rate.peek(now) == (1.0, window_ms)
