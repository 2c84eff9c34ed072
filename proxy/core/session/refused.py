"""Refused batches that have to come again before the batches that follow them.

A client that was refused one request may write others first that it had ready, as franz-go does after a throttle. A
broker would answer those of idempotent producers OUT_OF_ORDER_SEQUENCE_NUMBER, and franz-go disregards the answers to
others: they would be charged for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quota.gate import AWAY_MS

MAX_BATCHES: Final = 64
"""Batches that are remembered of a connection."""
MAX_SKIPPING: Final = 8
"""Requests in a row that are refused because of those: clients have at most 5 requests of idempotent batches in
flight."""
_SEQUENCES: Final = 1 << 31
"""After the last one comes 0."""
IN_ORDER: Final = "kgo/"
"""The software of clients that disregard answers to any batches but the first refused one: franz-go. Others take an
answer for what it says, and such a batch of theirs that is not idempotent passes."""

Batches = Mapping[tuple[bytes, bytes, int], tuple[int, int]]
"""As `ProduceRefusal.batches`."""


class RefusedBatches:
    """The first refused batch of each producer and partition on one connection, until it comes again."""

    __slots__ = ("_first", "_left", "skipping")

    def __init__(self) -> None:
        self._first: dict[tuple[bytes, bytes, int], tuple[int, int]] = {}
        self._left = MAX_SKIPPING
        self.skipping = False
        """The last request was one that `skips`."""

    def __len__(self) -> int:
        return len(self._first)

    def add(self, batches: Batches) -> None:
        """A request with these batches is refused."""
        if not self.skipping:
            self._left = MAX_SKIPPING
        for key, batch in batches.items():
            first = self._first.get(key)
            if (len(self._first) < MAX_BATCHES) if first is None else not _follows(batch, first):
                self._first[key] = batch

    def skips(self, batches: Batches, announced_until_ms: float, now_ms: float) -> bool:
        """Whether a request with these batches comes before a refused one that has to come first. The client was asked
        to wait until `announced_until_ms`; it may have given that one up."""
        if now_ms > announced_until_ms + AWAY_MS or not self._left:
            self._first.clear()
        self.skipping = False
        for key, batch in batches.items():
            first = self._first.get(key)
            if first is not None and _follows(batch, first):
                self.skipping = True
            elif first is not None:
                del self._first[key]
        self._left -= self.skipping
        return self.skipping


def _follows(batch: tuple[int, int], first: tuple[int, int]) -> bool:
    """Whether a batch, of which epoch and sequence are given, has the same epoch and a later sequence."""
    return batch[0] == first[0] and 0 < (batch[1] - first[1]) % _SEQUENCES < _SEQUENCES // 2
