"""Bounded labels: the most active clients get series of their own, the rest is added up as `other`.

Client ids are chosen by clients, so any client that can connect can invent a million of them. A Prometheus must survive
that, and the clients that matter must stay visible. The rules:

- What happened is counted exactly once, in a series of its own or in `other`; no series ever goes backwards.
- A client that has a series keeps it until the ledger forgets it, or until it was idle for 15 minutes while others
  are waiting for a series. Its series then ends; should it come back, it starts a new one at 0.
- Free places go to the clients that were throttled most since the last look, then to those that moved most.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

OTHER = "other"
IDLE_MS = 15 * 60 * 1000
"""A series may be taken away after so much idleness."""
STEP = 250
"""Objects looked at before others get their turn on the event loop (about 1 ms)."""
LONGEST_LABEL = 120

Labels = tuple[str, str]
"""(user, client_id)"""
Totals = tuple[float, ...]

T = TypeVar("T", bound=Hashable)


def label(text: str) -> str:
    """A name as a label value: valid UTF-8 and short (client ids may have 32 KB); a cut one ends in its hash."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= LONGEST_LABEL:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: LONGEST_LABEL - 9]}~{digest}"


@dataclass(slots=True)
class _Series(Generic[T]):
    """A client's own series."""

    item: T
    values: list[float]
    active_ms: float


class TopKSeries(Generic[T]):
    """Running totals of many objects as at most `most` series and `other`.

    `width` is the number of totals per object, `weight` says how important an increase is. Totals may go down for a
    while (refunds): a series then stands still until they have caught up.
    """

    def __init__(self, most: int, width: int, weight: Callable[[Totals], tuple[float, ...]]) -> None:
        self._most = most
        self._width = width
        self._weight = weight
        self._seen: dict[T, Totals] = {}
        self._series: dict[Labels, _Series[T]] = {}
        self.other: list[float] = [0.0] * width
        self.folded = 0
        """Clients without a series of their own at the last look."""

    def series(self) -> Iterator[tuple[Labels, list[float]]]:
        """Each series with its totals, `other` included if anything is in it."""
        for labels, series in self._series.items():
            yield labels, series.values
        if self.folded or any(self.other):
            yield (OTHER, OTHER), self.other

    def shown(self) -> Iterator[tuple[Labels, T]]:
        """The objects that have a series of their own."""
        return ((labels, series.item) for labels, series in self._series.items())

    def look(self, objects: Iterable[tuple[T, Labels, Totals]], now_ms: float) -> Iterator[None]:
        """Take over what happened since the last look. A generator: run it to its end, others may work at each step."""
        waiting: dict[Labels, tuple[T, Totals]] = {}
        present: set[Labels] = set()
        nothing = (0.0,) * self._width
        for count, (item, labels, totals) in enumerate(objects, 1):
            if count % STEP == 0:
                yield
            before = self._seen.get(item, nothing)
            present.add(labels)
            if totals == before:
                continue
            highest = tuple(map(max, totals, before))
            self._seen[item] = highest
            gain = tuple(high - old for high, old in zip(highest, before, strict=True))
            series = self._series.get(labels)
            if series is not None:
                series.item = item
                series.values = [value + more for value, more in zip(series.values, gain, strict=True)]
                series.active_ms = now_ms
            else:
                _, already = waiting.get(labels, (item, nothing))
                waiting[labels] = item, tuple(a + b for a, b in zip(already, gain, strict=True))
                if len(waiting) > self._most + 4 * STEP:
                    self._dismiss(waiting, self._most)
        yield
        self._make_room(present, bool(waiting), now_ms)
        self._admit(waiting, now_ms)
        self.folded = len(present) - sum(1 for labels in self._series if labels in present)

    def forget(self, item: T, labels: Labels, totals: Totals) -> None:
        """An object goes, with these totals: what it did since the last look is counted, and a new one of the same name
        starts at 0. To be called for each object that the next look will not see."""
        before = self._seen.pop(item, (0.0,) * self._width)
        gain = [max(total - old, 0.0) for total, old in zip(totals, before, strict=True)]
        if any(gain):
            series = self._series.get(labels)
            values = self.other if series is None else series.values
            values[:] = [value + more for value, more in zip(values, gain, strict=True)]

    def _make_room(self, present: set[Labels], wanted: bool, now_ms: float) -> None:
        for labels in [labels for labels in self._series if labels not in present]:
            del self._series[labels]
        if wanted and len(self._series) >= self._most:
            for labels in [one for one, series in self._series.items() if now_ms - series.active_ms >= IDLE_MS]:
                del self._series[labels]

    def _admit(self, waiting: dict[Labels, tuple[T, Totals]], now_ms: float) -> None:
        self._dismiss(waiting, max(self._most - len(self._series), 0))
        for labels, (item, gain) in waiting.items():
            self._series[labels] = _Series(item, list(gain), now_ms)

    def _dismiss(self, waiting: dict[Labels, tuple[T, Totals]], most: int) -> None:
        """Keep the `most` important of those waiting; what the others did goes to `other`."""
        named = (labels for labels in waiting if labels != (OTHER, OTHER))  # a client may really be called so
        chosen = set(heapq.nlargest(most, named, key=lambda labels: self._weight(waiting[labels][1])))
        for labels in [labels for labels in waiting if labels not in chosen]:
            _, gain = waiting.pop(labels)
            self.other = [value + more for value, more in zip(self.other, gain, strict=True)]
