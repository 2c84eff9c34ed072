"""Python's garbage collector and the threads next to the event loop: what delays the traffic, and for how long."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio

SWITCH_INTERVAL_S: Final = 0.0001
"""How long a computing thread keeps the GIL while another one wants it: with Python's 5 ms each packet would wait that
long while a file of quotas is read."""
_YOUNG: Final = 1000
_NEVER: Final = 1_000_000
_Result = TypeVar("_Result")


def share_fairly() -> None:
    """Let the event loop run soon while a thread computes."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def settle() -> None:
    """Freeze the objects that exist now, for full collections to skip, and return what the start has freed to the
    system."""
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
    """Disable the garbage collector, for work that makes many objects and no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Steps:
    """While any thread makes many objects off the event loop, the collector runs on new objects alone, a few at a
    time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        """Threads at work."""
        self._usual = (0, 0, 0)

    def __enter__(self) -> None:
        with self._lock:
            if not self.inside:
                self._usual = gc.get_threshold()
                gc.set_threshold(_YOUNG, _NEVER, _NEVER)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1
            if not self.inside:
                gc.set_threshold(*self._usual)


_STEPS: Final = _Steps()


async def beside_traffic(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """The result of `work` in a thread, while the garbage collector visits no more than 1000 new objects at a time. A
    cancelled caller does not wait, and `work` goes on: it must not change anything. See `is_computing`."""

    def work_in_steps() -> _Result:
        with _STEPS:
            return work(*arguments)

    return await trio.to_thread.run_sync(work_in_steps, abandon_on_cancel=True)


def is_computing() -> bool:
    """Whether a thread of `beside_traffic` is working. If the process has to end, it must exit at once then: Python's
    orderly exit unwinds such a thread, which not all compiled code survives (seen: SIGABRT)."""
    return _STEPS.inside > 0
