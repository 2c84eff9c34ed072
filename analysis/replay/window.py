"""Kafka's sampled window over arrays: the rate and the delay at each event, to the last bit those of `quota.rate`.

A sample begins with the first event at least a sample's length after the previous one began; it expires N samples after
its last event. While it is alive no slot of Kafka's ring is reused, and a slot that was reset in place begins at an
event of the current sample, so neither affects the rate: the window is the samples whose last event is young enough,
and nothing else (ADR 0014).

Several counters follow each other on one time line, further apart than a window is long: none sees another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quota.rate import MAX_THROTTLE_MS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class WindowRates(NamedTuple):
    """The window's values at each event that was asked for."""

    observed: Floats
    """Amount per second."""
    window_ms: Ints
    """The divisor."""


def sample_begins(times_ms: Ints, sample_ms: int) -> Flags:
    """Which events begin a sample, the first one among them. `times_ms` ascends."""
    begins = np.zeros(len(times_ms), dtype=np.bool_)
    if not len(times_ms):
        return begins
    if bool((np.diff(times_ms) >= sample_ms).all()):
        begins[:] = True
        return begins
    # If event i begins a sample, the next one begins with the first event that is sample_ms later or more.
    following = np.searchsorted(times_ms, times_ms + sample_ms, side="left").tolist()
    found, at, end = [], 0, len(times_ms)
    while at < end:
        found.append(at)
        at = following[at]
    begins[found] = True
    return begins


def rates(
    times_ms: Ints,
    amounts: Floats,
    begins: Flags,
    numbers: Ints,
    *,
    num_samples: int,
    sample_ms: int,
    asked: Flags | None = None,
) -> WindowRates:
    """The rate at each event, recorded first and measured after, as in `SampledRate`.

    `numbers`: how many samples its counter had begun up to and including the event's own; they determine the slot of
    the ring, and so the order in which fractions are summed. `asked`: at which events; all by default.
    """
    sample = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(times_ms)) - 1
    so_far = _running(amounts, begins, first, sample)
    totals, starts, lasts = so_far[last], times_ms[first], times_ms[last]
    events = np.arange(len(times_ms)) if asked is None else np.flatnonzero(asked)
    now, own = times_ms[events], sample[events]
    oldest = np.searchsorted(lasts, now - num_samples * sample_ms, side="right")
    slots = num_samples + 1
    slot = (numbers[events] - 1) % slots
    mine = so_far[events]
    total = np.zeros(len(events))
    for place in range(slots):  # in the order of slots, as Kafka sums, so that fractions round the same way
        back = slot - place
        back += (back < 0) * slots
        which = own - back
        value = np.where(back == 0, mine, totals[np.maximum(which, 0)])
        total += np.where(which >= oldest, value, 0.0)
    elapsed = now - starts[oldest]
    least_ms = (num_samples - 1) * sample_ms
    window_ms = np.where(elapsed < least_ms, least_ms + elapsed % sample_ms, elapsed)
    window_ms = np.maximum(window_ms, 1)
    return WindowRates(total / (window_ms / 1000.0), window_ms)


def delays_ms(found: WindowRates, limit: Floats, bounded_ms: int | None = None) -> Ints:
    """How long each event is delayed (`QuotaUtils.throttleTime`); at most `bounded_ms`, if given.

    NaN as limit: there is none.
    """
    over = found.observed > limit
    delay = np.zeros(len(found.observed), dtype=np.int64)
    bound = limit[over]
    delay[over] = half_up((found.observed[over] - bound) / bound * found.window_ms[over])
    return delay if bounded_ms is None else np.minimum(delay, bounded_ms)


def half_up(value: Floats) -> Ints:
    """Java's ``Math.round``, clamped to what the protocol's int32 holds."""
    value = np.minimum(value, float(MAX_THROTTLE_MS))
    whole = np.floor(value)
    return (whole + (value - whole >= 0.5)).astype(np.int64)


def _running(amounts: Floats, begins: Flags, first: Ints, sample: Ints) -> Floats:
    """Within each sample the sum up to and including each event, added one by one."""
    so_far = amounts.copy()
    rest = np.flatnonzero(~begins)
    if not len(rest):
        return so_far
    place = rest - first[sample[rest]]
    order = np.argsort(place, kind="stable")
    rest, place = rest[order], place[order]
    for step in np.split(rest, np.flatnonzero(np.diff(place)) + 1):
        so_far[step] = so_far[step - 1] + amounts[step]
    return so_far
