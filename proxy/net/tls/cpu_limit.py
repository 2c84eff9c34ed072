"""A limit of CPU time for what nothing else interrupts: a regular expression that backtracks holds the GIL, but
Python's `re` lets signal handlers run as it goes, in the main thread alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

CHECK_S: Final = 0.001
"""Wall-clock time between two looks at the CPU time used: a process that is not scheduled is not at fault."""


class CpuLimitError(Exception):
    """The block took more CPU time than allowed."""


@contextmanager
def cpu_limit(limit_s: float) -> Iterator[None]:
    """Raise CpuLimitError inside the block once it has used `limit_s` of CPU time. In the main thread only. Uses
    SIGALRM and its timer, and leaves both as they were."""
    until_s = time.thread_time() + limit_s
    over = False

    def end() -> None:
        nonlocal over
        if not over:
            over = True
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def check(_number: int, _frame: FrameType | None) -> None:
        if not over and time.thread_time() >= until_s:
            end()  # first: the signal may come on the way into the block or out of it, where no `finally` follows
            raise CpuLimitError

    timer = signal.getitimer(signal.ITIMER_REAL)
    handler = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)
    try:
        yield
    finally:
        end()
