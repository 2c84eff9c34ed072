"""Python's garbage collector and the threads beside the event loop: what delays the traffic, and for how long."""

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
"""How long a computing thread keeps the GIL while another one wants it. Python's default is 5 ms, and a file of quotas
is read beside the traffic: each packet would wait that long meanwhile, and again after a system call that released the
GIL."""
_BUSY_S: Final = 0.0005
_MOMENT_S: Final = 0.00005
_STEP: Final = 200
_YOUNG: Final = 1000
_NEVER: Final = 1_000_000
_Result = TypeVar("_Result")


def share_fairly() -> None:
    """Let the event loop run soon while a thread computes."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def settle() -> None:
    """Freeze the objects that exist now: full collections need not visit them while traffic waits, and what the start
    has used and freed is returned to the system."""
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
    """Disable the garbage collector, for work that makes many objects and no cycles. Each run would visit all objects
    made so far, at once, while all traffic waits, and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Steps:
    """While any thread makes many objects beside the traffic, the collector runs on new objects alone, a few at a time.
    With the collector disabled, its next run would visit all of them at once; enabled as usual, it visits older ones
    again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual = (0, 0, 0)

    @property
    def busy(self) -> bool:
        """Some thread is working."""
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
    """Run `work` with the arguments in a thread and return its result; the garbage collector visits no more than 1000
    new objects at a time meanwhile. Raises what `work` raises.

    A cancelled caller does not wait, and `work` goes on: it must not change anything. See `is_computing`.
    """

    def work_in_steps() -> _Result:
        with _STEPS:
            return work(*arguments)

    return await trio.to_thread.run_sync(work_in_steps, abandon_on_cancel=True)


def is_computing() -> bool:
    """Whether a thread of `beside_traffic` is working. If the process has to end, it must exit at once then: Python's
    orderly exit unwinds such a thread, which not all compiled code survives (seen: SIGABRT)."""
    return _STEPS.busy


def pauses() -> Pause:
    """A function that work beside the traffic calls repeatedly: after half a millisecond it sleeps for a moment.

    A computing thread keeps its core until a tick of the kernel's clock, every 4 ms on many machines. A broker's or
    client's thread that was woken on that core waits as long, even if other cores are idle.
    """
    busy_until_s = time.monotonic() + _BUSY_S

    def pause() -> None:
        nonlocal busy_until_s
        if time.monotonic() >= busy_until_s:
            select.select((), (), (), _MOMENT_S)  # not time.sleep: libfaketime makes a day of it when its clock is set
            busy_until_s = time.monotonic() + _BUSY_S

    return pause


def release_in_steps(last: list[Any], parts: list[Any]) -> None:
    """Free a large object in steps: freed at once, its many parts block all threads until the last is gone.

    `last` has the last reference to it, `parts` what it consists of. Both are empty afterwards; parts with other
    references stay.
    """
    last.clear()
    while parts:
        del parts[-_STEP:]
    give_back()
