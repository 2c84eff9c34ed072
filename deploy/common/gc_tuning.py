"""Python's garbage collector and the threads beside the traffic: what delays the traffic, and for how long."""

from __future__ import annotations

import ctypes
import gc
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

from quota.pause import Pause

SWITCH_INTERVAL_S: Final = 0.0001
"""How long a thread that computes lets another one wait that wants to go on. Python's own is 5 ms, and a file of quotas
is read beside the traffic: each packet would wait so long while that takes, and again after a system call that let the
other thread on."""
_BUSY_S: Final = 0.0005
_MOMENT_S: Final = 0.00005
_STEP: Final = 200
_YOUNG: Final = 1000
_NEVER: Final = 1_000_000
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
    that was made so far, in one go, while all traffic waits, and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Steps:
    """The collector looks at what is new alone, a little at a time, as long as any thread makes many objects beside the
    traffic. Without it, it would look at all of them at once when it may run again; as it usually runs, again and again
    at what is older too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual = (0, 0, 0)

    @property
    def busy(self) -> bool:
        """Some thread is at it."""
        with self._lock:
            return bool(self._inside)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = gc.get_threshold()
                gc.set_threshold(_YOUNG, _NEVER, _NEVER)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                gc.set_threshold(*self._usual)


_STEPS: Final = _Steps()


async def beside_traffic(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """What `work` makes of the arguments, in a thread; the collector sees no more than 1000 new objects at a time
    meanwhile. Raises what `work` raises.

    A cancelled caller does not wait, and `work` goes on: it may change nothing. See `is_computing`.
    """

    def work_in_steps() -> _Result:
        with _STEPS:
            return work(*arguments)

    return await trio.to_thread.run_sync(work_in_steps, abandon_on_cancel=True)


def is_computing() -> bool:
    """Whether a thread of `beside_traffic` is at work. If the process is to end, it has to end at once then: Python's
    orderly end unwinds such a thread, which not all compiled code survives (seen: SIGABRT)."""
    return _STEPS.busy


def pauses() -> Pause:
    """A function for work beside the traffic to call again and again: after half a millisecond it sleeps for a moment.

    A thread that computes keeps its core until a tick of the kernel's clock takes it away, every 4 ms on many machines.
    A broker's or client's thread that has been woken on that core waits as long, even if other cores are idle.
    """
    busy_until_s = time.monotonic() + _BUSY_S

    def pause() -> None:
        nonlocal busy_until_s
        if time.monotonic() >= busy_until_s:
            select.select((), (), (), _MOMENT_S)  # not time.sleep: libfaketime makes a day of it when its clock is set
            busy_until_s = time.monotonic() + _BUSY_S

    return pause


def let_go(last: list[Any], parts: list[Any]) -> None:
    """Let go of a large object in steps: freed at once, its many parts hold up all threads until the last is gone.

    `last` has the last reference to it, `parts` what it consists of. Both are empty afterwards; what others use stays.
    """
    last.clear()
    while parts:
        del parts[-_STEP:]
    give_back()
