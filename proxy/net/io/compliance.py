"""Throttle compliance: whether a client waits for its throttle time. Some libraries ignore throttle times.

While a client is muted its socket is not read, but the kernel reports how much is queued there. What the client sent
before it learned of the throttle arrives in the first half of the mute; what arrives later was sent in spite of it.
"""

from __future__ import annotations

import math
from socket import socket
from typing import Final

from proxy.net.io.kernel import unread_bytes

MIN_PROBED_MS: Final = 200.0
"""Shorter mutes are not watched: their first half is too short for the throttle to reach the client."""
EARLY_S: Final = 0.005
"""A client that waits may be this early: its timers and ours are rounded to milliseconds, each its own way."""


class ThrottleComplianceProbe:
    """Watches one mute. `next_poll_s` is when to look next; `ignored` is the verdict once `poll` has returned True, if
    that was `in_time`."""

    __slots__ = ("_first", "_latest_s", "_sock", "_times", "ignored", "mute_ms", "next_poll_s")

    def __init__(self, sock: socket, begin_s: float, end_s: float) -> None:
        self._sock = sock
        self._first = 0
        self.ignored = False
        self.mute_ms = (end_s - begin_s) * 1000.0
        # Not at the end, so that a look which comes late on a busy machine still counts.
        self._times = [begin_s + (end_s - begin_s) * part for part in (0.5, 0.9)]
        self._latest_s = end_s - EARLY_S
        self.next_poll_s = self._times[0]

    def poll(self, now_s: float, read_bytes: int) -> bool:
        """Look if it is time; True once both looks have been made. `read_bytes` have been read on the connection."""
        if now_s < self.next_poll_s:
            return False
        here = read_bytes + unread_bytes(self._sock)
        if self.next_poll_s == self._times[0] and now_s < self._times[1]:
            self._first, self.next_poll_s = here, self._times[1]
            return False
        both = self.next_poll_s == self._times[1]  # otherwise the first look was missed, and nothing is known
        self.ignored, self.next_poll_s = here > self._first, math.inf
        return both

    def in_time(self, now_s: float) -> bool:
        """Whether `ignored` counts; `now_s` is read after the second look.

        The thread may have waited for a core before that look, or within it. After the end of the mute those clients
        send as well that have waited.
        """
        return now_s <= self._latest_s
