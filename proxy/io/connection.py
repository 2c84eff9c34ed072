"""The two pumps of one connection pair: they wait for what its turns (`proxy.io.turns`) could not do at once.

The client pump is for requests, the broker pump for responses; each waits for the other side's socket to take what was
read before more is read, so that back-pressure goes through us to whoever is too fast.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from socket import SHUT_RD, socket
from typing import TYPE_CHECKING

import structlog
import trio

from proxy.errors import CloseReason, SessionError, UpstreamError, broker_failed, client_failed, first_error
from proxy.io.kernel import round_trip_ms
from proxy.io.reactor import Again, Watch
from proxy.io.sockets import close, send_now, send_rest
from proxy.io.turns import Pause, Shared, Turns
from proxy.lane import lane_for
from proxy.session.session import Session
from proxy.telemetry.observer import ConnectionInfo
from proxy.tls.channel import TlsSocket

if TYPE_CHECKING:
    from proxy._lane import Lane

log = structlog.get_logger("kquota.connection")


class Connection(Turns):
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
        super().__init__(client, session, shared)
        self.peer = peer
        self.broker_name = broker_name
        self._dial = dial
        self._user_source = user_source
        self._watches: list[Watch[Pause]] = []
        self._lane: Lane | None = None
        self._scope = trio.CancelScope()
        self.ended = False
        self._sink_released: trio.Event | None = None
        self._reason: CloseReason | None = None

    # ---- from outside -----------------------------------------------------------------------------------------------

    def identify(self, user: str, source: str) -> None:
        """The client has proved to be `user`, which `source` tells."""
        self.session.identify(user)
        self._user_source = source

    def drain(self) -> None:
        """Read no further request; close once everything in flight has been answered."""
        self._draining = True
        if self._patience is not None or self._is_held:
            self._client_watch.run()
        elif self.session.client_at_boundary:
            with suppress(OSError):  # wakes the pump if it waits for a request; a half-read one is still taken
                self._client.shutdown(SHUT_RD)

    def abort(self, reason: CloseReason) -> None:
        """End the connection now."""
        self._reason = self._reason or reason
        self._scope.cancel()

    @property
    def sockets(self) -> tuple[socket, socket | None]:
        """The client's and the broker's, to be asked about and nothing else."""
        return self._client, self._broker

    def info(self) -> ConnectionInfo:
        """What /connections shows."""
        session, now_s = self.session, trio.current_time()
        now_ms, held = now_s * 1000.0, session.exchange.held
        return ConnectionInfo(
            peer=self.peer,
            broker=self.broker_name,
            user=session.user,
            client_ids=tuple(session.client_ids),
            software=session.software,
            in_flight=len(session.inflight),
            # While it is held, `mute_until_ms` is when to ask again.
            muted_for_ms=0.0 if held is not None else max(0.0, session.mute_until_ms - now_ms),
            client_bytes=session.client_bytes_total,
            broker_bytes=session.broker_bytes_total,
            idle_s=now_s - self.last_activity_s,
            user_source=self._user_source,
            waiting_for=None if held is None else held.kind.value,
            waited_ms=0.0 if held is None else max(0.0, now_ms - held.since_ms),
        )

    # ---- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> CloseReason:
        """Serve until one side ends it; always closes both sockets. Never raises for what a peer did."""
        reason = CloseReason.INTERNAL_ERROR
        try:
            with self._scope:
                reason = await self._serve()
            if self._scope.cancelled_caught:
                reason = self._reason or CloseReason.DRAIN_TIMEOUT
        except* SessionError as group:
            error = first_error(group)
            reason = error.reason
            if error.kind is not None:
                self._shared.counters.parse_errors[error.kind] += 1
            self._shared.complaints.closed(
                str(reason), error.kind, error=str(error), peer=self.peer, broker=self.broker_name
            )
        except* Exception:
            log.exception("connection closed by a bug of ours", peer=self.peer, broker=self.broker_name)
        finally:
            self.ended = True
            self._unmute()
            self.session.close(trio.current_time() * 1000.0)
            self._splice_up.close()
            self._splice_down.close()
            for watch in self._watches:
                watch.close()
            if self._lane is not None:
                self._lane.close()
            close(self._client)
            if self._broker is not None:
                close(self._broker)
        return reason

    async def _serve(self) -> CloseReason:
        reason = CloseReason.CLIENT_CLOSED
        self._client_watch = self._watch(self._client)
        if not isinstance(self._client, TlsSocket) or self._client.channel is not None:
            self._lane = lane_for(self, self._client_watch)
        async with trio.open_nursery() as nursery:
            reason = await self._client_pump(nursery)
            # Its turns are over. Room in its socket is still told of, and responses may be what waits for that.
            self._client_watch.turn = self._go_on_with_responses
            # No more requests. What is still owed is delivered before the broker hears of the end: a broker that sees
            # the end of input closes at once, answers or not.
            # A client that ended inside a request gets no such patience: its broken request will never be answered.
            while self._owes_answers() and self._reason is None:
                await self._answered()
            # The end of the last response may still wait for room in the client's socket.
            await self._sink_free()
            nursery.cancel_scope.cancel()
        return self._reason or reason

    def _go_on_with_responses(self) -> None:
        for watch in self._watches[1:]:
            watch.run()

    def _watch(self, sock: socket) -> Watch[Pause]:
        try:
            watch: Watch[Pause] = self._shared.reactor.watch(sock)
        except OSError as error:
            text = f"cannot watch one more socket: {error} (see fs.epoll.max_user_watches)"
            raise SessionError(CloseReason.INTERNAL_ERROR, text) from error
        self._watches.append(watch)
        return watch

    async def _answered(self) -> None:
        """Wait until the broker pump has passed on some response, or a handler has decided."""
        self._progress_wanted = True
        await self._progress.wait()

    def _owes_answers(self) -> bool:
        return self._broker is not None and self.session.client_at_boundary and not self.session.quiet

    # ---- client -> broker -------------------------------------------------------------------------------------------

    async def _client_pump(self, nursery: trio.Nursery) -> CloseReason:
        watch = self._client_watch
        turn = self._client_turn if self._lane is None else self._lane.requests_turn()
        while True:
            match await watch.take(turn):
                case Pause.WAITS:
                    if self.session.must_wait:
                        await self._answered()
                case Pause.FULL:
                    data, self._to_broker = self._to_broker, b""
                    broker = self._broker or await self._connect(nursery)
                    await send_rest(broker, data, broker_failed)
                    data = b""  # nothing of what was said is held while we wait: a password least of all
                    inflight = self.session.inflight
                    if inflight and inflight[0].local_answer is not None:
                        await self._send_answers()
                case Pause.SPLICE_FULL:
                    assert self._broker is not None
                    await trio.lowlevel.wait_writable(self._broker)
                case Pause.ANSWERS:
                    await self._send_answers()
                case Pause.ENDED:
                    return CloseReason.DRAINED if self._draining else CloseReason.CLIENT_CLOSED

    async def _connect(self, nursery: trio.Nursery) -> socket:
        try:
            broker = self._broker = await self._dial()
        except UpstreamError as error:
            raise SessionError(
                CloseReason.UPSTREAM_UNREACHABLE, f"cannot connect to broker {self.broker_name}: {error}"
            ) from error
        if isinstance(broker, TlsSocket):
            self._splice_min_bytes = 0  # the kernel can move bytes between plain sockets only
        self.session.round_trip_ms = round_trip_ms(broker)
        nursery.start_soon(self._broker_pump, broker, self._watch(broker))
        return broker

    async def _send_answers(self) -> None:
        """Answers made here whose turn has come; otherwise the broker pump sends them after what is older."""
        while self._sink_taken:
            await self._sink_free()
        answers = self.session.ready_answers()
        left = send_now(self._client, answers, client_failed)
        if left is not None:
            self._sink_taken = True
            await send_rest(self._client, left, client_failed)
            self._release_sink()

    # ---- whose turn it is to write to the client --------------------------------------------------------------------

    def _release_sink(self) -> None:
        self._sink_taken = False
        if self._sink_released is not None:
            self._sink_released.set()
            self._sink_released = None

    async def _sink_free(self) -> None:
        """Wait until somebody has sent what the client's socket did not take at once."""
        if self._sink_taken:
            if self._sink_released is None:
                self._sink_released = trio.Event()
            await self._sink_released.wait()

    # ---- broker -> client -------------------------------------------------------------------------------------------

    async def _broker_pump(self, broker: socket, watch: Watch[Pause]) -> None:
        turn: Callable[[], Pause | Again | None] = partial(self._broker_turn, broker, watch)
        if self._lane is not None and (not isinstance(broker, TlsSocket) or broker.channel is not None):
            self._lane.connected(broker, watch)
            turn = self._lane.responses_turn()
        while True:
            match await watch.take(turn):
                case Pause.TAKEN:
                    await self._sink_free()
                case Pause.FULL:
                    data, self._to_client = self._to_client, b""
                    await send_rest(self._client, data, client_failed)
                    data = b""
                    self._release_sink()
                case Pause.SPLICE_FULL:
                    await trio.lowlevel.wait_writable(self._client)
                case _:
                    self.session.broker_ended()
                    self._reason = self._reason or CloseReason.BROKER_CLOSED
                    self._scope.cancel()
                    return
