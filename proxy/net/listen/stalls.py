"""Stalled peers: how long a peer has kept us waiting, and whether that is too long. Arithmetic only, as in a token
bucket: each of `listen.sweeper`'s samples adds the time since the last one if we waited for a peer in the middle of
something (half a request, half a response, responses unread), and subtracts `bytes moved / min_bytes_per_s`. So a large
request over a slow line gets the time it needs, one byte a second does not keep a connection open indefinitely, and
nothing is earned in advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from proxy.core.errors import CloseReason
from proxy.net.settings import StallLimits

LOOKS_PER_TIMEOUT: Final = 10
"""A stall is found at most a tenth of its timeout late."""


@dataclass(slots=True)
class ProgressTimer:
    """One transfer that a peer has begun, and how long it has kept us waiting, in seconds."""

    waited_s: float = 0.0
    _moved_bytes: int = 0

    def look(self, passed_s: float, moved_bytes: int, *, begun: bool, our_turn: bool, min_bytes_per_s: float) -> float:
        """`moved_bytes` is a running total; `our_turn` means that the peer is not what is being waited for. A total
        smaller than the last one is of a closed socket, which reports nothing any more (`kernel.tcp_info`)."""
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
    request_begun: bool
    client_bytes: int
    unread_requests: bool
    """The client has sent more than we have read, so we do not wait for it."""
    response_begun: bool
    broker_bytes: int
    unread_responses: bool
    unsent: bool
    """The client has not acknowledged everything that we have sent."""
    acked_bytes: int


@dataclass(slots=True)
class Stalls:
    """The stalls of one connection."""

    limits: StallLimits
    waited_s: float = 0.0
    _before_s: float = 0.0
    _writer: ProgressTimer = field(default_factory=ProgressTimer)
    _reader: ProgressTimer = field(default_factory=ProgressTimer)
    _broker: ProgressTimer = field(default_factory=ProgressTimer)

    def look(self, passed_s: float, seen: TrafficSample) -> CloseReason | None:
        """Why the connection has to end; None while no peer has stalled for too long."""
        limits, least = self.limits, self.limits.min_bytes_per_s
        if not seen.under_way and not seen.muted and not seen.owed:
            self._before_s += passed_s
            if self._before_s > limits.pre_auth_timeout_s:
                self.waited_s = self._before_s
                return CloseReason.PRE_AUTH_TIMEOUT
        our_turn_client, our_turn_broker = seen.unread_requests or seen.muted, seen.unread_responses or seen.unsent
        stalled = None
        for reason, timer, moved_bytes, begun, our_turn in (
            (CloseReason.SLOW_REQUEST, self._writer, seen.client_bytes, seen.request_begun, our_turn_client),
            (CloseReason.SLOW_READER, self._reader, seen.acked_bytes, seen.unsent, False),
            (CloseReason.SLOW_BROKER, self._broker, seen.broker_bytes, seen.response_begun, our_turn_broker),
        ):
            waited_s = timer.look(passed_s, moved_bytes, begun=begun, our_turn=our_turn, min_bytes_per_s=least)
            if stalled is None and waited_s > limits.stall_timeout_s:
                stalled, self.waited_s = reason, waited_s
        return stalled
