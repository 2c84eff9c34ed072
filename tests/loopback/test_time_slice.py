"""The event loop's thread asks for a short time slice, and for nothing else."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import trio

from proxy.io import sched_policy, time_slice
from tests.loopback.test_reactor import serving

Seen = TypeVar("Seen")
RELEASE = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in platform.release().split(".")[:2])
since_6_12 = pytest.mark.skipif(RELEASE < (6, 12), reason="older kernels have one slice for all threads")


def in_thread(look: Callable[[], Seen]) -> Seen:
    """What `look` returns in a thread of its own, whose scheduling nothing else depends on."""
    found: list[Seen] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


@since_6_12
def test_the_kernel_takes_it_and_keeps_it_through_a_change_of_policy() -> None:
    def look() -> tuple[bool, list[int], int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        taken = time_slice.shorten_slice()
        slices = [time_slice.slice_ns()]
        for policy in (os.SCHED_BATCH, os.SCHED_OTHER):
            sched_policy.set_policy(policy)
            slices.append(time_slice.slice_ns())
        return taken, slices, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_thread(look) == (True, [100_000] * 3, 3)


@since_6_12
def test_the_event_loop_asks_when_it_starts() -> None:
    def look() -> int:
        async def served() -> int:
            async with trio.open_nursery() as nursery:
                with serving(nursery, nested=True):
                    return time_slice.slice_ns()
            raise AssertionError

        return trio.run(served)

    assert in_thread(look) == time_slice.SLICE_NS


def test_a_policy_that_was_chosen_stays_with_its_slice() -> None:
    def look() -> tuple[bool, int, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        before = time_slice.slice_ns()
        return time_slice.shorten_slice(), os.sched_getscheduler(0), time_slice.slice_ns() - before

    assert in_thread(look) == (False, os.SCHED_BATCH, 0)


def test_a_kernel_that_refuses_and_an_unknown_architecture_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, *arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(time_slice, "_call", refuse)
    assert not in_thread(time_slice.shorten_slice)
    monkeypatch.undo()
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    assert not in_thread(time_slice.shorten_slice)
