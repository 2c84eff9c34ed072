"""Python's garbage collector and the threads beside the traffic: who makes it wait, and for how long."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

SWITCH_INTERVAL_S: Final = 0.0001
"""How long a thread that computes lets another one wait that wants to go on. Python's own is 5 ms, and a file of quotas
is read beside the traffic: each packet would wait so long while that takes, and again after a system call that let the
other thread on."""
_STEP: Final = 200
_Result = TypeVar("_Result")


def share_fairly() -> None:
    """Let the event loop go on soon when a thread computes."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def settle() -> None:
    """What is there now stays: full collections need not walk it while traffic waits, and what the start has used and
    freed goes back to the system."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Return freed memory to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without runs of the garbage collector, for work that makes many objects and no cycles. Each run would look at all
    that was made so far, in one go, while everybody waits, and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def beside_traffic(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """What `work` makes of the arguments, in a thread and without runs of the collector; raises what it raises."""

    def uncollected_work() -> _Result:
        with uncollected():
            return work(*arguments)

    return await trio.to_thread.run_sync(uncollected_work)


def let_go(last: list[Any], parts: list[Any]) -> None:
    """Let go of a large object in steps: freed at once, its many parts hold up all threads until the last is gone.

    `last` has the last reference to it, `parts` what it consists of. Both are empty afterwards; what others use stays.
    """
    last.clear()
    while parts:
        del parts[-_STEP:]
    give_back()
