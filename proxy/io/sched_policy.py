"""Whom the event loop's thread may interrupt: nobody, while all that it waits for is the rest of large responses.

A thread that is woken by the kernel takes the core from whoever has it, as a rule. That is right for a request, which
somebody waits for, and for a response's head. The rest of a large response comes in many parts, though, while the
broker is still writing it: to be woken for each of them is to interrupt the broker each time, for 100 KB or less, and
both pay for the switch. Under SCHED_BATCH (sched(7)) a woken thread interrupts nobody. It runs when a core is free, at
once if one is, and else when whoever has it waits or its time is up, a few ms at most: then there is more to move at
once.

With small requests about, from whichever connection, everything is as usual.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger("kquota.sched_policy")

QUIET_S: Final = 0.1
"""A connection that had the rest of a large response coming this lately is one that moves much; for events of others
the thread is as quick as it can be, and stays so for as long."""


def set_policy(policy: int) -> None:
    """Of the calling thread, whose priority within it stays (its nice value). Raises OSError."""
    os.sched_setscheduler(0, policy, os.sched_param(0))


def policy_now() -> int:
    """The calling thread's. Raises OSError."""
    return os.sched_getscheduler(0)


class SchedPolicy:
    """What the event loop asks before it waits. One per event loop, made and used in its thread.

    Where the thread has not the ordinary policy to begin with, somebody has chosen another one, and it stays.
    """

    __slots__ = ("_possible", "_set_policy", "gives_way", "halfway", "quick_s")

    def __init__(
        self, set_policy: Callable[[int], None] = set_policy, policy_now: Callable[[], int] = policy_now
    ) -> None:
        self._set_policy = set_policy
        try:
            self._possible = policy_now() == os.SCHED_OTHER
        except OSError:
            self._possible = False
        self.gives_way = False
        """Whether the thread interrupts nobody when it is woken."""
        self.halfway = 0
        """Sockets of connections on which the rest of a large response is to come, or to find room."""
        self.quick_s = float("-inf")
        """When something came last that was not for one of those (the event loop's clock, as all times here)."""

    def before_wait(self, now_s: float) -> None:
        """The loop is about to wait for whatever comes next."""
        wanted = self.halfway > 0 and now_s - self.quick_s > QUIET_S
        if wanted != self.gives_way:
            self.give_way(wanted)

    def give_way(self, wanted: bool) -> None:
        """Interrupt nobody from now on when woken, or be woken as others are.

        What the kernel refuses is not tried again.
        """
        if not self._possible:
            return
        try:
            self._set_policy(os.SCHED_BATCH if wanted else os.SCHED_OTHER)
        except OSError as error:
            self._possible = False
            log.info("large responses interrupt others: no other scheduling policy is allowed", error=str(error))
        else:
            self.gives_way = wanted
