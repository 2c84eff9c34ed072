"""Stalled peers: how long a peer has kept us waiting, and whether that is too long. Arithmetic only.

`listen.sweeper` samples the connections. A peer in the middle of something (half a request sent, half a response,
responses unread) earns time by moving bytes, as in a token bucket: each sample adds the time since the last one if we
waited for the peer, and subtracts `bytes moved / min_bytes_per_s`. So a large request over a slow line gets all the
time it needs, and one byte a second does not keep a connection open indefinitely. Nothing is earned in advance: after a
gigabyte read at once a peer may still not stall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.core.errors import CloseReason
from proxy.net.settings import StallLimits

LOOKS_PER_TIMEOUT: Final = 10
"""A stall is found at most a tenth of its timeout late."""


class ProgressTimer:
    """One transfer that a peer has begun, and how long it has kept us waiting, in seconds."""

    __slots__ = ("_moved_bytes", "waited_s")

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._moved_bytes = 0

    def look(self, passed_s: float, moved_bytes: int, *, begun: bool, our_turn: bool, min_bytes_per_s: float) -> float:
        """`moved_bytes` is a running total; `our_turn` means that the peer is not what is being waited for.

        A total smaller than the last one is of a closed socket, which reports nothing any more
        (`proxy.net.io.kernel.send_queue`): nothing has moved, and no time is subtracted.
        """
        moved, self._moved_bytes = max(0, moved_bytes - self._moved_bytes), moved_bytes
        if not begun:
            self.waited_s = 0.0
        elif not our_turn:
            self.waited_s += passed_s
        self.waited_s = max(0.0, self.waited_s - moved / min_bytes_per_s)
        return self.waited_s


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """A connection as seen at one moment. Byte counts are running totals."""

    under_way: bool
    """The client has logged in, or has sent a request where no login is needed."""
    muted: bool
    """We do not read the client: it is throttled, or earlier requests have to be processed first."""
    owed: bool
    """The client waits for an answer."""
    request_begun: bool
    client_bytes: int
    unread_requests: bool
    """The client has sent more than we have read, so we do not wait for it."""
    response_begun: bool
    broker_bytes: int
    unread_responses: bool
    """The broker has sent more than we have read."""
    unsent: bool
    """The client has not acknowledged everything that we have sent."""
    acked_bytes: int


class Stalls:
    """The stalls of one connection."""

    __slots__ = ("_before_s", "_broker", "_limits", "_reader", "_writer", "waited_s")

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._before_s = 0.0
        self._writer = ProgressTimer()
        self._reader = ProgressTimer()
        self._broker = ProgressTimer()
        self.waited_s = 0.0
        """The wait that was too long."""

    def look(self, passed_s: float, seen: TrafficSample) -> CloseReason | None:
        """Why the connection has to end; None while no peer has stalled for too long."""
        limits = self._limits
        least = limits.min_bytes_per_s
        if not seen.under_way and not seen.muted and not seen.owed:
            self._before_s += passed_s
            if self._before_s > limits.pre_auth_timeout_s:
                self.waited_s = self._before_s
                return CloseReason.PRE_AUTH_TIMEOUT
        waits = (
            (
                CloseReason.SLOW_REQUEST,
                self._writer.look(
                    passed_s,
                    seen.client_bytes,
                    begun=seen.request_begun,
                    our_turn=seen.unread_requests or seen.muted,
                    min_bytes_per_s=least,
                ),
            ),
            (
                CloseReason.SLOW_READER,
                self._reader.look(passed_s, seen.acked_bytes, begun=seen.unsent, our_turn=False, min_bytes_per_s=least),
            ),
            (
                CloseReason.SLOW_BROKER,
                self._broker.look(
                    passed_s,
                    seen.broker_bytes,
                    begun=seen.response_begun,
                    our_turn=seen.unread_responses or seen.unsent,
                    min_bytes_per_s=least,
                ),
            ),
        )
        for reason, waited_s in waits:
            if waited_s > limits.stall_timeout_s:
                self.waited_s = waited_s
                return reason
        return None
