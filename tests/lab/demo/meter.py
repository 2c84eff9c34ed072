"""Rates from the clients' reports: how much, when. Pure arithmetic on (seconds, bytes) points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.lab.demo.plan import (
    AFTER_BURST_S,
    BURST_SHARE,
    LONGER_S,
    STEADY_AT_LEAST_S,
    STEADY_FROM_S,
    WINDOW_S,
    DemoClient,
    is_hungry,
)

NOW_S = 2.0
"""`now` is the rate over the last two seconds: short enough to see a hold, long enough not to flicker."""


@dataclass(slots=True)
class Track:
    plan: DemoClient
    began: float
    """The common start, in seconds of the monotonic clock."""
    failed: int = 0
    problem: str = ""
    client_throttle_max_ms: float | None = None
    """The longest throttle time that the library reported; None: it reports none."""
    throttles: int = 0
    held_ms: float = 0.0
    last_throttle_ms: float = 0.0
    """The latest delay (the mean, if there were several between two queries of the sidecar)."""
    share: float | None = None
    """The part of a fleet's limit that its sidecar may use, as a fraction."""
    muted: bool = False
    _at: list[float] = field(default_factory=lambda: [0.0])
    _moved: list[float] = field(default_factory=lambda: [0.0])

    def note(self, tally: dict[str, Any]) -> None:
        """Add a report of the client's; late and repeated ones are dropped."""
        seconds = tally["at"] - self.began
        if seconds > self._at[-1]:
            self._at.append(seconds)
            self._moved.append(tally["moved"])
        self.failed, self.problem = tally["failed"], tally["problem"]
        self.client_throttle_max_ms = tally["throttle_max_ms"]

    def note_sidecar(self, throttles: int, held_ms: float, muted: bool, share: float | None = None) -> None:
        if throttles > self.throttles:
            self.last_throttle_ms = (held_ms - self.held_ms) / (throttles - self.throttles)
        self.throttles, self.held_ms, self.muted, self.share = throttles, held_ms, muted, share

    def moved_by(self, second: float) -> float:
        """Bytes moved from the start until then, between two reports in proportion."""
        after = bisect_right(self._at, second)
        if after == len(self._at):
            return self._moved[-1]
        if after == 0:
            return 0.0
        t0, t1, m0, m1 = self._at[after - 1], self._at[after], self._moved[after - 1], self._moved[after]
        return m0 + (m1 - m0) * (second - t0) / (t1 - t0)

    @property
    def reported_until(self) -> float:
        return self._at[-1]

    def rate(self, begin: float, end: float) -> float:
        """Mean rate in bytes/s between two seconds after the start; 0 for an empty stretch."""
        begin = max(begin, 0.0)
        return (self.moved_by(end) - self.moved_by(begin)) / (end - begin) if end > begin else 0.0

    def now(self) -> float:
        return self.rate(self._at[-1] - NOW_S, self._at[-1])

    def average(self) -> float:
        return self.rate(0.0, self._at[-1])

    def history(self, columns: int, until: float) -> list[float]:
        step = until / columns
        return [self.rate(column * step, (column + 1) * step) for column in range(columns)]


STEP_S = 0.25


def is_long_enough(seconds: float) -> bool:
    return seconds >= STEADY_FROM_S + STEADY_AT_LEAST_S


def steady_from(tracks: Sequence[Track]) -> float | None:
    """The second from which every limited client moves evenly; None while one has not spent its first window."""
    latest = float(STEADY_FROM_S)
    for track in tracks:
        plan = track.plan
        if plan.limit is not None and not plan.shared and is_hungry(plan):
            burst, second = BURST_SHARE * WINDOW_S * plan.limit, 0.0
            while track.moved_by(second) < burst:
                second += STEP_S
                if second > track.reported_until:
                    return None
            latest = max(latest, second + AFTER_BURST_S)
    return latest


def length(tracks: Sequence[Track], seconds: float) -> float:
    """The length of a run that was to last `seconds`: longer if the steady phase would be too short."""
    if not is_long_enough(seconds):
        return seconds
    begin = steady_from(tracks)
    needed = seconds + LONGER_S if begin is None else begin + STEADY_AT_LEAST_S
    return min(max(seconds, needed), seconds + LONGER_S)
