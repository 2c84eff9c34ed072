"""Forecasts against weeks whose truth is known: generated, and held out."""

import numpy as np
import pyarrow as pa
import pytest

from analysis.trend import CERTAINTY, FEWEST_DAYS, RESULT, back_test, every_day, forecasts, outlook

MB = 1_000_000.0
WEEK = np.array([1.1, 1.2, 1.25, 1.2, 1.15, 0.6, 0.5])
"""What the days of a week are to an average one; in all 7."""


def weeks(
    days: int, *, growth: float = MB, noise: float = 0.0, alike: float = 0.0, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Days and values: a line times the week, and noise of which each day keeps a part of the day's before."""
    day = np.arange(20_000, 20_000 + days)
    fresh, kept = np.random.default_rng(seed).normal(0, noise, days), np.zeros(days)
    for number in range(days):
        kept[number] = fresh[number] + (alike * kept[number - 1] if number else 0)
    return day, (100 * MB + growth * np.arange(days)) * WEEK[day % 7] + kept


def test_separates_growth_from_weekends() -> None:
    """A record that begins on a Monday and ends on a Sunday seems to fall, and one the other way round to grow."""
    for first in range(7):
        day, value = weeks(28 + first, growth=0.0)
        found = outlook(day[first:-3], value[first:-3], day[-3:])
        assert found is not None
        assert abs(found.growth) < 1, first


@pytest.mark.parametrize(
    ("alike", "least", "most_error"), [(0.0, 0.75, 0.07), (0.5, 0.68, 0.09)], ids=["each day again", "days alike"]
)
def test_held_out_weeks_are_within_stated_bounds(alike: float, least: float, most_error: float) -> None:
    """Ten weeks with noise of 6 % of an average day, two of them held out; the mean error of a perfect forecast would
    be 0.8 * 6 MB of 160 MB: 3 %, where days are alike 3.5 %."""
    tested = [back_test(*weeks(70, noise=6 * MB, alike=alike, seed=seed)) for seed in range(300)]
    assert [one["held_out"] for one in tested] == [14] * 300
    covered = np.mean([one["covered_share"] for one in tested])
    assert least <= covered <= CERTAINTY + 0.05
    assert np.mean([one["error_share"] for one in tested]) < most_error


def test_trend_of_departed_client_is_not_negative() -> None:
    day, value = weeks(21, growth=0.0)
    days, values = every_day(day, value, int(day[-1]) + 21)
    found = outlook(days, values, np.arange(days[-1] + 1, days[-1] + 91))
    assert found is not None
    assert found.growth < 0
    assert min(found.mean.min(), found.low.min()) == 0
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()


def test_too_few_days_have_no_trend() -> None:
    day, value = weeks(FEWEST_DAYS + 6)
    ahead = np.arange(day[-1] + 1, day[-1] + 8)
    assert outlook(day[: FEWEST_DAYS - 1], value[: FEWEST_DAYS - 1], ahead) is None
    assert outlook(day, value * 0, ahead) is None
    assert outlook(day, value, ahead) is not None
    assert back_test(day, value) == {}  # of three weeks less a day none can be held out


def test_trends_of_a_batch_of_series() -> None:
    day, value = weeks(35)
    rows = [
        {"series": 7, "days": day.tolist(), "peaks": value.tolist()},
        {"series": 8, "days": day[:5].tolist(), "peaks": value[:5].tolist()},
    ]
    (batch,) = forecasts(int(day[-1]), 10)([pa.RecordBatch.from_pylist(rows)])
    assert batch.schema.names == [one.split()[0] for one in RESULT.split(", ")]
    assert batch["series"].to_pylist() == [7] * 10 + [8] * 10  # five days and thirty without any use
    assert batch["day"].to_pylist()[:10] == list(range(day[-1] + 1, day[-1] + 11))
    assert batch["held_out"].to_pylist()[0] == 7
    assert batch["error_share"].to_pylist()[0] == pytest.approx(0, abs=1e-6)
