"""Which cores a process may use: one for the proxy alone, the others for the rest, while something is measured.

Linux keeps this by thread: a new thread or process has what the thread had that made it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """Who may use which."""

    ends: frozenset[int]
    """Broker and clients: all but the last."""
    proxy: frozenset[int]
    """The last."""

    @classmethod
    def split(cls) -> Cores:
        """The cores that this process may use.

        Raises:
            ValueError: there is only one.
        """
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise ValueError("a core for the proxy alone needs two, there is one")
        return cls(frozenset(cores[:-1]), frozenset(cores[-1:]))


def missing() -> str | None:
    """Why the proxy cannot have a core of its own here; None if it can."""
    try:
        cores = Cores.split()
        # Some containers forbid the call: better known before than in the middle of a run.
        os.sched_setaffinity(0, cores.ends | cores.proxy)
    except (OSError, ValueError) as error:
        return f"the proxy cannot have a core of its own: {error}"
    return None


@contextmanager
def apart(ends: Sequence[int], proxy: int | None) -> Iterator[Cores]:
    """Keep the processes `ends` off the last core and the process `proxy` on it; afterwards all may use all again.

    Without a proxy the ends have no more cores than with one, so that the two can be compared.

    Raises:
        ValueError: there is only one core.
        OSError: that is not allowed here.
        ProcessLookupError: one of them has ended.
    """
    cores = Cores.split()
    processes = [*ends, *(() if proxy is None else (proxy,))]
    try:
        for pid in ends:
            pin(pid, cores.ends)
        if proxy is not None:
            pin(proxy, cores.proxy)
        yield cores
    finally:
        for pid in processes:
            with suppress(ProcessLookupError):
                pin(pid, cores.ends | cores.proxy)


def pin(pid: int, cores: Collection[int]) -> None:
    """Let all threads of a process, and what they start from now on, use only these cores.

    Raises:
        ProcessLookupError: it has ended.
    """
    done: set[int] = set()
    # A thread that is not in the list when it is read was started by one that is: again, until there is no new one.
    while fresh := threads(pid) - done:
        for thread in fresh:
            with suppress(ProcessLookupError):  # threads end
                os.sched_setaffinity(thread, cores)
        done |= fresh


def threads(pid: int) -> set[int]:
    """Ids of a process' threads.

    Raises:
        ProcessLookupError: it has ended.
    """
    try:
        return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
