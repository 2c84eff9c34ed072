"""The effect of limits on groups of clients: intervals in, one row per group and limit out. Each second is charged to
the counters of `quota`; NumPy finds the intervals that can matter (ADR 0014)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

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
LEAST_S = 0.001
"""No rate is over less, whatever records say."""
SLACK_S = 3.0
"""Seconds of usage that may be in a window beyond its length: of its edges, of rounding, of a clock's adjustment."""
MAX_LOOKS = 64
"""Intervals within the reach of one window; with more, examining each takes longer than it saves."""
RESULT = (
    "gid bigint, place int, seconds_over bigint, longest_ms bigint, extreme double, seconds_seen double, peak double"
)
"""Output: one row per group and limit. `place` counts the group's limits from 0; `extreme` is the highest rate, or the
least tokens, where the group was over its limit; `seconds_seen` the length of all its intervals; `peak` the highest
rate of one."""
_TYPES = {"bigint": pa.int64(), "double": pa.float64(), "int": pa.int32()}
_SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in (one.split() for one in RESULT.split(", "))])


@dataclass(slots=True)
class Intervals:
    """A group's intervals, by start."""

    start_ms: Ints
    steps: Ints
    """The number of seconds that the amount is spread over."""
    duration_s: Floats
    amount: Floats

    @property
    def last_ms(self) -> Ints:
        """When its last second begins."""
        return self.start_ms + (self.steps - 1) * STEP_MS

    @property
    def overlap(self) -> bool:
        """Whether one begins before another has ended: a clock was set back."""
        return bool((self.start_ms[1:] <= self.last_ms[:-1]).any())


def ordered(start_ms: Ints, duration_s: Floats, amount: Floats) -> Intervals:
    """Intervals in order. The usage of a group's members in one interval is added up."""
    order = np.lexsort((amount, start_ms))
    start_ms, duration_s, amount = start_ms[order], duration_s[order], amount[order]
    start_ms, first = np.unique(start_ms, return_index=True)
    if len(first) < len(amount):
        duration_s, amount = np.maximum.reduceat(duration_s, first), np.add.reduceat(amount, first)
    steps = np.maximum(np.floor(duration_s + 0.5), 1).astype(np.int64)
    return Intervals(start_ms, steps, duration_s, amount)


def most_in_window(num_samples: int, sample_ms: int) -> float:
    """Times the highest density, an upper bound of any window's rate: events lie within N + 1 samples and are divided
    by no less than N - 1."""
    return ((num_samples + 1) * sample_ms / 1000 + SLACK_S) / ((num_samples - 1) * sample_ms / 1000)


def near(found: Intervals, limit: float, num_samples: int, sample_ms: int) -> Flags:
    """Which intervals may exceed the limit, or are in reach of those."""
    # Amount per second that is not exceeded anywhere in the interval, by its seconds and by its length.
    density = found.amount / np.minimum(np.maximum(found.duration_s, LEAST_S), found.steps)
    thickest, ends = density.copy(), found.last_ms
    reach_ms = (num_samples + 1) * sample_ms + STEP_MS
    back, pairs = 1, []
    while (seen := ends[:-back] > found.start_ms[back:] - reach_ms).any():
        if back > MAX_LOOKS:  # windows of hours over intervals of seconds: all are replayed
            return np.ones(len(ends), dtype=np.bool_)
        thickest[back:] = np.maximum(thickest[back:], np.where(seen, density[:-back], 0.0))
        pairs.append(seen)
        back += 1
    may = thickest * most_in_window(num_samples, sample_ms) > limit
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
    bounded_ms: int = MAX_THROTTLE_MS
    tokens: MutationAlgorithm | None = None
    """Partition mutations: by this algorithm. None: Kafka's sampled window."""


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


def replay(rule: Rule, found: Intervals, limits: Sequence[float]) -> list[Held]:
    """Replay a group's intervals, each spread over its seconds, against each limit; windows begin empty."""
    needed = _needed(rule, found, min(limits))
    rows = (found.start_ms, found.steps, found.amount / found.steps)
    spans: Spans = zip(*(column[needed].tolist() for column in rows), strict=True)
    if found.overlap:
        spans = _seconds(spans)
    return (_in_window if rule.tokens is None else _in_bucket)(rule, spans, limits)


def _needed(rule: Rule, found: Intervals, least: float) -> Flags:
    """Which intervals can make a difference, by the least limit."""
    every = np.ones(len(found.steps), dtype=np.bool_)
    if rule.tokens is not None:  # usage that never exceeded the burst was never delayed
        used = float(found.amount.sum())
        return np.full(len(every), used > least * (rule.num_samples * rule.sample_ms / 1000.0))
    if rule.num_samples == 1 or rule.sample_ms != STEP_MS or found.overlap:
        # Without a minimum length of the window any rate is possible; and longer samples depend on all before.
        return every
    if ((found.steps[1:] == 1) & (found.steps[:-1] == 1)).any():
        # The second of two seconds begins a sample, whatever was before; in a row of single seconds none need do so.
        return every
    return near(found, least / rule.scale, rule.num_samples, rule.sample_ms)


def _in_window(rule: Rule, spans: Spans, limits: Sequence[float]) -> list[Held]:
    """One group's seconds in Kafka's window, against each limit. From second (N + 1) * W of an interval on its samples
    repeat: the last one stands for those that are left out, and the clock goes on without them."""
    result = [Held() for _ in limits]
    rate = SampledRate(rule.num_samples, rule.sample_ms)
    per_sample = rule.sample_ms // STEP_MS
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
                    held.add(seconds, min(delay, rule.bounded_ms), max(held.extreme, observed))
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


def _seconds(spans: Spans) -> Spans:
    """Overlapping intervals second by second, in order."""

    def seconds(start_ms: int, steps: int, each: float) -> Iterator[tuple[int, int, float]]:
        return ((start_ms + step * STEP_MS, step, each) for step in range(steps))

    merged = heapq.merge(*(seconds(*one) for one in spans))
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
        gids = rows["gid"].to_numpy()
        order = np.argsort(gids)
        gids = gids[order]
        columns = [rows[name].to_numpy()[order] for name in ("start_ms", "duration_s", "amount")]
        result = []
        for head in heads.to_pylist():
            rule, gid = rules[head["rule"]], head["gid"]
            first, after = np.searchsorted(gids, (gid, gid + 1))
            found = ordered(*(column[first:after] for column in columns))
            rates = found.amount * rule.scale / np.maximum(found.duration_s, LEAST_S)
            same = {"gid": gid, "seconds_seen": found.duration_s.sum(), "peak": rates.max(initial=0.0)}
            for place, held in enumerate(replay(rule, found, head["limits"])):
                extreme = held.extreme if held.seconds else None
                over = {"seconds_over": held.seconds, "longest_ms": held.longest_ms, "extreme": extreme}
                result.append(same | over | {"place": place})
        yield pa.RecordBatch.from_pylist(result, _SCHEMA)

    return run
