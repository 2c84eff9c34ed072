"""One task that samples all connections periodically and ends those that are idle, abandoned, stalled or old.

Deadlines are checked here and nowhere else: no timer is set, cancelled or compared for a single request.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

import trio

from proxy.core.errors import CloseReason
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io.connection import Connection
from proxy.net.io.kernel import peer_has_closed, send_queue, unread_bytes, was_reset
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


class Sweeper:
    """Ends idle, abandoned and stalled connections."""

    def __init__(
        self, settings: ProxySettings, connections: Collection[Connection], close_log: CloseLogLimiter
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._close_log = close_log
        self._stalls: dict[Connection, Stalls] = {}

    async def run(self) -> None:
        """Sweep periodically, until cancelled."""
        settings, limits = self._settings, self._settings.stalls
        shortest_s = min(limits.pre_auth_timeout_s, limits.stall_timeout_s) / LOOKS_PER_TIMEOUT
        longest_s = min(
            settings.connections_max_idle_s, settings.drain_timeout_s, settings.connections_max_age_s or inf
        )
        shortest_s = min(shortest_s, longest_s / IDLE_CHECKS_PER_LIMIT)
        pause_s = min(max(shortest_s, SHORTEST_CHECK_S), LONGEST_CHECK_S)
        before_s = trio.current_time()
        while True:
            await trio.sleep(pause_s)
            now_s = trio.current_time()
            await self._sweep(now_s, now_s - before_s)
            before_s = now_s
            self._close_log.look(now_s)

    async def _sweep(self, now_s: float, passed_s: float) -> None:
        # A process that was stopped or starved must not blame its peers for that time.
        passed_s = min(passed_s, 2 * LONGEST_CHECK_S)
        known, self._stalls = self._stalls, {}
        for number, connection in enumerate(list(self._connections), 1):
            if connection.ended:  # meanwhile: its sockets are gone
                continue
            stalls = self._stalls[connection] = known.get(connection) or Stalls(self._settings.stalls)
            reason = self._quiet(connection, now_s)
            if reason is not None:
                connection.abort(reason)
            elif (reason := stalls.look(passed_s, traffic_sample(connection, now_s))) is not None:
                connection.abort(reason)
                self._close_log.closed(
                    str(reason),
                    peer=connection.peer,
                    broker=connection.broker_name,
                    waited_s=round(stalls.waited_s, 1),
                )
            elif now_s >= connection.expires_s:
                connection.retire(now_s >= connection.expires_s + self._settings.drain_timeout_s)
            if number % PORTION == 0:
                await give_way()

    def _quiet(self, connection: Connection, now_s: float) -> CloseReason | None:
        """Idle connections, and abandoned ones whose broker still owes answers but is silent. Requests in flight may
        then take `drain_timeout_s`, as at shutdown."""
        still_s = now_s - connection.last_activity_s
        if still_s > self._settings.connections_max_idle_s:
            return CloseReason.IDLE
        # What a muted client has sent is read when the mute ends, or soon after.
        unmuted_s = now_s - connection.session.mute_until_ms / 1000.0
        return abandoned(connection) if min(still_s, unmuted_s) > self._settings.drain_timeout_s else None


give_way = trio.lowlevel.checkpoint
"""Lets other tasks run; connections may end meanwhile."""


def abandoned(connection: Connection) -> CloseReason | None:
    """Why a connection on which nothing has moved for long need not be kept: its client has closed or reset it.

    None while it may go on.
    """
    client, _ = connection.sockets
    if was_reset(client):
        return CloseReason.CLIENT_RESET
    return CloseReason.BROKER_SILENT if peer_has_closed(client) else None


def traffic_sample(connection: Connection, now_s: float) -> TrafficSample:
    """Which peer is being waited for, and how much has moved."""
    session = connection.session
    client, broker = connection.sockets
    request_begun, response_begun = not session.client_at_boundary, session.response_begun
    unsent_bytes, acked_bytes = send_queue(client)
    return TrafficSample(
        under_way=session.under_way,
        muted=session.blocked(now_s * 1000.0),
        owed=session.exchange.count > 0,
        request_begun=request_begun,
        client_bytes=session.client_bytes_total,
        unread_requests=request_begun and unread_bytes(client) > 0,
        response_begun=response_begun,
        broker_bytes=session.broker_bytes_total,
        unread_responses=response_begun and broker is not None and unread_bytes(broker) > 0,
        unsent=unsent_bytes > (MAX_CORKED_BYTES if response_begun else 0),
        acked_bytes=acked_bytes,
    )
