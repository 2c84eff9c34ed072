"""CPU time of this thread's calls, always compared with the CPU time of other calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


class Watch:
    """The CPU time of each call that it makes."""

    def __init__(self) -> None:
        self.took_s: list[float] = []

    def __call__(self, call: Callable[[], Result]) -> Result:
        began = time.thread_time()
        try:
            return call()
        finally:
            self.took_s.append(time.thread_time() - began)


def runs(run: Callable[[Watch], object]) -> list[Watch]:
    """Three, without collections of garbage."""
    watches = [Watch() for _ in range(3)]
    for watch in watches:
        gc.collect()
        gc.disable()
        try:
            run(watch)
        finally:
            gc.enable()
    return watches


def longest_part(run: Callable[[Watch], object]) -> float:
    """The longest call's share of a run's CPU time; the least of three runs."""
    return min(max(watch.took_s) / sum(watch.took_s) for watch in runs(run))


def growth(run: Callable[[int, Watch], object], size: int) -> float:
    """How many times longer a run with four times as much to do takes; each the least of three runs."""
    few, many = (min(sum(watch.took_s) for watch in runs(partial(run, much))) for much in (size, 4 * size))
    return many / few
