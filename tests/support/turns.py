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


def runs(run: Callable[[Watch], object]) -> Iterator[Watch]:
    """Up to 25, fewer of long ones, without collections of garbage: a busy machine disturbs some of them."""
    took_s = 0.0
    for count in range(25):
        if took_s > (0.1 if count >= 3 else 0.5):
            return
        watch = Watch()
        gc.collect()
        gc.disable()
        try:
            run(watch)
        finally:
            gc.enable()
        took_s += sum(watch.took_s)
        yield watch


def least(call: Callable[[], object]) -> float:
    """The CPU time of a call in seconds, the least of all runs."""
    return min(sum(watch.took_s) for watch in runs(lambda watch: watch(call)))


def longest_part(run: Callable[[Watch], object]) -> float:
    """The longest call's share of a run's CPU time, the least of all runs."""
    return min(max(watch.took_s) / sum(watch.took_s) for watch in runs(run))


def growth(run: Callable[[int, Watch], object], size: int) -> float:
    """How many times longer a run with four times as much to do takes; each the least of all runs, in turn."""
    pairs = zip(runs(partial(run, size)), runs(partial(run, 4 * size)), strict=False)
    totals = [(sum(few.took_s), sum(many.took_s)) for few, many in pairs]
    return min(many for _, many in totals) / min(few for few, _ in totals)
