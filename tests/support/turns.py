"""The CPU time of calls that may hold up others: of this thread, so that what else the machine does changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

TURN_MS = 2.0
BUSY = 2.5
"""By how much the CPU time of the same code grows while other processes use the caches and the other thread of a core.
Without slices these calls take 20 ms to 3 s."""
Result = TypeVar("Result")


class Watch:
    """The CPU time of each call that it makes, in ms."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def __call__(self, call: Callable[[], Result]) -> Result:
        began = time.thread_time()
        try:
            return call()
        finally:
            self.took.append((time.thread_time() - began) * 1000.0)

    def each(self, steps: Generator[None, None, Result]) -> Result:
        """The result of work in steps."""
        while True:
            try:
                self(partial(next, steps))
            except StopIteration as end:
                result: Result = end.value
                return result

    def check(self, most_ms: float = TURN_MS, but: int | None = None) -> None:
        """All but so many: those the interpreter may have used for itself (a collection)."""
        self.took.sort()
        but = 1 + len(self.took) // 100 if but is None else but
        assert self.took[max(0, len(self.took) - 1 - but)] < BUSY * most_ms, self.took[-5:]
