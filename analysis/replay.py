"""The effect of limits on groups of clients: intervals in, one row per group and limit out. Each second is charged to
the counters of `quota`; NumPy finds the intervals that can matter (ADR 0014)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quota.bucket import TokenBucket, bucket_throttle_ms
from quota.burst import WindowedBurst
from quota.counter import MutationAlgorithm
from quota.rate import MAX_THROTTLE_MS, SampledRate, throttle_ms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Spans = Iterable[tuple[int, int, float]]
"""A group's intervals in order: start in ms, number of seconds, amount of each second."""
STEP_MS = 1000
SLACK_S = 3.0
"""Seconds of usage that may be in a window beyond its length: of its edges, of rounding, of a clock's adjustment."""
MAX_LOOKS = 64
"""Intervals within the reach of one window; with more, examining each takes longer than it saves."""
RESULT = (
    "gid bigint, place int, seconds_over bigint, longest_ms bigint, extreme double, seconds_seen double, peak double"
)
"""Output: one row per group and limit; `place` counts the group's limits from 0."""
_NAMES = [one.split()[0] for one in RESULT.split(", ")]


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


def near(found: Intervals, least_limit: Floats, num_samples: int, sample_ms: int) -> Flags:
    """Which intervals may exceed their group's limit (`least_limit`), or are in reach of those."""
    thickest = dense = density(found.duration_s, found.steps, found.amount)
    ends = found.last_ms
    reach_ms = (num_samples + 1) * sample_ms + STEP_MS
    back, pairs = 1, []
    while back < len(found):
        if back > MAX_LOOKS:  # windows of hours over intervals of seconds: all are replayed
            return np.ones(len(found), dtype=np.bool_)
        seen = (found.group[back:] == found.group[:-back]) & (ends[:-back] > found.start_ms[back:] - reach_ms)
        if not seen.any():
            break
        thickest = thickest.copy()
        thickest[back:] = np.maximum(thickest[back:], np.where(seen, dense[:-back], 0.0))
        pairs.append(seen)
        back += 1
    may = thickest * most_in_window(num_samples, sample_ms) > least_limit
    needed = may.copy()
    for distance, seen in enumerate(pairs, 1):
        needed[:-distance] |= seen & may[distance:]
    return needed


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


@dataclass(slots=True)
class Held:
    """The seconds in which one limit would have delayed a group."""

    seconds: int = 0
    longest_ms: int = 0
    extreme: float = 0.0
    """The highest rate, or the least tokens, in one of them."""

    def add(self, seconds: int, delay_ms: int, extreme: float) -> None:
        """More of them, each with this delay."""
        self.seconds += seconds
        self.longest_ms = max(self.longest_ms, delay_ms)
        self.extreme = extreme


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
    some = np.flatnonzero(_needed(rule, found, overlap, np.nanmin(limits, axis=1)))
    found, overlap = found.some(some), overlap[some]
    bounds = np.searchsorted(found.group, np.arange(count + 1)).tolist()
    replay = _in_window if rule.tokens is None else _in_bucket
    for number in np.unique(found.group).tolist():
        mine = found.some(slice(bounds[number], bounds[number + 1]))
        spans = _seconds(mine) if overlap[bounds[number]] else _spans(mine)
        for place, held in enumerate(replay(rule, spans, limits[number].tolist())):
            if held.seconds:
                outcome.seconds_over[number, place] = held.seconds
                outcome.longest_ms[number, place] = held.longest_ms
                outcome.extreme[number, place] = held.extreme
    return outcome


def _needed(rule: Rule, found: Intervals, overlap: Flags, least: Floats) -> Flags:
    """Which intervals can make a difference, by the least limit of each group."""
    if rule.tokens is not None:  # usage that never exceeded the burst was never delayed
        used = np.bincount(found.group, found.amount, len(least))
        return (used > least * (rule.num_samples * rule.sample_ms / 1000.0))[found.group]
    if rule.num_samples == 1 or rule.sample_ms != STEP_MS:
        # Without a minimum length of the window any rate is possible; and longer samples depend on all before.
        return np.ones(len(found), dtype=np.bool_)
    # The second of two seconds begins a sample, whatever was before; in a row of single seconds none need do so.
    single = (found.steps[1:] == 1) & (found.steps[:-1] == 1) & (found.group[1:] == found.group[:-1])
    whole = overlap | np.isin(found.group, found.group[1:][single])
    return whole | near(found, least[found.group] / rule.scale, rule.num_samples, rule.sample_ms)


def _in_window(rule: Rule, spans: Spans, limits: Sequence[float]) -> list[Held]:
    """One group's seconds in Kafka's window, against each limit. From second (N + 1) * W of an interval on its samples
    repeat: the last one stands for those that are left out, and the clock goes on without them."""
    result = [Held() for _ in limits]
    rate = SampledRate(rule.num_samples, rule.sample_ms)
    per_sample = rule.sample_ms // STEP_MS
    bounded_ms = MAX_THROTTLE_MS if rule.bounded_ms is None else rule.bounded_ms
    left_out_ms = 0
    for start_ms, steps, each in spans:
        left_out = max(steps - (rule.num_samples + 2) * per_sample, 0) // per_sample
        last = steps - (left_out + 1) * per_sample
        for step in range(steps - left_out * per_sample):
            now = start_ms - left_out_ms + step * STEP_MS
            rate.record(each * rule.scale, now)
            observed = rate.measure(now)
            for held, limit in zip(result, limits, strict=True):
                if observed > limit and (delay := throttle_ms(observed, limit, rate.window_ms)) > 0:
                    seconds = left_out + 1 if step >= last else 1
                    held.add(seconds, min(delay, bounded_ms), max(held.extreme, observed))
        left_out_ms += left_out * rule.sample_ms
    return result


def _in_bucket(rule: Rule, spans: Spans, limits: Sequence[float]) -> list[Held]:
    """One group's seconds in a bucket of tokens for each limit."""
    result = [Held() for _ in limits]
    spans = list(spans)
    for held, limit in zip(result, limits, strict=True):
        counter: TokenBucket | WindowedBurst
        if rule.tokens == "token_bucket":
            counter = TokenBucket(rule.num_samples * rule.sample_ms / 1000.0)
        else:
            counter = WindowedBurst(rule.num_samples, rule.sample_ms)
        full = counter.burst(limit)
        left: float | None = None
        for start_ms, steps, each in spans:
            for step in range(steps):
                if left == full and not each:
                    break  # nothing is used and nothing can come back: the state is final
                left = counter.take(each, limit, start_ms + step * STEP_MS)
                if (delay := bucket_throttle_ms(left, limit)) > 0:
                    held.add(1, delay, min(held.extreme, left))
    return result


def _spans(found: Intervals) -> Iterator[tuple[int, int, float]]:
    return zip(found.start_ms.tolist(), found.steps.tolist(), (found.amount / found.steps).tolist(), strict=True)


def _seconds(found: Intervals) -> Iterator[tuple[int, int, float]]:
    """Overlapping intervals second by second, in order."""

    def seconds(start_ms: int, steps: int, each: float) -> Iterator[tuple[int, int, float]]:
        return ((start_ms + step * STEP_MS, step, each) for step in range(steps))

    merged = heapq.merge(*(seconds(*one) for one in _spans(found)))
    return ((at_ms, 1, each) for at_ms, _, each in merged)


def folded(rules: Sequence[Rule]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over all rows of some groups, in any order: one row per group (`gid`) with its `rule` (its place in
    `rules`) and its `limits`, and one per interval (`start_ms`, `duration_s`, `amount`), where these two are null."""

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
