"""The mutation quota replayed second by second, with the sidecar's own counters, as a closed form rounds differently.
Seconds at which a counter is full and stays full are skipped."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.replay.intervals import STEP_MS, Intervals
from quota.bucket import TokenBucket, bucket_throttle_ms
from quota.burst import WindowedBurst
from quota.counter import MutationAlgorithm


@dataclass(slots=True)
class TokenResult:
    """The result for one group."""

    seconds: int = 0
    longest_ms: int = 0
    least: float = 0.0
    """Tokens left, in the worst of those seconds."""


def replay(
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
