"""The effect of limits on groups of clients: intervals in, one row per group and limit out. The window's rates are
to the last bit those of `quota.rate` (ADR 0014)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quota.bucket import TokenBucket, bucket_throttle_ms
from quota.burst import WindowedBurst
from quota.counter import MutationAlgorithm
from quota.rate import MAX_THROTTLE_MS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
STEP_MS = 1000
SLACK_S = 3.0
"""Seconds of usage that may be in a window beyond its length: of its edges, of rounding, and of a clock adjusted a
little."""
MAX_LOOKS = 64
"""Intervals within the reach of one window; with more, examining each takes longer than it saves."""
MAX_EVENTS = 1 << 18
"""Seconds processed together: as many as fit into a processor's cache."""
ROWS = "gid bigint, rule int, limits array<double>, start_ms bigint, duration_s double, amount double"
"""Input: one row per group, with its rule and its limits, and one per interval, where these two are null."""
RESULT = (
    "gid bigint, place int, seconds_over bigint, longest_ms bigint, extreme double, seconds_seen double, peak double"
)
"""Output: one row per group and limit; `place` counts the group's limits from 0."""
_NAMES = [one.split()[0] for one in RESULT.split(", ")]


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
    """See :func:`analysis.replay.rates`."""
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


@dataclass(frozen=True, slots=True)
class Rule:
    """How a kind of quota counts, and with which settings."""

    num_samples: int = 11
    sample_ms: int = 1000
    scale: float = 1.0
    """Amounts times this are in the limit's unit: 0.1 for milliseconds of busy time."""
    bounded_ms: int | None = None
    tokens: MutationAlgorithm | None = None
    """Partition mutations: by this algorithm. None: Kafka's sampled window."""


@dataclass(slots=True)
class ReplayResult:
    """The result for each group (first axis) under each limit (second axis)."""

    seconds_over: Ints
    longest_ms: Ints
    extreme: Floats
    """The highest rate, or the least tokens, where the group was over its limit; NaN where it never was."""
    seconds_seen: Floats
    """By group: the length of all its intervals."""
    peak: Floats
    """By group: the highest rate of an interval."""


def fold(rule: Rule, group: Ints, start_ms: Ints, duration_s: Floats, amount: Floats, limits: Floats) -> ReplayResult:
    """Replay intervals in any order, each spread over its seconds; windows begin empty. `group`: the row of `limits`
    (groups by limits; NaN: none) of each interval."""
    count, several = limits.shape
    found = ordered(group, start_ms, duration_s, amount)
    outcome = ReplayResult(
        np.zeros((count, several), dtype=np.int64),
        np.zeros((count, several), dtype=np.int64),
        np.full((count, several), np.nan),
        np.bincount(found.group, found.duration_s, count).astype(np.float64),
        np.zeros(count),
    )
    np.maximum.at(outcome.peak, found.group, found.amount * rule.scale / np.maximum(found.duration_s, 0.001))
    overlap = overlapping(found)
    if rule.tokens is not None:
        _tokens(rule, found, overlap, limits, outcome)
        return outcome
    for part in _windows(rule, found.some(~overlap), limits):
        _add(rule, part, limits, outcome)
    mixed = found.some(overlap)
    for one in np.unique(mixed.group):
        _add(rule, whole_events(mixed.some(mixed.group == one), rule.num_samples, rule.sample_ms), limits, outcome)
    return outcome


def _windows(rule: Rule, found: Intervals, limits: Floats) -> Iterator[Events]:
    """For intervals that do not overlap: the seconds that matter, in blocks that include what their windows can see."""
    if not len(found):
        return
    least = np.nanmin(limits, axis=1) / rule.scale
    where = places(found, rule.sample_ms)
    asked, in_sight = near(found, least[found.group], rule.num_samples, rule.sample_ms)
    kept = np.flatnonzero(asked | in_sight)
    found, asked = found.some(kept), asked[kept]
    where.joined, where.before = where.joined[kept], where.before[kept]
    per_sample = rule.sample_ms // STEP_MS
    size = np.cumsum(np.minimum(found.steps, (rule.num_samples + 3) * per_sample))
    reach_ms = (rule.num_samples + 1) * rule.sample_ms + STEP_MS
    first, end_ms = 0, found.last_ms
    while first < len(found):
        done = size[first - 1] if first else 0
        end = max(int(np.searchsorted(size, done + MAX_EVENTS, side="right")), first + 1)
        begin = first
        while (
            begin
            and found.group[begin - 1] == found.group[first]
            and end_ms[begin - 1] > found.start_ms[first] - reach_ms
        ):
            begin -= 1
        block = slice(begin, end)
        mine = asked[block].copy()
        mine[: first - begin] = False
        part = type(where)(where.joined[block], where.before[block])
        yield events(found.some(block), part, mine, rule.num_samples, rule.sample_ms)
        first = end


def _add(rule: Rule, found: Events, limits: Floats, outcome: ReplayResult) -> None:
    amounts = found.amounts if rule.scale == 1.0 else found.amounts * rule.scale
    asked = found.weights > 0
    seen = rates(
        found.times_ms,
        amounts,
        found.begins,
        found.numbers,
        num_samples=rule.num_samples,
        sample_ms=rule.sample_ms,
        asked=asked,
    )
    group, weights = found.group[asked], found.weights[asked]
    for place in range(limits.shape[1]):
        delay = delays_ms(seen, limits[group, place], rule.bounded_ms)
        held = np.flatnonzero(delay > 0)
        where = group[held]
        np.add.at(outcome.seconds_over[:, place], where, weights[held])
        np.maximum.at(outcome.longest_ms[:, place], where, delay[held])
        np.fmax.at(outcome.extreme[:, place], where, seen.observed[held])


def _tokens(rule: Rule, found: Intervals, overlap: np.ndarray, limits: Floats, outcome: ReplayResult) -> None:
    assert rule.tokens is not None
    burst_s = rule.num_samples * rule.sample_ms / 1000.0
    used = np.bincount(found.group, found.amount, len(limits))
    bounds = np.searchsorted(found.group, np.arange(len(limits) + 1))
    for number in np.flatnonzero(used > np.nanmin(limits, axis=1) * burst_s).tolist():
        mine = slice(bounds[number], bounds[number + 1])
        for place, limit in enumerate(limits[number].tolist()):
            if not used[number] > limit * burst_s:  # never more than a burst in all: never delayed
                continue
            held = token_replay(
                found.some(mine),
                limit,
                num_samples=rule.num_samples,
                sample_ms=rule.sample_ms,
                algorithm=rule.tokens,
                overlap=bool(overlap[bounds[number]]),
            )
            if held.seconds:
                outcome.seconds_over[number, place] = held.seconds
                outcome.longest_ms[number, place] = held.longest_ms
                outcome.extreme[number, place] = held.least


def folded(rules: Sequence[Rule]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over all rows (:data:`ROWS`) of some groups, in any order."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every = list(batches)
        if not every:
            return
        table = pa.Table.from_batches(every)
        del every
        heads, rows = table.filter(table["rule"].is_valid()), table.filter(table["rule"].is_null())
        del table
        gids = heads["gid"].to_numpy()
        order = np.argsort(gids)
        gids, which = gids[order], heads["rule"].to_numpy()[order]
        limits = heads["limits"].combine_chunks().take(pa.array(order))
        group = np.searchsorted(gids, rows["gid"].to_numpy())
        start_ms, duration_s, amount = (rows[name].to_numpy() for name in ("start_ms", "duration_s", "amount"))
        for number, rule in enumerate(rules):
            mine = np.flatnonzero(which == number)
            if not len(mine):
                continue
            some = np.isin(group, mine)
            matrix = limits.take(pa.array(mine)).flatten().to_numpy(zero_copy_only=False).reshape(len(mine), -1)
            outcome = fold(
                rule, np.searchsorted(mine, group[some]), start_ms[some], duration_s[some], amount[some], matrix
            )
            several = matrix.shape[1]
            columns = [
                np.repeat(gids[mine], several),
                np.tile(np.arange(several, dtype=np.int32), len(mine)),
                outcome.seconds_over.ravel(),
                outcome.longest_ms.ravel(),
                outcome.extreme.ravel(),
                np.repeat(outcome.seconds_seen, several),
                np.repeat(outcome.peak, several),
            ]
            yield pa.RecordBatch.from_arrays([pa.array(one, from_pandas=True) for one in columns], _NAMES)

    return run


@dataclass(slots=True)
class TokenResult:
    """The result for one group."""

    seconds: int = 0
    longest_ms: int = 0
    least: float = 0.0
    """Tokens left, in the worst of those seconds."""


def token_replay(
    found: Intervals,
    limit: float,
    *,
    num_samples: int,
    sample_ms: int,
    algorithm: MutationAlgorithm,
    overlap: bool = False,
) -> TokenResult:
    """One group's intervals against one limit."""
    counter: TokenBucket | WindowedBurst
    if algorithm == "token_bucket":
        counter = TokenBucket(num_samples * sample_ms / 1000.0)
    else:
        counter = WindowedBurst(num_samples, sample_ms)
    full = counter.burst(limit)
    held = TokenResult()
    left = full
    started = False
    for start_ms, steps, each in _overlapping(found) if overlap else _one_by_one(found):
        for step in range(steps):
            if started and left == full and not each:
                break  # nothing is used and nothing can come back: the state is final
            left = counter.take(each, limit, start_ms + step * STEP_MS)
            started = True
            if left < 0:
                delay = bucket_throttle_ms(left, limit)
                if delay > 0:
                    held.seconds += 1
                    held.longest_ms = max(held.longest_ms, delay)
                    held.least = min(held.least, left)
    return held


def _one_by_one(found: Intervals) -> Iterator[tuple[int, int, float]]:
    return zip(found.start_ms.tolist(), found.steps.tolist(), found.each.tolist(), strict=True)


def _overlapping(found: Intervals) -> Iterator[tuple[int, int, float]]:

    def seconds(start_ms: int, steps: int, each: float) -> Iterator[tuple[int, int, float]]:
        return ((start_ms + step * STEP_MS, step, each) for step in range(steps))

    merged = heapq.merge(*(seconds(*one) for one in _one_by_one(found)))
    return ((at_ms, 1, each) for at_ms, _, each in merged)
