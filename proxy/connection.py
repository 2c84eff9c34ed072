"""The two pumps of one connection pair: the only code that reads and writes client and broker sockets.

The client pump reads requests, the broker pump responses; each waits for the other side's socket to take what it read
before it reads more, so that back-pressure goes through us to whoever is too fast. Both use one receive buffer that all
connections share: between two waits nothing is kept in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from socket import SHUT_RD, SHUT_WR, socket
from typing import Final

import structlog
import trio

from proxy.arrivals import Arrivals
from proxy.errors import CloseReason, SessionError, UpstreamError
from proxy.framing import Buffer
from proxy.kernel import peer_has_closed, round_trip_ms, unread_bytes, wait_hangup, was_reset
from proxy.observer import Counters
from proxy.patience import Patience
from proxy.session import Session
from proxy.splice import PipePool, SinkError, SourceError, splice_bytes

log = structlog.get_logger("kquota.connection")

TURNS_BEFORE_CHECKPOINT: Final = 8
"""Reads in a row without waiting before other connections get their turn."""
WATCH_MUTE_FROM_MS: Final = 50.0
"""Mutes longer than this notice a client that goes away meanwhile; shorter ones are over before it matters."""


@dataclass(slots=True)
class Shared:
    """What all connections of a sidecar have in common."""

    counters: Counters
    pipes: PipePool
    buffer: memoryview
    """Receive buffer; valid only until the next await."""
    splice_min_bytes: int
    arrivals: Arrivals
    """Of the event loop that all of this runs in."""


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One line of /connections."""

    peer: str
    broker: str
    user: str
    client_ids: tuple[str, ...]
    software: str | None
    in_flight: int
    muted_for_ms: float
    client_bytes: int
    broker_bytes: int
    idle_s: float
    user_source: str = "anonymous"
    """Where the user comes from: tls, sasl, static, or anonymous when no source of identity knows one."""


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
        self._user_source = user_source
        self._broker: socket | None = None
        self._scope = trio.CancelScope()
        self._mute_scope: trio.CancelScope | None = None
        self._client_lock = trio.Lock()
        self._progress = trio.Event()
        """Set and replaced when requests have been answered, or a handler has decided, and somebody waits for that."""
        self._progress_wanted = False
        self._draining = False
        self._reason: CloseReason | None = None
        self._muted = False
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
        if self._mute_scope is not None:
            self._mute_scope.cancel()
        elif self.session.client_at_boundary:
            with suppress(OSError):  # wakes the pump if it waits for a request; a half-read one is still taken
                self._client.shutdown(SHUT_RD)

    def abort(self, reason: CloseReason) -> None:
        """End the connection now."""
        self._reason = self._reason or reason
        self._scope.cancel()

    def abandoned(self) -> CloseReason | None:
        """Why the connection, on which nothing has moved for long, need not be kept: its client has closed or reset it.

        None while it may wait; also while the client is muted, whose requests are still taken, at their time.
        """
        if self.session.mute_until_ms > trio.current_time() * 1000.0:
            return None
        if was_reset(self._client):
            return CloseReason.CLIENT_RESET
        return CloseReason.BROKER_SILENT if peer_has_closed(self._client) else None

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
            error = _first(group)
            reason = error.reason
            if error.kind is not None:
                self._shared.counters.parse_errors[error.kind] += 1
            log.warning(
                "connection closed",
                reason=str(reason),
                error=str(error),
                kind=error.kind,
                peer=self.peer,
                broker=self.broker_name,
            )
        except* Exception:
            log.exception("connection closed by a bug of ours", peer=self.peer, broker=self.broker_name)
        finally:
            self._unmute()
            self.session.close(trio.current_time() * 1000.0)
            _close(self._client)
            if self._broker is not None:
                _close(self._broker)
        return reason

    async def _serve(self) -> CloseReason:
        reason = CloseReason.CLIENT_CLOSED
        async with trio.open_nursery() as nursery:
            reason = await self._client_pump(nursery)
            # No more requests. What is still owed is delivered before the broker hears of the end: a broker that sees
            # the end of input closes at once, answers or not.
            # A client that ended inside a request gets no such patience: its broken request will never be answered.
            while self._owes_answers() and self._reason is None:
                await self._answered()
            nursery.cancel_scope.cancel()
        return self._reason or reason

    async def _answered(self) -> None:
        """Wait until the broker pump has passed on some response, or a handler has decided."""
        self._progress_wanted = True
        await self._progress.wait()

    def _owes_answers(self) -> bool:
        return self._broker is not None and self.session.client_at_boundary and not self.session.quiet

    # ---- client -> broker -------------------------------------------------------------------------------------------

    async def _client_pump(self, nursery: trio.Nursery) -> CloseReason:
        session, shared, client = self.session, self._shared, self._client
        turns = 0
        read_empty = False  # the last read took everything there was: the next one would only find that out
        while True:
            if session.mute_until_ms > trio.current_time() * 1000.0:
                gone = await self._stay_muted()
                if gone is not None:
                    return gone
                turns = 0
            if self._draining and session.client_at_boundary:
                return CloseReason.DRAINED
            while session.must_wait:
                await self._answered()
            if session.has_backlog:
                now_ms = trio.current_time() * 1000.0
                buffers = session.resume(now_ms)
            elif read_empty:
                await trio.lowlevel.wait_readable(client)
                read_empty = False
                turns = 0
                continue
            else:
                try:
                    received = client.recv_into(shared.buffer)
                except BlockingIOError:
                    read_empty = True
                    continue
                except OSError as error:
                    raise _client_failed(error) from error
                if received == 0:
                    return CloseReason.DRAINED if self._draining else CloseReason.CLIENT_CLOSED
                read_empty = received < len(shared.buffer)
                self.last_activity_s = now_s = trio.current_time()
                buffers = session.client_bytes(shared.buffer[:received], now_s * 1000.0)
            if buffers:
                if self._broker is None:
                    buffers = [bytes(buffer) for buffer in buffers]  # dialling waits, the shared buffer does not
                    await self._connect(nursery)
                assert self._broker is not None
                left = _send_now(self._broker, buffers, _broker_failed)
                if left is not None:
                    turns = 0
                    await _send_rest(self._broker, left, _broker_failed)
                    left = None
                buffers = []  # nothing of what was said is held while we wait: a password least of all
            if session.inflight and session.inflight[0].local_answer is not None:
                await self._send_answers()
            if session.client_skip >= shared.splice_min_bytes > 0 and self._broker is not None:
                turns = 0
                if not await self._splice_request(session.client_skip):
                    return CloseReason.CLIENT_CLOSED
            turns += 1
            if turns >= TURNS_BEFORE_CHECKPOINT:
                turns = 0
                await trio.lowlevel.checkpoint()

    async def _connect(self, nursery: trio.Nursery) -> None:
        try:
            self._broker = await self._dial()
        except UpstreamError as error:
            raise SessionError(
                CloseReason.UPSTREAM_UNREACHABLE, f"cannot connect to broker {self.broker_name}: {error}"
            ) from error
        self.session.round_trip_ms = round_trip_ms(self._broker)
        nursery.start_soon(self._broker_pump, self._broker)

    async def _splice_request(self, count: int) -> bool:
        """False if the client ended in the middle of a request."""
        assert self._broker is not None
        session = self.session

        def moved(part: int) -> None:
            self.last_activity_s = now_s = trio.current_time()
            session.client_moved(part, now_s * 1000.0)

        try:
            return await splice_bytes(self._client, self._broker, count, self._shared.pipes, moved)
        except SourceError as error:
            raise _client_failed(error.__cause__) from error
        except SinkError as error:
            raise _broker_failed(error.__cause__) from error

    async def _send_answers(self) -> None:
        """Answers made here whose turn has come; otherwise the broker pump sends them after what is older."""
        async with self._client_lock:
            answers = self.session.ready_answers()
            if answers:
                await _send_all(self._client, answers, _client_failed)

    # ---- mute -------------------------------------------------------------------------------------------------------

    async def _stay_muted(self) -> CloseReason | None:
        """Do not read the client before the deadline. Returns a reason if the connection has ended meanwhile."""
        session = self.session
        self._shared.counters.connections_muted += 1
        self._muted = True
        try:
            watching = session.mute_until_ms - trio.current_time() * 1000.0 > WATCH_MUTE_FROM_MS
            patience = Patience(self._client, trio.current_time(), session.mute_until_ms / 1000.0)
            while True:
                deadline_s, now_s = session.mute_until_ms / 1000.0, trio.current_time()
                if patience.look(now_s):
                    session.note_mute(patience.mute_ms, ignored=patience.ignored)
                if now_s >= deadline_s:
                    return None
                if self._draining and session.client_at_boundary:
                    return CloseReason.DRAINED
                with trio.move_on_at(min(deadline_s, patience.look_s)) as self._mute_scope:
                    if watching:
                        await wait_hangup(self._client)
                        # Requests that the client sent before it closed (acks=0!) are still taken, at their time.
                        if session.has_backlog or unread_bytes(self._client):
                            watching = False
                        else:
                            return CloseReason.CLIENT_CLOSED
                    else:
                        await trio.sleep_forever()
                self._mute_scope = None
        finally:
            self._mute_scope = None
            self._unmute()

    def _unmute(self) -> None:
        if self._muted:
            self._muted = False
            self._shared.counters.connections_muted -= 1

    # ---- broker -> client -------------------------------------------------------------------------------------------

    async def _broker_pump(self, broker: socket) -> None:
        session, shared, client = self.session, self._shared, self._client
        turns = 0
        read_empty = True
        while True:
            if read_empty:
                await trio.lowlevel.wait_readable(broker)
                turns = 0
            try:
                received = broker.recv_into(shared.buffer)
            except BlockingIOError:
                read_empty = True
                continue
            except OSError as error:
                raise _broker_failed(error) from error
            if received == 0:
                self._broker_ended()
                return
            read_empty = received < len(shared.buffer)
            self.last_activity_s = now_s = trio.current_time()
            buffers = session.broker_bytes(shared.buffer[:received], now_s * 1000.0, shared.arrivals.since_ms)
            if self._client_lock.locked():
                buffers = [bytes(buffer) for buffer in buffers]
                async with self._client_lock:
                    await _send_all(client, buffers, _client_failed)
            else:
                left = _send_now(client, buffers, _client_failed)
                if left is not None:
                    turns = 0
                    async with self._client_lock:
                        await _send_rest(client, left, _client_failed)
                    left = None
            buffers = []
            if session.broker_skip >= shared.splice_min_bytes > 0:
                turns = 0
                async with self._client_lock:
                    if not await self._splice_response(broker, session.broker_skip):
                        self._broker_ended()
                        return
            self._wake_client_pump()
            turns += 1
            if turns >= TURNS_BEFORE_CHECKPOINT:
                turns = 0
                await trio.lowlevel.checkpoint()

    async def _splice_response(self, broker: socket, count: int) -> bool:
        session = self.session
        answers: list[Buffer] = []

        def moved(part: int) -> None:
            self.last_activity_s = now_s = trio.current_time()
            answers.extend(session.broker_moved(part, now_s * 1000.0))

        try:
            whole = await splice_bytes(broker, self._client, count, self._shared.pipes, moved)
        except SourceError as error:
            raise _broker_failed(error.__cause__) from error
        except SinkError as error:
            raise _client_failed(error.__cause__) from error
        if answers:
            await _send_all(self._client, answers, _client_failed)
        return whole

    def _wake_client_pump(self) -> None:
        """Room in flight, or nothing owed any more: whoever waits for that looks again."""
        if self._progress_wanted:
            self._progress_wanted = False
            self._progress.set()
            self._progress = trio.Event()

    def _broker_ended(self) -> None:
        self._reason = self._reason or CloseReason.BROKER_CLOSED
        self._scope.cancel()


def _send_now(
    sink: socket, buffers: Sequence[Buffer], failed: Callable[[BaseException | None], SessionError]
) -> bytes | None:
    """Send what the socket takes at once; returns a copy of what it did not take."""
    try:
        sent = sink.send(buffers[0]) if len(buffers) == 1 else sink.sendmsg(buffers) if buffers else 0
    except BlockingIOError:
        sent = 0
    except OSError as error:
        raise failed(error) from error
    if len(buffers) == 1:
        return None if sent == len(buffers[0]) else bytes(buffers[0][sent:])
    total = sum(map(len, buffers))
    return None if sent == total else b"".join(buffers)[sent:]


async def _send_rest(sink: socket, data: bytes, failed: Callable[[BaseException | None], SessionError]) -> None:
    view = memoryview(data)
    while view:
        await trio.lowlevel.wait_writable(sink)
        try:
            view = view[sink.send(view) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise failed(error) from error


async def _send_all(
    sink: socket, buffers: Sequence[Buffer], failed: Callable[[BaseException | None], SessionError]
) -> None:
    left = _send_now(sink, buffers, failed)
    if left is not None:
        await _send_rest(sink, left, failed)


def _close(sock: socket) -> None:
    trio.lowlevel.notify_closing(sock)
    with suppress(OSError):  # already reset by the peer
        sock.shutdown(SHUT_WR)
    sock.close()


def _client_failed(error: BaseException | None) -> SessionError:
    return SessionError(CloseReason.CLIENT_RESET, f"client connection failed: {error}")


def _broker_failed(error: BaseException | None) -> SessionError:
    return SessionError(CloseReason.BROKER_RESET, f"broker connection failed: {error}")


def _first(group: BaseExceptionGroup[SessionError]) -> SessionError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SessionError)
    return error
