"""One connection pair from beginning to end: the tasks that wait where `proxy.net.io.pair` must not block.

The client pump carries requests, the broker pump responses. When the other side's socket is full, a pump reads no more
until what it has read is sent, so that backpressure reaches the faster side.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from socket import SHUT_RD, socket

import trio

from proxy.core.errors import CloseReason, SessionError, UpstreamError, first_error
from proxy.core.session.session import Session
from proxy.core.telemetry.observer import ConnectionInfo
from proxy.net.io.pair import ConnectionIO, Shared, StopReason
from proxy.net.io.kernel import round_trip_ms
from proxy.net.io.reactor import take
from proxy.net.io.rounds import Watch
from proxy.net.io.sockets import close, endpoint_of


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
        user_source: str = "anonymous",
    ) -> None:
        """`dial()` connects to the broker and returns a non-blocking socket, or raises UpstreamError."""
        self.session = session
        self._client = client
        self._broker: socket | None = None
        self._shared = shared
        self._io: ConnectionIO | None = None
        self._progress = trio.Event()
        """Set, and then replaced, when requests have been answered or an interceptor has decided, if a task waits for
        it."""
        self._active_s = trio.current_time()
        self.peer = peer
        self.broker_name = broker_name
        self._dial = dial
        self._user_source = user_source
        self._watches: list[Watch] = []
        self._scope = trio.CancelScope()
        self.ended = False
        self._reason: CloseReason | None = None

    # ---- called from outside ----------------------------------------------------------------------------------------

    def identify(self, user: str, source: str) -> None:
        """The client has proved to be `user`, according to `source`."""
        self.session.identify(user)
        self._user_source = source

    def drain(self) -> None:
        """Read no further request; close once everything in flight has been answered."""
        self.session.state.draining = True
        io = self._io
        if io is not None and (io.compliance is not None or io.is_held):
            io.client_watch.run()
        elif self.session.client_at_boundary:
            with suppress(OSError):  # wakes the pump if it waits for a request; a half-read one is still completed
                self._client.shutdown(SHUT_RD)

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
        return self._active_s if self._io is None else self._io.last_activity_s

    def info(self) -> ConnectionInfo:
        """What /connections shows."""
        session, now_s = self.session, trio.current_time()
        now_ms, place = now_s * 1000.0, session.state.throttle.place
        return ConnectionInfo(
            peer=self.peer,
            broker=self.broker_name,
            user=session.user,
            client_ids=tuple(session.client_ids),
            software=session.software,
            in_flight=len(session.exchange),
            # While a request is held, `mute_until_ms` is when to ask again.
            muted_for_ms=0.0 if place is not None else max(0.0, session.mute_until_ms - now_ms),
            client_bytes=session.client_bytes_total,
            broker_bytes=session.broker_bytes_total,
            idle_s=now_s - self.last_activity_s,
            user_source=self._user_source,
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
            self.session.close(trio.current_time() * 1000.0)
            if self._io is not None:
                self._io.close()
            for watch in self._watches:
                watch.close()
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
        reason = CloseReason.CLIENT_CLOSED
        shared, client = self._shared, endpoint_of(self._client)
        io = ConnectionIO(client, self._watch(self._client), self.session, shared, trio.current_time())
        io.on_progress = self._wake
        self.session.when_decided(io._progress)
        self._io = io
        async with trio.open_nursery() as nursery:
            reason = await self._client_pump(io, nursery)
            # No more requests. Answers still owed are delivered before the broker sees the end of input, as it closes
            # at once then, answers owed or not. A client that ended inside a request is not waited for: its broken
            # request will never be answered.
            while self._owes_answers(io) and self._reason is None:
                await self._answered(io)
            nursery.cancel_scope.cancel()
        return self._reason or reason

    def _watch(self, sock: socket) -> Watch:
        try:
            watch = self._shared.reactor.watch(sock)
        except OSError as error:
            text = f"cannot watch one more socket: {error} (see fs.epoll.max_user_watches)"
            raise SessionError(CloseReason.INTERNAL_ERROR, text) from error
        self._watches.append(watch)
        return watch

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def _answered(self, io: ConnectionIO) -> None:
        """Wait until a response has been passed on, or an interceptor has decided."""
        io.progress_wanted = True
        await self._progress.wait()

    def _owes_answers(self, io: ConnectionIO) -> bool:
        if self._broker is None or not self.session.client_at_boundary:
            return False
        return not self.session.quiet or bool(io.to_client)

    async def _client_pump(self, io: ConnectionIO, nursery: trio.Nursery) -> CloseReason:
        while True:
            match await take(io.client_watch, io.on_client_readable):
                case StopReason.WAITS:
                    if self.session.must_wait:
                        await self._answered(io)
                case StopReason.CONNECT:
                    await self._connect(io, nursery)
                case StopReason.ENDED:
                    return CloseReason.DRAINED if self.session.state.draining else CloseReason.CLIENT_CLOSED

    async def _connect(self, io: ConnectionIO, nursery: trio.Nursery) -> None:
        try:
            broker = self._broker = await self._dial()
        except UpstreamError as error:
            raise SessionError(
                CloseReason.UPSTREAM_UNREACHABLE, f"cannot connect to broker {self.broker_name}: {error}"
            ) from error
        self.session.round_trip_ms = round_trip_ms(broker)
        io.connected(endpoint_of(broker), self._watch(broker))
        nursery.start_soon(self._broker_pump, io)

    async def _broker_pump(self, io: ConnectionIO) -> None:
        assert io.broker_watch is not None
        await take(io.broker_watch, io.on_broker_readable)
        self.session.broker_ended()
        self._reason = self._reason or CloseReason.BROKER_CLOSED
        self._scope.cancel()
