"""The last 15 minutes, for the page on the admin port: what counters used and how long they delayed clients. A sample
every few seconds, in small steps, of a bounded number of counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import trio

from proxy.app.common.checkpoints import with_checkpoints
from proxy.app.common.top_k import Largest
from proxy.core.telemetry.observer import Counters
from quota.counter import QuotaCounter
from quota.entity import CounterKey, Kind
from quota.ledger import Ledger

if TYPE_CHECKING:
    from proxy.app.admin.explain import Moment

INTERVAL_S: Final = 5.0
SAMPLES: Final = 180
MAX_COUNTERS: Final = 50
STATES: Final = ("open", "muted", "waiting")
USED_WITHIN_MS: Final = 15_000
"""A counter that was not used for longer than its window has nothing new to report."""

Place = tuple[Kind, CounterKey]


class _Series:
    __slots__ = ("due_ms", "held", "imposed_ms", "limit", "peak", "use")

    def __init__(self, looks: int, imposed_ms: int) -> None:
        self.use: deque[float | None] = deque([None] * looks, maxlen=SAMPLES)
        self.limit: deque[float | None] = deque([None] * looks, maxlen=SAMPLES)
        self.held: deque[float | None] = deque([None] * looks, maxlen=SAMPLES)
        """Seconds of delay per second."""
        self.imposed_ms = imposed_ms
        """All delay so far, in the counter's own sum."""
        self.due_ms = 0.0
        """The part of it that lasts beyond the latest sample."""
        self.peak = 0.0

    def hold(self, imposed_ms: int, until_ms: float, elapsed_ms: float, now_ms: float) -> None:
        """An interval of `elapsed_ms` is over. A delay is spread over the time until the last one ends (`until_ms`)."""
        self.due_ms += max(imposed_ms - self.imposed_ms, 0)
        self.imposed_ms = imposed_ms
        part_ms = self.due_ms * elapsed_ms / (elapsed_ms + max(until_ms - now_ms, 0.0))
        self.held.append(part_ms / elapsed_ms)
        self.due_ms -= part_ms


class History:
    """Samples the ledger periodically, and reports the samples."""

    def __init__(self, ledger: Ledger, counters: Counters) -> None:
        self._ledger = ledger
        self._counters = counters
        self._at_ms: deque[float] = deque(maxlen=SAMPLES)
        self._connections: dict[str, deque[int]] = {name: deque(maxlen=SAMPLES) for name in STATES}
        self._series: dict[Place, _Series] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            async for _ in with_checkpoints(self.look(trio.current_time() * 1000.0)):
                pass
            await trio.sleep(INTERVAL_S)

    def look(self, now_ms: float) -> Iterator[None]:
        """Take one sample, step by step."""
        now = int(now_ms)
        largest: Largest[tuple[float, QuotaCounter]] = Largest(MAX_COUNTERS)
        seen: dict[Place, tuple[float, QuotaCounter]] = {}
        for group in self._ledger.groups():
            if group.limit is not None and max(group.last_ms, group.throttled_until) > now - USED_WITHIN_MS:
                use = group.utilisation(now) or 0.0
                if (group.kind, group.key) in self._series:
                    seen[group.kind, group.key] = use, group
                largest.add((use,), (use, group))
            yield
        elapsed_ms = max(now_ms - self._at_ms[-1], 1.0) if self._at_ms else INTERVAL_S * 1000.0
        looks = len(self._at_ms)
        self._at_ms.append(now_ms)
        for name, counts in self._connections.items():
            counts.append(getattr(self._counters.connections, name))
        for use, group in reversed(list(largest.items())):
            place = (group.kind, group.key)
            if place not in self._series and (len(self._series) < MAX_COUNTERS or self._forget_one(use)):
                recent = self._ledger.decisions.of(*place)
                recent_ms = sum(one.delay_ms for one in recent if one.at_ms > now_ms - elapsed_ms)
                self._series[place] = _Series(looks, group.usage.throttle_ms - recent_ms)
            seen[place] = use, group
        for place, series in list(self._series.items()):
            now_seen = seen.get(place)
            if now_seen is None:
                series.use.append(0.0)
                series.limit.append(series.limit[-1])
                series.held.append(0.0)
                if not any(series.use):
                    del self._series[place]
                continue
            use, group = now_seen
            series.use.append(use)
            series.limit.append(group.limit)
            series.peak = max(series.peak, use)
            series.hold(group.usage.throttle_ms, group.throttled_until, elapsed_ms, now_ms)

    def delayed_json(self, group: QuotaCounter, at: Moment) -> dict[str, Any] | None:
        """Since when it has delayed clients in every interval, or `earlier`: nothing older is in the history; and the
        fraction of the last minute's intervals in which it did. None: not in the latest one."""
        series = self._series.get((group.kind, group.key))
        if series is None or not series.held[-1]:
            return None
        run = len(list(takewhile(bool, reversed(series.held))))
        minute = [
            bool(held) for at_ms, held in zip(self._at_ms, series.held, strict=True) if at_ms > at.now_ms - 60_000.0
        ]
        share = sum(minute) / max(len(minute), 60.0 // INTERVAL_S)
        return {"since": at.iso(self._at_ms[-run]), "earlier": run == len(series.held), "last_minute": share}

    def as_json(self, now_ms: float) -> dict[str, Any]:
        """Everything remembered; times are seconds before now, oldest first."""
        return {
            "interval_s": INTERVAL_S,
            "age_s": [round((now_ms - at_ms) / 1000.0, 1) for at_ms in self._at_ms],
            "connections": {name: list(counts) for name, counts in self._connections.items()},
            "counters": [
                {"kind": kind.value, "user": key.user, "client_id": key.client_id}
                | {name: _rounded(getattr(series, name)) for name in ("use", "limit", "held")}
                for (kind, key), series in self._series.items()
            ],
        }

    def _forget_one(self, use: float) -> bool:
        """Evict a counter for one that uses more than the least used remembered one ever did."""
        place, series = min(self._series.items(), key=lambda item: item[1].peak)
        if series.peak >= use:
            return False
        del self._series[place]
        return True


def _rounded(values: deque[float | None]) -> list[float | None]:
    return [None if one is None else round(one, 4) for one in values]
