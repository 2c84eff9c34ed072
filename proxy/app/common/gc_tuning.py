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
_LOCK: Final = threading.Lock()
_AT_WORK: Final[list[tuple[int, int, int]]] = []
"""The usual thresholds, once for each thread at work."""
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
def in_steps() -> Iterator[None]:
    """For work that makes many objects: the garbage collector visits only new objects, at most 1000 at once."""
    with _LOCK:
        _AT_WORK.append(_AT_WORK[0] if _AT_WORK else gc.get_threshold())
        gc.set_threshold(_YOUNG, _NEVER, _NEVER)
    try:
        yield
    finally:
        with _LOCK:
            usual = _AT_WORK.pop()
            if not _AT_WORK:
                gc.set_threshold(*usual)


async def beside_traffic(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """The result of `work` in a thread, `in_steps`. A cancelled caller does not wait, and `work` goes on: it must not
    change anything. See `is_computing`."""
    return await trio.to_thread.run_sync(in_steps()(work), *arguments, abandon_on_cancel=True)


def is_computing() -> bool:
    """Whether a thread of `beside_traffic` is working. If the process has to end, it must exit at once then: Python's
    orderly exit unwinds such a thread, which not all compiled code survives (seen: SIGABRT)."""
    return bool(_AT_WORK)
