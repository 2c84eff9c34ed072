"""Which accepted connections are served: the limits of connections at the listeners (KIP-612, ADR 0011). One over a
creation rate is muted as in a broker: left open but unserved until its delay is over, and then closed, so that its
client cannot reconnect at once. Few are muted at a time, to leave descriptors for others."""

from __future__ import annotations

import heapq
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from socket import SHUT_WR, socket
from typing import Final

import structlog
import trio

from proxy.core.errors import CloseReason, SessionError
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import LogLimiter
from proxy.net.listen.spare_fd import descriptors
from quota.connections import Cause, ConnectionGate, Refusal, Ticket, canonical_address

log = structlog.get_logger("kquota.admission")

MAX_MUTE_S: Final = 30.0
"""Windows can be configured to be a day long; no client waits longer than this (request.timeout.ms) anyway."""
MUTED_SHARE: Final = 4
"""At most a quarter of the process's file descriptors are used for muted connections, whatever is configured."""
HOUSEKEEPING_S: Final = 1.0
FORGET_EACH_TIME: Final = 2000

REASONS: Final = {
    Cause.IP_RATE: CloseReason.IP_CONNECTION_RATE,
    Cause.IP_CAP: CloseReason.IP_MAX_CONNECTIONS,
    Cause.USER_RATE: CloseReason.USER_CONNECTION_RATE,
    Cause.USER_CAP: CloseReason.USER_MAX_CONNECTIONS,
}


@dataclass(order=True, slots=True)
class _Muted:
    """A refused connection that is still open."""

    until_s: float
    client: socket = field(compare=False)
    reason: CloseReason = field(compare=False)


class ConnectionAdmission:
    """Asks the gate about each accepted connection, and disposes of those that it refuses."""

    def __init__(self, gate: ConnectionGate, counters: Counters, max_muted: int) -> None:
        self._gate = gate
        self._counters = counters
        self._max_muted = min(max_muted, descriptors() // MUTED_SHARE)
        self._muted: list[_Muted] = []
        self._changed = trio.lowlevel.ParkingLot()
        self._log_limiter = LogLimiter(log.warning, "more connections refused")

    def admit(self, client: socket, host: str, user: str | None) -> Ticket | None:
        """The ticket of a connection that may be served, for :meth:`leave`. None: it is refused, and this object owns
        its socket. `user` is None while it is not known; see :meth:`ConnectionGate.identify`."""
        now_s = trio.current_time()
        decision = self._gate.admit(canonical_address(host), user, now_s * 1000.0)
        self._counters.connections.opened += 1
        if isinstance(decision, Ticket):
            return decision
        reason = REASONS[decision.cause]
        muted = decision.delay_ms > 0 and len(self._muted) < self._max_muted
        self._log(decision, muted)
        if muted:
            until_s = now_s + min(decision.delay_ms / 1000.0, MAX_MUTE_S)
            heapq.heappush(self._muted, _Muted(until_s, client, reason))
            self._counters.connections.held = len(self._muted)
            self._changed.unpark_all()
        else:
            self._counters.connections.not_held += decision.delay_ms > 0
            self._close(client, reason)
        return None

    def identify(self, ticket: Ticket, user: str) -> None:
        """The user of a served connection became known. Raises SessionError if the user's limits refuse it."""
        now_s = trio.current_time()
        refusal = self._gate.identify(ticket, user, now_s * 1000.0)
        if refusal is not None:
            self._log(refusal, muted=False)
            raise SessionError(REASONS[refusal.cause], f"a connection limit of user {user} refuses this connection")

    def leave(self, ticket: Ticket) -> None:
        """A served connection has ended."""
        self._gate.leave(ticket)

    def close_muted(self) -> bool:
        """Close all muted connections now: their descriptors are needed, or the sidecar ends. Whether any was muted."""
        some = bool(self._muted)
        self._close_until(inf)
        return some

    async def run(self) -> None:
        """Close muted connections in time and forget idle counters, until cancelled; then close the rest."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_house)
                while True:
                    with trio.move_on_at(self._muted[0].until_s if self._muted else inf):
                        await self._changed.park()
                    self._close_until(trio.current_time())
        finally:
            self.close_muted()

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            self._gate.forget(trio.current_time() * 1000.0, FORGET_EACH_TIME)
            self._log_limiter.look()

    def _close_until(self, now_s: float) -> None:
        while self._muted and self._muted[0].until_s <= now_s:
            muted = heapq.heappop(self._muted)
            self._close(muted.client, muted.reason)
        self._counters.connections.held = len(self._muted)

    def _close(self, client: socket, reason: CloseReason) -> None:
        with suppress(OSError):  # reset by the peer meanwhile
            client.shutdown(SHUT_WR)
        client.close()
        self._counters.connections.closed[str(reason)] += 1

    def _log(self, refusal: Refusal, muted: bool) -> None:
        if self._log_limiter.allows(reason=str(refusal.cause), name=refusal.name):
            log.warning(
                "connection refused",
                reason=str(refusal.cause),
                name=refusal.name,
                limit=refusal.limit,
                observed=round(refusal.observed, 3),
                held_ms=refusal.delay_ms if muted else 0,
            )
