"""One connection pair from beginning to end: the task that waits where `proxy.net.io.pair` must not block."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from socket import SHUT_RD, SHUT_WR, socket

import trio

from proxy.core.auth.sasl import Login
from proxy.core.errors import CloseReason, SessionError, UpstreamError, first_error
from proxy.core.session.session import Session
from proxy.core.telemetry.observer import ConnectionInfo
from proxy.net.io import calls
from proxy.net.io.endpoint import Endpoint
from proxy.net.io.kernel import tcp_info
from proxy.net.io.pair import ConnectionPair, Shared
from proxy.net.tls.channel import TlsSocket


class Connection:
    """A client's connection and its broker connection, which is made when the first request arrives."""

    def __init__(
        self,
        client: socket,
        peer: str,
        broker_name: str,
        dial: Callable[[], Awaitable[socket]],
        session: Session,
        shared: Shared,
        identify: Callable[[Connection, Login], str | None],
        user_source: str,
    ) -> None:
        """`dial()` connects to the broker and returns a non-blocking socket, or raises UpstreamError. `identify` finds
        the user of a login (see `ConnectionPair`)."""
        self.session = session
        self._client = client
        self._broker: socket | None = None
        self._shared = shared
        self._pair: ConnectionPair | None = None
        self._changed = trio.lowlevel.ParkingLot()
        """Unparked when the pair wants a broker or has ended."""
        self._draining = False
        self._identify = identify
        self._active_s = trio.current_time()
        self.peer = peer
        self.broker_name = broker_name
        self._dial = dial
        self.user_source = user_source
        self.expires_s = math.inf
        """When it is old (`connections_max_age_s`)."""
        self._scope = trio.CancelScope()
        self.ended = False
        self._reason: CloseReason | None = None

    # ---- called from outside ----------------------------------------------------------------------------------------

    def identified(self, user: str) -> None:
        """The user of a login, for which `identify` gave None, is known."""
        if self._pair is not None:
            self._pair.identified(user)

    def drain(self) -> None:
        """Read no further request; close once everything in flight has been answered."""
        self._draining = True
        if self._pair is not None:
            self._pair.drain()
        else:
            with suppress(OSError):  # wakes what waits for the first byte
                self._client.shutdown(SHUT_RD)

    def retire(self, late: bool) -> None:
        """End between two requests, as soon as nothing is in flight, muted or queued; `late`: as `drain` does. Repeat
        it for a client that sends nothing more."""
        if self._pair is not None:
            self._pair.retire(late)

    def abort(self, reason: CloseReason) -> None:
        """End the connection now."""
        self._reason = self._reason or reason
        self._scope.cancel()

    @property
    def sockets(self) -> tuple[socket, socket | None]:
        """The client's and the broker's, for inspection only."""
        return self._client, self._broker

    @property
    def last_activity_s(self) -> float:
        """When bytes were moved last, in either direction."""
        return self._active_s if self._pair is None else self._pair.active_s

    def info(self) -> ConnectionInfo:
        """What /connections shows."""
        session, now_s = self.session, trio.current_time()
        now_ms, place = now_s * 1000.0, session.throttle.place
        return ConnectionInfo(
            peer=self.peer,
            broker=self.broker_name,
            user=session.user,
            client_ids=tuple(session.client_ids),
            software=session.requests.software,
            in_flight=session.exchange.count,
            # While a request is queued, `mute_until_ms` is when to ask again.
            muted_for_ms=0.0 if place is not None else max(0.0, session.mute_until_ms - now_ms),
            client_bytes=session.throttle.client_bytes,
            broker_bytes=session.responses.bytes_total,
            idle_s=now_s - self.last_activity_s,
            user_source=self.user_source,
            waiting_for=None if place is None else place.kind.value,
            waited_ms=0.0 if place is None else max(0.0, now_ms - place.since_ms),
            unmuted=session.describe(math.inf),
        )

    # ---- life cycle -------------------------------------------------------------------------------------------------

    async def run(self) -> CloseReason:
        """Serve until one side ends the connection; always closes both sockets. Never raises for a peer's behaviour."""
        reason = CloseReason.INTERNAL_ERROR
        try:
            with self._scope:
                reason = await self._serve()
            if self._scope.cancelled_caught:
                reason = self._reason or CloseReason.DRAIN_TIMEOUT
        except* SessionError as group:
            reason = self._failed(first_error(group))
        except* Exception:
            self._shared.close_log.failed(peer=self.peer, broker=self.broker_name)
        finally:
            self.ended = True
            if self._pair is None:
                self.session.close(trio.current_time() * 1000.0)
            else:
                self._pair.close(reason)
            close(self._client)
            if self._broker is not None:
                close(self._broker)
        return reason

    def _failed(self, error: SessionError) -> CloseReason:
        """Count and log why the connection ends.

        Not in :meth:`run`: its frame, which the error's traceback leads to, would hold the error, and both would be
        left to the garbage collector (seen with Python 3.13).
        """
        if error.kind is not None:
            self._shared.counters.parse_errors[error.kind] += 1
        self._shared.close_log.closed(
            str(error.reason), error.kind, error=str(error), peer=self.peer, broker=self.broker_name
        )
        return error.reason

    async def _serve(self) -> CloseReason:
        wake, identify = self._changed.unpark_all, partial(self._identify, self)
        self._pair = pair = ConnectionPair(endpoint_of(self._client), self.session, self._shared, wake, identify)
        try:
            if self._draining:
                pair.drain()
            if not pair.closed:
                pair.start()
            while not pair.closed:
                if pair.wants_broker:
                    pair.wants_broker = False
                    broker = await self._connect()
                    pair.connected(endpoint_of(broker), tcp_info(broker).round_trip_ms)
                else:
                    await self._changed.park()
        except OSError as error:
            text = f"cannot watch one more socket: {error} (see fs.epoll.max_user_watches)"
            raise SessionError(CloseReason.INTERNAL_ERROR, text) from error
        reason, pair.reason = pair.reason, None  # an error refers to frames that refer to the pair
        if isinstance(reason, CloseReason):
            return reason
        assert reason is not None
        try:
            raise reason
        finally:
            del reason

    async def _connect(self) -> socket:
        try:
            self._broker = await self._dial()
        except UpstreamError as error:
            raise SessionError(
                CloseReason.UPSTREAM_UNREACHABLE, f"cannot connect to broker {self.broker_name}: {error}"
            ) from error
        return self._broker


def close(sock: socket) -> None:
    """Say so to the other side and close, whatever state the connection is in."""
    trio.lowlevel.notify_closing(sock)
    with suppress(OSError):  # already reset by the peer
        sock.shutdown(SHUT_WR)
    sock.close()


def endpoint_of(sock: object) -> Endpoint:
    """The endpoint for this socket, plain or TLS."""
    if isinstance(sock, TlsSocket):
        sock.channel.sock = sock  # until it is closed
        return sock.channel
    return calls.PlainEndpoint(sock, splices=True)  # type: ignore[arg-type]
