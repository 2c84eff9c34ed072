"""When the first window is over, and how long a run has to be to show anything after that."""

from __future__ import annotations

from collections.abc import Sequence

from tests.lab.demo.meter import Track
from tests.lab.demo.plan import (
    AFTER_BURST_S,
    BURST_SHARE,
    LONGER_S,
    STEADY_AT_LEAST_S,
    STEADY_FROM_S,
    WINDOW_S,
    is_hungry,
)

STEP_S = 0.25
"""Interval of the clients' reports."""


def is_long_enough(seconds: float) -> bool:
    """Whether a run of this many seconds has a meaningful steady phase."""
    return seconds >= STEADY_FROM_S + STEADY_AT_LEAST_S


def steady_from(tracks: Sequence[Track]) -> float | None:
    """The second from which every limited client moves evenly; None while one has not spent its first window."""
    latest = float(STEADY_FROM_S)
    for track in tracks:
        plan = track.plan
        if plan.limit is not None and not plan.shared and is_hungry(plan):
            spent = spent_at(track, BURST_SHARE * WINDOW_S * plan.limit)
            if spent is None:
                return None
            latest = max(latest, spent + AFTER_BURST_S)
    return latest


def spent_at(track: Track, burst: float) -> float | None:
    """The second by which a client has moved `burst` bytes; None: it has not."""
    second = 0.0
    while second <= track.reported_until:
        if track.moved_by(second) >= burst:
            return second
        second += STEP_S
    return None


def length(tracks: Sequence[Track], seconds: float) -> float:
    """The length of a run that was to last `seconds`: longer if the steady phase would be too short."""
    if not is_long_enough(seconds):
        return seconds
    begin = steady_from(tracks)
    needed = seconds + LONGER_S if begin is None else begin + STEADY_AT_LEAST_S
    return min(max(seconds, needed), seconds + LONGER_S)
