"""The largest of many items, found while others are served."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Largest(Generic[T]):
    """The items with the largest keys, of all that are added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[tuple[float, ...], int, T]] = []
        self.seen = 0

    def add(self, key: tuple[float, ...], item: T) -> None:
        """One more; of those with equal keys the earlier ones stay."""
        self.seen += 1
        entry = (key, -self.seen, item)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif self._most:
            heapq.heappushpop(self._heap, entry)

    def items(self) -> Iterator[T]:
        """Take the items out, the smallest first."""
        while self._heap:
            yield heapq.heappop(self._heap)[2]
