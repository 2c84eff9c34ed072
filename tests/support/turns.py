"""CPU time of this thread's calls, always compared with the CPU time of other calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


class Watch:
    def __init__(self) -> None:
        self.took_s: list[float] = []

    def __call__(self, call: Callable[[], Result]) -> Result:
        began = time.thread_time()
        try:
            return call()
        finally:
            self.took_s.append(time.thread_time() - began)


def watches() -> Iterator[Watch]:
    """One for each run: up to 25, fewer of long ones, without collections of garbage, since a busy machine disturbs
    some of them."""
    took_s = 0.0
    for count in range(25):
        if took_s > (0.1 if count >= 3 else 0.5):
            return
        watch = Watch()
        gc.collect()
        gc.disable()
        try:
            yield watch
        finally:
            gc.enable()
        took_s += sum(watch.took_s)


def runs(run: Callable[[Watch], object]) -> Iterator[Watch]:
    for watch in watches():
        run(watch)
        yield watch


def in_slices(most: float = 0.25) -> Iterator[Watch]:
    """For runs whose longest call takes less than this share of the run's CPU time, at least once."""
    parts = []
    for watch in watches():
        yield watch
        parts.append(max(watch.took_s) / sum(watch.took_s))
    assert min(parts) < most


def least(call: Callable[[], object]) -> float:
    """The CPU time of a call in seconds, the least of all runs."""
    return min(sum(watch.took_s) for watch in runs(lambda watch: watch(call)))


def growth(run: Callable[[int, Watch], object], size: int) -> float:
    """How many times longer a run with four times as much to do takes; each the least of all runs, in turn."""
    pairs = zip(runs(partial(run, size)), runs(partial(run, 4 * size)), strict=False)
    totals = [(sum(few.took_s), sum(many.took_s)) for few, many in pairs]
    return min(many for _, many in totals) / min(few for few, _ in totals)
