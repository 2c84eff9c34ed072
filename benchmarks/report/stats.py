"""Arithmetic on samples: percentiles, ratios between variants of the same round, medians over rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SURE = 0.95
"""Of all runs: how many of their intervals are to contain the median that endless rounds would have."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile of ascending values: the smallest that at least `percent` % of them do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not ordered:
        raise ValueError("no values")
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index, (sum x)^2 / (n sum x^2): 1 when all have the same, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Median over rounds, with the least and the most."""

    median: float
    low: float
    high: float
    count: int
    likely: tuple[float, float] | None = field(default=None, compare=False)
    """See `median_within`."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None for no values."""
        kept = list(values)
        if not kept:
            return None
        return cls(statistics.median(kept), min(kept), max(kept), len(kept), median_within(kept))


def median_within(values: Iterable[float]) -> tuple[float, float] | None:
    """What the median over endless rounds is within, SURE or surer; None for fewer than six values, which cannot tell.

    Exact, whatever the distribution: a value is below the true median as often as a coin shows heads, so the k-th least
    of n is above it with the chance of fewer than k heads, P(k) = (C(n,0) + ... + C(n,k-1)) / 2^n, and the k-th most
    below it with the same. Between them it is with 1 - 2 P(k); the largest k for which that is at least SURE counts.
    Ten values: 1 - 2 (1 + 10) / 1024 = 0.979 with the second and the ninth, 0.891 with the third and the eighth.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, outside = 0, 0
    while 1 - 2 * (outside + math.comb(count, rank)) / 2**count >= SURE:
        outside += math.comb(count, rank)
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


ByRound = Mapping[int, float]
"""round -> value"""


def per_round(top: ByRound, bottom: ByRound, combine: Callable[[float, float], float]) -> Spread | None:
    """Combine two variants round by round (only rounds that both have), then take the median.

    Neighbours in time share the machine's mood, so their ratio is steadier than the ratio of their medians.
    """
    return Spread.of(combine(top[number], bottom[number]) for number in sorted(top.keys() & bottom.keys()))


def ratio(top: ByRound, bottom: ByRound) -> Spread | None:
    """top / bottom, round by round; rounds where the divisor is 0 or less say nothing."""
    usable = {number: value for number, value in bottom.items() if value > 0}
    return per_round(top, usable, lambda one, other: one / other)


def difference(top: ByRound, bottom: ByRound) -> Spread | None:
    """top - bottom, round by round."""
    return per_round(top, bottom, lambda one, other: one - other)
