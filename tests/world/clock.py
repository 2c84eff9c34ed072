"""Simulated time: calls in the order of their times. Nothing happens in between, so idle time costs nothing."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Call = Callable[..., object]


class Clock:
    """Seconds since the world began."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0  # how many have been made
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._number = 0

    def at(self, at_s: float, call: Call, *arguments: object) -> None:
        """`call(*arguments)` at that time; now if it has passed. Calls of one time are made in the order of asking."""
        self._number += 1
        heappush(self._heap, (max(at_s, self.now_s), self._number, call, arguments))

    def after(self, delay_s: float, call: Call, *arguments: object) -> None:
        self.at(self.now_s + delay_s, call, *arguments)

    def run(self, until_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call, arguments = heappop(heap)
            self.calls += 1
            call(*arguments)
        self.now_s = until_s
