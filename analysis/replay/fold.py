"""The effect of limits on groups of clients: intervals in, one row per group and limit out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.replay import tokens
from analysis.replay.intervals import (
    STEP_MS,
    Events,
    Floats,
    Intervals,
    Ints,
    delays_ms,
    events,
    near,
    ordered,
    overlapping,
    places,
    rates,
    whole_events,
)
from quota.counter import MutationAlgorithm

MAX_EVENTS = 1 << 18
"""Seconds processed together: as many as fit into a processor's cache."""


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
            held = tokens.replay(
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


ROWS = "gid bigint, rule int, limits array<double>, start_ms bigint, duration_s double, amount double"
"""Input: one row per group, with its rule and its limits, and one per interval, where these two are null."""
RESULT = (
    "gid bigint, place int, seconds_over bigint, longest_ms bigint, extreme double, seconds_seen double, peak double"
)
"""Output: one row per group and limit; `place` counts the group's limits from 0."""
_NAMES = [one.split()[0] for one in RESULT.split(", ")]


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
