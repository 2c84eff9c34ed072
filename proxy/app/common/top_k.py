"""Bounded labels: the most active clients get series of their own, the rest is added up as `other`, since clients can
invent a million ids. Everything is counted once, and no series goes backwards. A client keeps its series until it is
evicted, or idle for 15 minutes while others wait; free places go to those throttled most, then to those that moved
most."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

OTHER = "other"
IDLE_MS = 15 * 60 * 1000
"""A series may be taken away after this much idleness."""
SLACK = 1000
"""Objects that may wait for a series next to those that have one, before the least important are added up."""
LONGEST_LABEL = 120

Labels = tuple[str, str]
"""(user, client_id)"""
Totals = tuple[float, ...]

T = TypeVar("T", bound=Hashable)


def label(text: str) -> str:
    """A name as a label value: valid UTF-8 and short; a cut one ends in its hash, and one that really is `other`
    too."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= LONGEST_LABEL and text != OTHER:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: LONGEST_LABEL - 9]}~{digest}"


@dataclass(slots=True)
class _Series(Generic[T]):
    item: T
    values: list[float]
    active_ms: float


class TopKSeries(Generic[T]):
    """Running totals of many objects as at most `most` series and `other`. `width`: totals per object; `weight`:
    importance of an increase. Where totals go down (refunds), a series stands still until they have caught up."""

    def __init__(self, most: int, width: int, weight: Callable[[Totals], tuple[float, ...]]) -> None:
        self._most = most
        self._width = width
        self._weight = weight
        self._seen: dict[T, Totals] = {}
        self._series: dict[Labels, _Series[T]] = {}
        self.other: list[float] = [0.0] * width
        self.folded = 0
        """Clients without a series of their own at the last refresh."""

    def series(self) -> Iterator[tuple[Labels, list[float]]]:
        """Each series with its totals, `other` included if it is not empty."""
        for labels, series in self._series.items():
            yield labels, series.values
        if self.folded or any(self.other):
            yield (OTHER, OTHER), self.other

    def shown(self) -> Iterator[tuple[Labels, T]]:
        """The objects that have a series of their own."""
        return ((labels, series.item) for labels, series in self._series.items())

    def look(self, objects: Iterable[tuple[T, Labels, Totals]], now_ms: float) -> Iterator[None]:
        """Take over the changes since the last refresh, step by step; must be run to its end."""
        waiting: dict[Labels, tuple[T, Totals]] = {}
        present: set[Labels] = set()
        nothing = (0.0,) * self._width
        for item, labels, totals in objects:
            before = self._seen.get(item, nothing)
            present.add(labels)
            if totals != before:
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
                    if len(waiting) > self._most + SLACK:
                        yield from self._dismiss(waiting, self._most)
            yield  # only now: an object that is evicted meanwhile must not be counted again
        self._evict(present, bool(waiting), now_ms)
        yield from self._dismiss(waiting, max(self._most - len(self._series), 0))
        for labels, (item, gain) in waiting.items():
            self._series[labels] = _Series(item, list(gain), now_ms)
        self.folded = len(present) - sum(1 for labels in self._series if labels in present)

    def forget(self, item: T, labels: Labels, totals: Totals) -> None:
        """An object is evicted, with these totals; must be called for each that the next refresh will not see."""
        before = self._seen.pop(item, (0.0,) * self._width)
        gain = [max(total - old, 0.0) for total, old in zip(totals, before, strict=True)]
        if any(gain):
            series = self._series.get(labels)
            values = self.other if series is None else series.values
            values[:] = [value + more for value, more in zip(values, gain, strict=True)]

    def _evict(self, present: set[Labels], wanted: bool, now_ms: float) -> None:
        for labels in [labels for labels in self._series if labels not in present]:
            del self._series[labels]
        if wanted and len(self._series) >= self._most:
            for labels in [one for one, series in self._series.items() if now_ms - series.active_ms >= IDLE_MS]:
                del self._series[labels]

    def _dismiss(self, waiting: dict[Labels, tuple[T, Totals]], most: int) -> Iterator[None]:
        """Keep the `most` important of those waiting; the changes of the others go to `other`."""
        weighed = []
        for count, (labels, (_, gain)) in enumerate(waiting.items(), 1):
            weighed.append((self._weight(gain), -count, labels))
            yield
        chosen = {labels for _, _, labels in heapq.nlargest(most, weighed)}
        yield
        for labels in [labels for labels in waiting if labels not in chosen]:
            _, gain = waiting.pop(labels)
            self.other = [value + more for value, more in zip(self.other, gain, strict=True)]
            yield


Item = TypeVar("Item")


class Largest(Generic[Item]):
    """The items with the largest keys, of all that are added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[tuple[float, ...], int, Item]] = []
        self.seen = 0

    def add(self, key: tuple[float, ...], item: Item) -> None:
        """One more; of those with equal keys the earlier ones stay."""
        self.seen += 1
        entry = (key, -self.seen, item)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif self._most:
            heapq.heappushpop(self._heap, entry)

    def items(self) -> Iterator[Item]:
        """Take the items out, the smallest first."""
        while self._heap:
            yield heapq.heappop(self._heap)[2]
