"""A counter's state at one moment, for people: what was used, what another request would meet, and until when."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from quota.counter import Line, QuotaCounter
from quota.entity import Kind
from quota.mutation import BucketCounter
from quota.window import WindowCounter

_STEPS: Final = 200
"""Moments tested within the time after which the window is certainly empty."""
_LATEST_MS: Final = 2**31


@dataclass(frozen=True, slots=True)
class CounterStatus:
    """One counter, now. Computing it changes nothing."""

    amount: float
    """What is in the window: bytes, busy milliseconds; for partition mutations what a full bucket has more."""
    window_ms: int | None
    """The window's length at this moment; None for partition mutations."""
    tokens: float | None
    """Partition mutations: what is left, negative when overdrawn."""
    burst: float | None
    """Partition mutations: a full bucket."""
    share: float | None
    """The used fraction of the limit, above 1 when it is exceeded; None without a limit."""
    wait_ms: int
    """The delay that a request would get now."""
    free_ms: int
    """After this time without requests, the next one would not be delayed."""
    muted_ms: int
    """The rest of the latest delay: connections are not read for this long."""
    owed_ms: int
    """The group's debt beyond the delays that were announced: its next requests are queued for it."""
    paced: bool
    """Whether smooth pacing is active (ADR 0004)."""
    line: Line
    """The queue at the group's gate (ADR 0026)."""


def counter_status(group: QuotaCounter, now_ms: float) -> CounterStatus:
    """The state of `group` at `now_ms`."""
    now = int(now_ms)
    line = group.line(now)
    amount, window_ms, tokens, burst = group.usage.amount, None, None, None
    if isinstance(group, WindowCounter):
        total, window_ms = group.rate.peek(max(now, group.last_ms))
        amount = total * 10.0 if group.kind is Kind.REQUEST else total  # 1 ms busy is 0.1 percent-seconds
    elif isinstance(group, BucketCounter) and group.limit is not None:
        tokens, burst = group.observed(now), group.bucket.burst(group.limit)
        amount = burst - tokens
    return CounterStatus(
        amount=amount,
        window_ms=window_ms,
        tokens=tokens,
        burst=burst,
        share=group.utilisation(now),
        wait_ms=max(group.due(now), line.newcomer_ms),
        free_ms=max(free_ms(group, now), line.newcomer_ms if line.waiting else 0),
        muted_ms=max(group.throttled_until - now, 0),
        owed_ms=group.owed_ms(now),
        paced=group.paced,
        line=line,
    )


def free_ms(group: QuotaCounter, now: int) -> int:
    """How long until a request would not be delayed, if none came before. Not the same as the delay that is due: that
    one is Kafka's formula, cut to `max_mute`; this one follows the samples as they leave the window."""
    if not _waits(group, now):
        return 0
    step_ms = max(_horizon_ms(group) // _STEPS, 1)
    waits, free = 0, step_ms
    while _waits(group, now + free):
        waits = free
        if free == _LATEST_MS:
            return _LATEST_MS
        if free > _horizon_ms(group):  # the debt may be larger: ever larger steps
            step_ms *= 2
        free = min(free + step_ms, _LATEST_MS)
    between = range(waits + 1, free)
    return waits + 1 + bisect_left(between, True, key=lambda free: not _waits(group, now + free))


def _waits(group: QuotaCounter, now: int) -> bool:
    # Queued requests are not requests to come; `counter_status` adds the time that they take.
    return group.due(now) > 0 or (not group.waiting and group.line(now).newcomer_ms > 0)


def _horizon_ms(group: QuotaCounter) -> int:
    """When all past usage has left the window, or roughly is paid."""
    return group.rate.reach_ms + 1 if isinstance(group, WindowCounter) else 1000
