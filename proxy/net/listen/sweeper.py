"""One task that samples all connections periodically and ends those that are idle, abandoned, stalled or old. Deadlines
are checked here and nowhere else: no timer is set, cancelled or compared for a single request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Final

import trio

from proxy.core.errors import CloseReason
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io.connection import Connection
from proxy.net.io.kernel import tcp_info, unread_bytes
from proxy.net.listen.stalls import LOOKS_PER_TIMEOUT, Stalls, TrafficSample
from proxy.net.settings import ProxySettings

IDLE_CHECKS_PER_LIMIT: Final = 10
SHORTEST_CHECK_S: Final = 0.05
LONGEST_CHECK_S: Final = 5.0
"""Suppressed log lines about ended connections are summed up at least this often."""
MAX_CORKED_BYTES: Final = 65_536
"""The largest segment. Fewer unsent bytes may be corked until the broker has sent the rest of the response."""
PORTION: Final = 20
"""Connections sampled before others are served: with 200 the p99 of others doubled."""


@dataclass
class Sweeper:
    """Ends idle, abandoned and stalled connections."""

    settings: ProxySettings
    connections: Collection[Connection]
    close_log: CloseLogLimiter
    _stalls: dict[Connection, Stalls] = field(default_factory=dict)

    async def run(self) -> None:
        """Sweep periodically, until cancelled."""
        bounds, limits = self.settings.bounds, self.settings.stalls
        shortest_s = min(limits.pre_auth_timeout_s, limits.stall_timeout_s) / LOOKS_PER_TIMEOUT
        longest_s = min(bounds.connections_max_idle_s, bounds.drain_timeout_s, bounds.connections_max_age_s or inf)
        shortest_s = min(shortest_s, longest_s / IDLE_CHECKS_PER_LIMIT)
        pause_s = min(max(shortest_s, SHORTEST_CHECK_S), LONGEST_CHECK_S)
        before_s = trio.current_time()
        while True:
            await trio.sleep(pause_s)
            now_s = trio.current_time()
            await self._sweep(now_s, now_s - before_s)
            before_s = now_s
            self.close_log.look()

    async def _sweep(self, now_s: float, passed_s: float) -> None:
        # A process that was stopped or starved must not blame its peers for that time.
        passed_s = min(passed_s, 2 * LONGEST_CHECK_S)
        known, self._stalls = self._stalls, {}
        for number, connection in enumerate(list(self.connections), 1):
            if connection.ended:  # meanwhile: its sockets are gone
                continue
            stalls = self._stalls[connection] = known.get(connection) or Stalls(self.settings.stalls)
            reason = self._quiet(connection, now_s)
            if reason is not None:
                connection.abort(reason)
            elif (reason := stalls.look(passed_s, traffic_sample(connection, now_s))) is not None:
                connection.abort(reason)
                waited_s = round(stalls.waited_s, 1)
                self.close_log.closed(
                    str(reason), peer=connection.peer, broker=connection.broker_name, waited_s=waited_s
                )
            elif now_s >= connection.expires_s:
                connection.retire(now_s >= connection.expires_s + self.settings.bounds.drain_timeout_s)
            if number % PORTION == 0:
                await give_way()

    def _quiet(self, connection: Connection, now_s: float) -> CloseReason | None:
        """Idle connections, and abandoned ones whose broker still owes answers but is silent. Requests in flight may
        then take `drain_timeout_s`, as at shutdown."""
        still_s = now_s - connection.last_activity_s
        if still_s > self.settings.bounds.connections_max_idle_s:
            return CloseReason.IDLE
        # What a muted client has sent is read when the mute ends, or soon after.
        unmuted_s = now_s - connection.session.mute_until_ms / 1000.0
        if min(still_s, unmuted_s) <= self.settings.bounds.drain_timeout_s:
            return None
        client = tcp_info(connection.sockets[0])
        if client.was_reset:
            return CloseReason.CLIENT_RESET
        return CloseReason.BROKER_SILENT if client.peer_has_closed else None


give_way = trio.lowlevel.checkpoint
"""Lets other tasks run; connections may end meanwhile."""


def traffic_sample(connection: Connection, now_s: float) -> TrafficSample:
    """Which peer is being waited for, and how much has moved."""
    session = connection.session
    client, broker = connection.sockets
    request_begun, response_begun = not session.client_at_boundary, not session.responses.reader.at_boundary()
    sent = tcp_info(client)
    return TrafficSample(
        under_way=session.under_way,
        muted=session.state.blocked(now_s * 1000.0),
        owed=session.exchange.count > 0,
        request_begun=request_begun,
        client_bytes=session.throttle.client_bytes,
        unread_requests=request_begun and unread_bytes(client) > 0,
        response_begun=response_begun,
        broker_bytes=session.responses.bytes_total,
        unread_responses=response_begun and broker is not None and unread_bytes(broker) > 0,
        unsent=sent.unsent_bytes > (MAX_CORKED_BYTES if response_begun else 0),
        acked_bytes=sent.acked_bytes,
    )
