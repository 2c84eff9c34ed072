"""Scheduling policy of the event loop's thread: it preempts no other while it only waits for large responses.

A thread that the kernel wakes usually preempts another one. That is right for a request, since its client waits for the
answer, and for a response's head. The rest of a large response, though, arrives in many parts while the broker is still
writing it: waking up for each of them preempts the broker each time, for 100 KB or less, and both pay for the context
switch. Under SCHED_BATCH (sched(7)) a woken thread preempts none. It runs at once if a core is free, and otherwise when
the running thread blocks or its time slice ends, a few ms at most: then there is more to move at once.

While any connection carries small requests, the ordinary policy applies.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger("kquota.sched_policy")

QUIET_S: Final = 0.1
"""A connection that awaited the rest of a large response this recently counts as a bulk one. An event on any other
makes the thread use the ordinary policy, for this long."""


def set_policy(policy: int) -> None:
    """Set the calling thread's policy, without changing its nice value. Raises OSError."""
    os.sched_setscheduler(0, policy, os.sched_param(0))


def policy_now() -> int:
    """The calling thread's policy. Raises OSError."""
    return os.sched_getscheduler(0)


class SchedPolicy:
    """Chooses the thread's policy before the event loop waits. One per event loop, made and used in its thread.

    If the thread does not have the ordinary policy to begin with, it was chosen deliberately, and it stays.
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
        """Whether the thread has the policy that preempts none."""
        self.halfway = 0
        """Sockets with the rest of a large response still to be received or sent."""
        self.quick_s = float("-inf")
        """When the last event on any other socket came (the event loop's clock, as all times here)."""

    def before_wait(self, now_s: float) -> None:
        """The loop is about to wait."""
        wanted = self.halfway > 0 and now_s - self.quick_s > QUIET_S
        if wanted != self.gives_way:
            self.give_way(wanted)

    def give_way(self, wanted: bool) -> None:
        """Preempt no other thread when woken from now on, or go back to the ordinary policy.

        What the kernel refuses is not tried again.
        """
        if not self._possible:
            return
        try:
            self._set_policy(os.SCHED_BATCH if wanted else os.SCHED_OTHER)
        except OSError as error:
            self._possible = False
            log.info("large responses may preempt other threads: cannot set the scheduling policy", error=str(error))
        else:
            self.gives_way = wanted
