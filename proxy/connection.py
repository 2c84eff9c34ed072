"""The two pumps of one connection pair: the only code that reads and writes client and broker sockets.

The client pump reads requests, the broker pump responses; each waits for the other side's socket to take what it read
before it reads more, so that back-pressure goes through us to whoever is too fast. Both use one receive buffer that all
connections share: between two waits nothing is kept in it.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socket import MSG_MORE, SHUT_RD, socket
from typing import Final

import structlog
import trio

from proxy.channel import TlsSocket
from proxy.complaints import Complaints
from proxy.errors import CloseReason, SessionError, UpstreamError, broker_failed, client_failed, first_error
from proxy.framing import Buffer
from proxy.kernel import round_trip_ms, unread_bytes
from proxy.observer import ConnectionInfo, Counters
from proxy.patience import Patience
from proxy.reactor import AGAIN, Again, Reactor, Watch
from proxy.session import Session
from proxy.sockets import SHARE_S, close, next_read_bytes, send_now, send_rest
from proxy.splice import PipePool, SinkError, SourceError, Splice, Step

log = structlog.get_logger("kquota.connection")

TURNS_BEFORE_CHECKPOINT: Final = 8
"""Reads in a row without waiting before other connections get their turn."""


class _Pause(enum.Enum):
    """Why a turn ended: what the pump's task has to wait for before the next one."""

    WAITS = enum.auto()
    """Too many requests in flight, or a handler has asked something."""
    FULL = enum.auto()
    """The other side's socket is full; `_to_broker` or `_to_client` is the rest."""
    SPLICE_FULL = enum.auto()
    """The other side's socket is full; the rest is in the kernel's pipe."""
    ANSWERS = enum.auto()
    """An answer made here is due."""
    TAKEN = enum.auto()
    """The rest of an answer made here has to reach the client first."""
    ENDED = enum.auto()


_AFTER_SPLICE: Final = {Step.EMPTY: None, Step.FULL: _Pause.SPLICE_FULL, Step.ENDED: _Pause.ENDED}


@dataclass(slots=True)
class Shared:
    """What all connections of a sidecar have in common."""

    counters: Counters
    pipes: PipePool
    buffer: memoryview
    """Receive buffer; valid only until the next await."""
    splice_min_bytes: int
    reactor: Reactor
    """Tells when there is something to read."""
    complaints: Complaints


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
        self._client = client
        self.peer = peer
        self.broker_name = broker_name
        self._dial = dial
        self.session = session
        self._shared = shared
        self._clock = shared.reactor.clock
        self._user_source = user_source
        self._client_watch: Watch[_Pause]
        self._broker: socket | None = None
        self._watches: list[Watch[_Pause]] = []
        self._to_broker = b""
        self._to_client = b""
        self._answers: list[Buffer] = []
        self._splice_min_bytes = 0 if isinstance(client, TlsSocket) else shared.splice_min_bytes
        self._request_read_bytes = self._response_read_bytes = len(shared.buffer)
        self._splice_up = Splice(shared.pipes)
        self._splice_down = Splice(shared.pipes)
        self._scope = trio.CancelScope()
        self.ended = False
        self._sink_taken = False
        self._sink_released: trio.Event | None = None
        self._progress = trio.Event()
        """Set and replaced when requests have been answered, or a handler has decided, and somebody waits for that."""
        self._progress_wanted = False
        self._draining = False
        self._reason: CloseReason | None = None
        self._patience: Patience | None = None
        """Of a mute, while it is watched."""
        self.last_activity_s = trio.current_time()
        session.when_decided(self._wake_client_pump)

    # ---- from outside -----------------------------------------------------------------------------------------------

    def identify(self, user: str, source: str) -> None:
        """The client has proved to be `user`, which `source` tells."""
        self.session.identify(user)
        self._user_source = source

    def drain(self) -> None:
        """Read no further request; close once everything in flight has been answered."""
        self._draining = True
        if self._patience is not None:
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
        return ConnectionInfo(
            peer=self.peer,
            broker=self.broker_name,
            user=session.user,
            client_ids=tuple(session.client_ids),
            software=session.software,
            in_flight=len(session.inflight),
            muted_for_ms=max(0.0, session.mute_until_ms - now_s * 1000.0),
            client_bytes=session.client_bytes_total,
            broker_bytes=session.broker_bytes_total,
            idle_s=now_s - self.last_activity_s,
            user_source=self._user_source,
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
            close(self._client)
            if self._broker is not None:
                close(self._broker)
        return reason

    async def _serve(self) -> CloseReason:
        reason = CloseReason.CLIENT_CLOSED
        self._client_watch = self._watch(self._client)
        async with trio.open_nursery() as nursery:
            reason = await self._client_pump(nursery)
            # No more requests. What is still owed is delivered before the broker hears of the end: a broker that sees
            # the end of input closes at once, answers or not.
            # A client that ended inside a request gets no such patience: its broken request will never be answered.
            while self._owes_answers() and self._reason is None:
                await self._answered()
            nursery.cancel_scope.cancel()
        return self._reason or reason

    def _watch(self, sock: socket) -> Watch[_Pause]:
        try:
            watch: Watch[_Pause] = self._shared.reactor.watch(sock)
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
        while True:
            match await watch.take(self._client_turn):
                case _Pause.WAITS:
                    if self.session.must_wait:
                        await self._answered()
                case _Pause.FULL:
                    data, self._to_broker = self._to_broker, b""
                    broker = self._broker or await self._connect(nursery)
                    await send_rest(broker, data, broker_failed)
                    data = b""  # nothing of what was said is held while we wait: a password least of all
                    inflight = self.session.inflight
                    if inflight and inflight[0].local_answer is not None:
                        await self._send_answers()
                case _Pause.SPLICE_FULL:
                    assert self._broker is not None
                    await trio.lowlevel.wait_writable(self._broker)
                case _Pause.ANSWERS:
                    await self._send_answers()
                case _Pause.ENDED:
                    return CloseReason.DRAINED if self._draining else CloseReason.CLIENT_CLOSED

    def _client_turn(self) -> _Pause | Again | None:
        """All that can be done with the client's requests without waiting (see `Watch.take`)."""
        session, shared, client, watch = self.session, self._shared, self._client, self._client_watch
        exchange, frames, splice, clock = session.exchange, session.request_frames, self._splice_up, self._clock
        others_next = False
        for _ in range(TURNS_BEFORE_CHECKPOINT):
            now_s = clock()
            now_ms = now_s * 1000.0
            if exchange.mute_until_ms > now_ms and not splice.inside:
                return self._stay_muted(now_s)
            if self._patience is not None:
                self._judge_patience(self._patience, now_s)
                self._unmute()
            if self._draining and session.client_at_boundary:
                return _Pause.ENDED
            # What there is to wait for, or was read already, has stopped the walk; but a name may be looked up.
            stopped = frames.stopped or exchange.client_waits
            if stopped and session.must_wait:
                return _Pause.WAITS
            broker = self._broker
            large = frames.skip and watch.readable and session.client_skip >= self._splice_min_bytes > 0
            if broker is not None and (large or splice.inside):
                step = self._splice_request(broker, session.client_skip)
                if step is Step.DONE or step is Step.SHARE:
                    continue
                if step is not Step.NO_PIPE:
                    return _AFTER_SPLICE[step]
            if stopped and session.has_backlog:
                buffers = session.resume(now_ms)
            elif not watch.readable:
                return None
            else:
                try:
                    received = client.recv_into(shared.buffer, self._request_read_bytes)
                except BlockingIOError:
                    watch.readable = False
                    return None
                except OSError as error:
                    raise client_failed(error) from error
                if received == 0:
                    return _Pause.ENDED
                self.last_activity_s = now_s
                buffers = session.client_bytes(shared.buffer[:received], now_ms)
                if received == self._request_read_bytes:
                    took_s = clock() - now_s
                    self._request_read_bytes = next_read_bytes(received, took_s, len(shared.buffer))
                    others_next = took_s > SHARE_S
                elif not watch.over:
                    watch.readable = False
            if buffers:
                if broker is None:  # it is connected to when the first request comes
                    self._to_broker = b"".join(buffers)
                    return _Pause.FULL
                last = not (frames.skip and watch.readable) or session.client_skip < shared.splice_min_bytes
                left = send_now(broker, buffers, broker_failed, 0 if last else MSG_MORE)
                if left is not None:
                    self._to_broker = left
                    return _Pause.FULL
            inflight = exchange.inflight
            if inflight and inflight[0].local_answer is not None:
                return _Pause.ANSWERS
            if not (watch.readable or frames.skip or frames.stopped or self._draining):
                return None  # as the next round would find
            if others_next:
                break
        return AGAIN

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

    def _splice_request(self, broker: socket, count: int) -> Step:
        try:
            step = self._splice_up.step(self._client, broker, count, self._request_moved)
        except SourceError as error:
            raise client_failed(error.__cause__) from error
        except SinkError as error:
            raise broker_failed(error.__cause__) from error
        if step is Step.EMPTY:
            self._client_watch.readable = False
        return step

    def _request_moved(self, part: int) -> None:
        self.last_activity_s = now_s = self._clock()
        self.session.client_moved(part, now_s * 1000.0)

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

    def _take_sink(self, rest: bytes) -> _Pause:
        """`rest` comes first, before anybody sends anything else to the client."""
        self._sink_taken = True
        self._to_client = rest
        return _Pause.FULL

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

    # ---- mute -------------------------------------------------------------------------------------------------------

    def _stay_muted(self, now_s: float) -> _Pause | None:
        """A turn before the mute's deadline: read nothing, and come back then. ENDED if the client has gone."""
        session, watch = self.session, self._client_watch
        patience, deadline_s = self._patience, session.mute_until_ms / 1000.0
        if patience is None:
            self._shared.counters.connections_muted += 1
            patience = self._patience = Patience(self._client, now_s, deadline_s)
        self._judge_patience(patience, now_s)
        if self._draining and session.client_at_boundary:
            return _Pause.ENDED
        # Requests that the client sent before it closed (acks=0!) are still taken, at their time.
        if watch.over and not session.has_backlog and not unread_bytes(self._client):
            return _Pause.ENDED
        watch.come_back(min(deadline_s, patience.look_s))
        return None

    def _judge_patience(self, patience: Patience, now_s: float) -> None:
        if patience.look(now_s):
            self.session.note_mute(patience.mute_ms, ignored=patience.ignored)

    def _unmute(self) -> None:
        if self._patience is not None:
            self._patience = None
            self._shared.counters.connections_muted -= 1

    # ---- broker -> client -------------------------------------------------------------------------------------------

    async def _broker_pump(self, broker: socket, watch: Watch[_Pause]) -> None:
        turn = partial(self._broker_turn, broker, watch)
        while True:
            match await watch.take(turn):
                case _Pause.TAKEN:
                    await self._sink_free()
                case _Pause.FULL:
                    data, self._to_client = self._to_client, b""
                    await send_rest(self._client, data, client_failed)
                    data = b""
                    self._release_sink()
                case _Pause.SPLICE_FULL:
                    await trio.lowlevel.wait_writable(self._client)
                case _:
                    self._reason = self._reason or CloseReason.BROKER_CLOSED
                    self._scope.cancel()
                    return

    def _broker_turn(self, broker: socket, watch: Watch[_Pause]) -> _Pause | Again | None:
        """All that can be done with the broker's responses without waiting (see `Watch.take`)."""
        session, shared, client = self.session, self._shared, self._client
        frames, splice, clock = session.response_frames, self._splice_down, self._clock
        for _ in range(TURNS_BEFORE_CHECKPOINT):
            if self._sink_taken:
                return _Pause.TAKEN
            large = frames.skip and watch.readable and session.broker_skip >= self._splice_min_bytes > 0
            if large or splice.inside:
                step = self._splice_response(broker, watch, session.broker_skip)
                if step is Step.DONE:
                    answers, self._answers = self._answers, []
                    self._wake_client_pump()
                    if answers:
                        left = send_now(client, answers, client_failed)
                        if left is not None:
                            return self._take_sink(left)
                    continue
                if step is Step.SHARE:
                    continue
                if step is not Step.NO_PIPE:
                    return _AFTER_SPLICE[step]
            if not watch.readable:
                return None
            try:
                received = broker.recv_into(shared.buffer, self._response_read_bytes)
            except BlockingIOError:
                watch.readable = False
                return None
            except OSError as error:
                raise broker_failed(error) from error
            if received == 0:
                return _Pause.ENDED
            self.last_activity_s = now_s = clock()
            buffers = session.broker_bytes(shared.buffer[:received], now_s * 1000.0, shared.reactor.since_ms)
            took_s = 0.0
            if received == self._response_read_bytes:
                took_s = clock() - now_s
                self._response_read_bytes = next_read_bytes(received, took_s, len(shared.buffer))
            elif not watch.over:
                watch.readable = False
            last = not (frames.skip and watch.readable) or session.broker_skip < shared.splice_min_bytes
            left = send_now(client, buffers, client_failed, 0 if last else MSG_MORE)
            if self._progress_wanted:
                self._wake_client_pump()
            if left is not None:
                return self._take_sink(left)
            if not (watch.readable or frames.skip):
                return None  # as the next round would find
            if took_s > SHARE_S:
                break
        return AGAIN

    def _splice_response(self, broker: socket, watch: Watch[_Pause], count: int) -> Step:
        try:
            step = self._splice_down.step(broker, self._client, count, self._response_moved)
        except SourceError as error:
            raise broker_failed(error.__cause__) from error
        except SinkError as error:
            raise client_failed(error.__cause__) from error
        if step is Step.EMPTY:
            watch.readable = False
        return step

    def _response_moved(self, part: int) -> None:
        self.last_activity_s = now_s = self._clock()
        self._answers.extend(self.session.broker_moved(part, now_s * 1000.0))

    def _wake_client_pump(self) -> None:
        """Room in flight, or nothing owed any more: whoever waits for that looks again."""
        if self._progress_wanted:
            self._progress_wanted = False
            self._progress.set()
            self._progress = trio.Event()
