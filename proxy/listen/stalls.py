"""Peers that keep us waiting: how long, and when it is too long. Arithmetic; `listen.sweeper` looks at connections.

A peer in the middle of something (half a request sent, half a response, responses unread) earns time by moving bytes,
as in a token bucket: each look adds the time since the last one if the peer was what we waited for, and takes away
`bytes moved / min_bytes_per_s`. So a large request over a slow line has all the time it needs, and one byte a second
does not keep a connection for ever. Nothing is earned in advance: a gigabyte read at once is no licence to stop then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.errors import CloseReason
from proxy.settings import StallLimits

LOOKS_PER_TIMEOUT: Final = 10
"""A stall is found at most a tenth of its timeout late."""


class ProgressTimer:
    """One thing that a peer has begun, and how long it has kept us waiting, in seconds."""

    __slots__ = ("_moved_bytes", "waited_s")

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._moved_bytes = 0

    def look(self, passed_s: float, moved_bytes: int, *, begun: bool, our_turn: bool, min_bytes_per_s: float) -> float:
        """`moved_bytes` is a running total; `our_turn` means that it is not the peer that something waits for.

        A total that is smaller than the last one is of a socket that is closed and tells nothing any more
        (`proxy.io.kernel.send_queue`): nothing has moved, and no time is made up for it.
        """
        moved, self._moved_bytes = max(0, moved_bytes - self._moved_bytes), moved_bytes
        if not begun:
            self.waited_s = 0.0
        elif not our_turn:
            self.waited_s += passed_s
        self.waited_s = max(0.0, self.waited_s - moved / min_bytes_per_s)
        return self.waited_s


@dataclass(frozen=True, slots=True)
class Sample:
    """What is seen of a connection at one moment. Byte counts are running totals."""

    under_way: bool
    """The client has logged in, or has sent a request where it need not."""
    muted: bool
    """We do not read the client: because of a throttle, or because earlier requests have to be dealt with first."""
    owed: bool
    """The client waits for an answer."""
    request_begun: bool
    client_bytes: int
    unread_requests: bool
    """The client has sent more than we have read: it is not what we wait for."""
    response_begun: bool
    broker_bytes: int
    unread_responses: bool
    """The broker has sent more than we have read."""
    unsent: bool
    """What we have sent to the client has not all been taken."""
    acked_bytes: int


class Stalls:
    """The waits of one connection."""

    __slots__ = ("_before_s", "_broker", "_limits", "_reader", "_writer", "waited_s")

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._before_s = 0.0
        self._writer = ProgressTimer()
        self._reader = ProgressTimer()
        self._broker = ProgressTimer()
        self.waited_s = 0.0
        """How long it was that has become too long."""

    def look(self, passed_s: float, seen: Sample) -> CloseReason | None:
        """Why the connection has to end; None while nobody has kept us waiting too long."""
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
