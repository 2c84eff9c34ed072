"""Intervals of usage on their way to events: each amount spread evenly over the seconds of its interval. Few events are
needed: those of intervals near enough to the limit, and of long intervals one window of each kind."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
    window_ms: Ints


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
    """The rate at each event, recorded first and measured after, as in `SampledRate`. `numbers`: samples begun by its
    counter so far, which determine slots and so the order of sums. `asked`: at which events; all by default."""
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
    """How long each event is delayed (`QuotaUtils.throttleTime`), at most `bounded_ms`. NaN as limit: there is none."""
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


STEP_MS = 1000


@dataclass(slots=True)
class Intervals:
    """Intervals of several groups, by group and start; `group` is a number that ascends."""

    group: Ints
    start_ms: Ints
    steps: Ints
    """The number of seconds that the amount is spread over."""
    duration_s: Floats
    amount: Floats

    def __len__(self) -> int:
        return len(self.group)

    @property
    def each(self) -> Floats:
        """The amount of each second."""
        return self.amount / self.steps

    @property
    def last_ms(self) -> Ints:
        """When its last second begins."""
        return self.start_ms + (self.steps - 1) * STEP_MS

    def some(self, which: Flags | Ints | slice) -> Intervals:
        """A selection."""
        return Intervals(*(getattr(self, field.name)[which] for field in fields(self)))


def ordered(group: Ints, start_ms: Ints, duration_s: Floats, amount: Floats) -> Intervals:
    """Intervals in order. The usage of a group's members in one interval is added up."""
    order = np.lexsort((amount, start_ms, group))
    group, start_ms, duration_s, amount = group[order], start_ms[order], duration_s[order], amount[order]
    fresh = np.ones(len(group), dtype=np.bool_)
    fresh[1:] = (np.diff(group) != 0) | (np.diff(start_ms) != 0)
    if not fresh.all():
        first = np.flatnonzero(fresh)
        duration_s, amount = np.maximum.reduceat(duration_s, first), np.add.reduceat(amount, first)
        group, start_ms = group[first], start_ms[first]
    steps = np.maximum(np.floor(duration_s + 0.5), 1).astype(np.int64)
    return Intervals(group, start_ms, steps, duration_s, amount)


def overlapping(found: Intervals) -> Flags:
    """Intervals of groups in which one begins before another has ended: a clock was set back."""
    same = found.group[1:] == found.group[:-1]
    early = found.start_ms[1:] <= found.last_ms[:-1]
    return np.isin(found.group, found.group[1:][same & early])


def density(duration_s: Floats, steps: Ints, amount: Floats) -> Floats:
    """Amount per second that is not exceeded anywhere in the interval, by its seconds and by its length."""
    return amount / np.minimum(np.maximum(duration_s, 0.001), steps)


SLACK_S = 3.0
"""Seconds of usage that may be in a window beyond its length: of its edges, of rounding, and of a clock adjusted a
little."""


MAX_LOOKS = 64
"""Intervals within the reach of one window; with more, examining each takes longer than it saves."""


def most_in_window(num_samples: int, sample_ms: int) -> float:
    """Times the highest density, an upper bound of any window's rate: events lie within N + 1 samples and are divided
    by no less than N - 1."""
    return ((num_samples + 1) * sample_ms / 1000 + SLACK_S) / ((num_samples - 1) * sample_ms / 1000)


@dataclass(slots=True)
class Places:
    """Where the samples of Kafka's window lie in intervals that do not overlap."""

    joined: Ints
    """How many of the first seconds fall into the sample that was already open."""
    before: Ints
    """How many samples the group had begun before the interval."""


def places(found: Intervals, sample_ms: int) -> Places:
    """Follow each group's samples from its first interval on, without visiting single seconds."""
    per_sample = sample_ms // STEP_MS
    fresh = np.ones(len(found), dtype=np.bool_)
    fresh[1:] = np.diff(found.group) != 0
    if per_sample == 1 and bool((found.steps > 1).all()):
        # The second of two seconds begins a sample whatever was before, and so does each one after it.
        joined = np.zeros(len(found), dtype=np.int64)
        joined[1:] = ~fresh[1:] & (found.start_ms[1:] - found.last_ms[:-1] < sample_ms)
    else:
        joined = _followed(found, fresh, sample_ms, per_sample)
    begun = np.where(joined < found.steps, (found.steps - 1 - joined) // per_sample + 1, 0)
    total = np.cumsum(begun) - begun
    return Places(joined, total - total[np.maximum.accumulate(np.where(fresh, np.arange(len(found)), 0))])


def _followed(found: Intervals, fresh: Flags, sample_ms: int, per_sample: int) -> Ints:
    """`joined` where a sample's start depends on everything before: one interval after the other."""
    joined, open_ms = [], 0
    for new, start_ms, steps in zip(fresh.tolist(), found.start_ms.tolist(), found.steps.tolist(), strict=True):
        here = 0 if new else min(max(-((start_ms - open_ms - sample_ms) // STEP_MS), 0), steps)
        if here < steps:
            open_ms = start_ms + (here + (steps - 1 - here) // per_sample * per_sample) * STEP_MS
        joined.append(here)
    return np.array(joined, dtype=np.int64)


def near(found: Intervals, least_limit: Floats, num_samples: int, sample_ms: int) -> tuple[Flags, Flags]:
    """Which intervals may exceed their group's limit (`least_limit`), and which others are in reach of those."""
    if num_samples == 1:  # windows without a minimum length: any rate is possible
        return np.ones(len(found), dtype=np.bool_), np.zeros(len(found), dtype=np.bool_)
    thickest = dense = density(found.duration_s, found.steps, found.amount)
    ends = found.last_ms
    reach_ms = (num_samples + 1) * sample_ms + STEP_MS
    back, pairs = 1, []
    while back < len(found):
        if back > MAX_LOOKS:  # windows of hours over intervals of seconds: all are replayed
            return np.ones(len(found), dtype=np.bool_), np.zeros(len(found), dtype=np.bool_)
        seen = (found.group[back:] == found.group[:-back]) & (ends[:-back] > found.start_ms[back:] - reach_ms)
        if not seen.any():
            break
        thickest = thickest.copy()
        thickest[back:] = np.maximum(thickest[back:], np.where(seen, dense[:-back], 0.0))
        pairs.append(seen)
        back += 1
    may = thickest * most_in_window(num_samples, sample_ms) > least_limit
    in_sight = np.zeros(len(found), dtype=np.bool_)
    for distance, seen in enumerate(pairs, 1):
        in_sight[:-distance] |= seen & may[distance:]
    return may, in_sight & ~may


@dataclass(slots=True)
class Events:
    """Seconds of intervals."""

    group: Ints
    times_ms: Ints
    """On a time line of their own, on which groups are far apart and the middles of long intervals are left out."""
    amounts: Floats
    begins: Flags
    numbers: Ints
    """See :func:`analysis.replay.intervals.rates`."""
    weights: Ints
    """The number of seconds that an event represents; 0 where it only has to be visible to others."""


def events(found: Intervals, where: Places, asked: Flags, num_samples: int, sample_ms: int) -> Events:
    """The seconds of intervals, of which only the `asked` ones count. From second (N + 1) * W on all samples lie in the
    interval itself and repeat: the last one stands for those that are left out."""
    per_sample = sample_ms // STEP_MS
    left_out = np.maximum(found.steps - (num_samples + 2) * per_sample, 0) // per_sample
    kept = found.steps - left_out * per_sample
    fresh = np.ones(len(found), dtype=np.bool_)
    fresh[1:] = np.diff(found.group) != 0
    apart_ms = (num_samples + 2) * sample_ms
    move_ms = np.zeros(len(found), dtype=np.int64)
    move_ms[1:] = np.where(
        fresh[1:],
        kept[:-1] * STEP_MS + apart_ms,
        found.start_ms[1:] - found.start_ms[:-1] - left_out[:-1] * sample_ms,
    )
    start_ms = np.cumsum(move_ms)
    of = np.repeat(np.arange(len(found)), kept)
    step = np.arange(len(of)) - np.repeat(np.cumsum(kept) - kept, kept)
    sample = step - where.joined[of]
    begins = (sample >= 0) & (sample % per_sample == 0)
    begins[np.flatnonzero(fresh[of] & (step == 0))] = True  # for a group that was cut, the sample that was open
    # What is left out lies before the last samples: they keep their numbers from the whole interval. Before it, all
    # samples in the window are of one size or not after the gap at all.
    numbers: Ints = where.before[of] + np.where(sample < 0, 0, sample // per_sample + 1)
    weights = np.where(step >= (kept - per_sample)[of], left_out[of] + 1, 1) * asked[of]
    return Events(
        found.group[of], start_ms[of] + step * STEP_MS, found.each[of], begins, numbers, weights.astype(np.int64)
    )


def whole_events(found: Intervals, num_samples: int, sample_ms: int) -> Events:
    """All seconds of overlapping intervals, in order."""
    of = np.repeat(np.arange(len(found)), found.steps)
    step = np.arange(len(of)) - np.repeat(np.cumsum(found.steps) - found.steps, found.steps)
    times_ms = found.start_ms[of] + step * STEP_MS
    order = np.lexsort((step, times_ms, found.group[of]))
    of, times_ms = of[order], times_ms[order]
    group = found.group[of]
    fresh = np.ones(len(of), dtype=np.bool_)
    fresh[1:] = np.diff(group) != 0
    move_ms = np.zeros(len(of), dtype=np.int64)
    move_ms[1:] = np.where(fresh[1:], (num_samples + 2) * sample_ms, np.diff(times_ms))
    times_ms = np.cumsum(move_ms)
    begins = sample_begins(times_ms, sample_ms)
    total = np.cumsum(begins)
    first = np.flatnonzero(fresh)
    numbers: Ints = total - np.repeat(total[first] - 1, np.diff(np.append(first, len(of))))
    return Events(group, times_ms, found.each[of], begins, numbers, np.ones(len(of), dtype=np.int64))
