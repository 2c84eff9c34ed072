"""A core for a test that looks at the time, whatever else the machine has to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PRIORITY: Final = os.sched_param(1)
"""The lowest of its class: the kernel's own threads stay ahead."""
ORDINARY: Final = os.sched_param(0)


@contextmanager
def precedence(*pids: int) -> Iterator[bool]:
    """This thread, all processes and threads that it starts, and the processes `pids` run before all others."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, PRIORITY)
    except PermissionError:
        yield False
        return
    try:
        for pid in pids:
            _set(pid, os.SCHED_RR, PRIORITY)
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, ORDINARY)
        for pid in pids:
            _set(pid, os.SCHED_OTHER, ORDINARY)


def _set(pid: int, policy: int, priority: os.sched_param) -> None:
    """All threads of a process, which may be ending."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(task.name), policy, priority)
