"""The turns of one connection pair: all that can be done with requests and responses without waiting.

`proxy.io.reactor` calls a turn when something has come; what has to be waited for, the pumps do
(`proxy.io.connection`). Both turns use one receive buffer that all connections share: between two waits nothing is
kept in it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from socket import MSG_MORE, socket
from typing import Final

import trio

from proxy.errors import broker_failed, client_failed
from proxy.io.kernel import unread_bytes
from proxy.io.patience import Patience
from proxy.io.reactor import AGAIN, NEVER, Again, Reactor, Watch
from proxy.io.sockets import SHARE_S, next_read_bytes, send_now
from proxy.io.splice import PipePool, SinkError, SourceError, Splice, Step
from proxy.session.exchange import Held
from proxy.session.framing import Buffer
from proxy.session.session import Session
from proxy.telemetry.complaints import Complaints
from proxy.telemetry.observer import Counters
from proxy.tls.channel import TlsSocket

TURNS_BEFORE_CHECKPOINT: Final = 8
"""Reads in a row without waiting before other connections get their turn."""


class Pause(enum.Enum):
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


_AFTER_SPLICE: Final = {Step.EMPTY: None, Step.FULL: Pause.SPLICE_FULL, Step.ENDED: Pause.ENDED}


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


class Turns:
    """What one connection pair does when something has come. `Connection` waits for the rest."""

    __slots__ = (
        "_answers",
        "_broker",
        "_client",
        "_client_watch",
        "_clock",
        "_draining",
        "_is_held",
        "_patience",
        "_progress",
        "_progress_wanted",
        "_request_read_bytes",
        "_response_read_bytes",
        "_shared",
        "_sink_taken",
        "_splice_down",
        "_splice_min_bytes",
        "_splice_up",
        "_to_broker",
        "_to_client",
        "last_activity_s",
        "session",
    )

    def __init__(self, client: socket, session: Session, shared: Shared) -> None:
        self._client = client
        self.session = session
        self._shared = shared
        self._clock = shared.reactor.clock
        self._client_watch: Watch[Pause]
        self._broker: socket | None = None
        self._to_broker = b""
        self._to_client = b""
        self._answers: list[Buffer] = []
        self._splice_min_bytes = 0 if isinstance(client, TlsSocket) else shared.splice_min_bytes
        self._request_read_bytes = self._response_read_bytes = len(shared.buffer)
        self._splice_up = Splice(shared.pipes)
        self._splice_down = Splice(shared.pipes)
        self._sink_taken = False
        self._progress = trio.Event()
        """Set and replaced when requests have been answered, or a handler has decided, and somebody waits for that."""
        self._progress_wanted = False
        self._draining = False
        self._patience: Patience | None = None
        """Of a mute, while it is watched."""
        self._is_held = False
        """The next request waits for what its group owes, and is counted among those."""
        self.last_activity_s = trio.current_time()
        session.when_decided(self._wake_client_pump)

    # ---- client -> broker -------------------------------------------------------------------------------------------

    def _client_turn(self) -> Pause | Again | None:
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
            elif self._is_held:
                self._unmute()
            if self._draining and session.client_at_boundary:
                return Pause.ENDED
            # What there is to wait for, or was read already, has stopped the walk; but a name may be looked up.
            stopped = frames.stopped or exchange.client_waits
            if stopped and session.must_wait:
                return Pause.WAITS
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
                    return Pause.ENDED
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
                    return Pause.FULL
                last = not (frames.skip and watch.readable) or session.client_skip < shared.splice_min_bytes
                left = send_now(broker, buffers, broker_failed, 0 if last else MSG_MORE)
                if left is not None:
                    self._to_broker = left
                    return Pause.FULL
            inflight = exchange.inflight
            if inflight and inflight[0].local_answer is not None:
                return Pause.ANSWERS
            if not (watch.readable or frames.skip or frames.stopped or self._draining):
                return None  # as the next round would find
            if others_next:
                break
        return AGAIN

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

    # ---- mute -------------------------------------------------------------------------------------------------------

    def _stay_muted(self, now_s: float) -> Pause | None:
        """A turn before the mute's deadline: read nothing, and come back then. ENDED if the client has gone."""
        session, watch = self.session, self._client_watch
        patience, deadline_s = self._patience, session.mute_until_ms / 1000.0
        held = session.exchange.held
        if held is not None:
            return self._stay_held(held, deadline_s)
        if patience is None:
            self._shared.counters.connections_muted += 1
            patience = self._patience = Patience(self._client, now_s, deadline_s)
        self._judge_patience(patience, now_s)
        if self._draining and session.client_at_boundary:
            return Pause.ENDED
        # Requests that the client sent before it closed (acks=0!) are still taken, at their time.
        if watch.over and not session.has_backlog and not unread_bytes(self._client):
            return Pause.ENDED
        watch.come_back(min(deadline_s, patience.look_s))
        return None

    def _stay_held(self, held: Held, deadline_s: float) -> Pause | None:
        """As `_stay_muted`, while a request waits for what its group owes. The client was not told to wait, so nothing
        is said of its patience."""
        if not self._is_held:
            self._unmute()
            self._is_held = True
            self._shared.counters.connections_waiting += 1
        watch = self._client_watch
        # A request that has not been forwarded is sent again by its client, on another connection.
        if self._draining or (watch.over and not held.kept):
            return Pause.ENDED
        watch.come_back(deadline_s)
        return None

    def _judge_patience(self, patience: Patience, now_s: float) -> None:
        if patience.look(now_s):
            self.session.note_mute(patience.mute_ms, ignored=patience.ignored)

    def _unmute(self) -> None:
        if self._patience is not None:
            self._patience = None
            self._shared.counters.connections_muted -= 1
        if self._is_held:
            self._is_held = False
            self._shared.counters.connections_waiting -= 1

    # ---- broker -> client -------------------------------------------------------------------------------------------

    def _take_sink(self, rest: bytes) -> Pause:
        """`rest` comes first, before anybody sends anything else to the client."""
        self._sink_taken = True
        self._to_client = rest
        return Pause.FULL

    def _broker_turn(self, broker: socket, watch: Watch[Pause]) -> Pause | Again | None:
        """All that can be done with the broker's responses without waiting (see `Watch.take`)."""
        session, shared, client = self.session, self._shared, self._client
        frames, splice, clock = session.response_frames, self._splice_down, self._clock
        for _ in range(TURNS_BEFORE_CHECKPOINT):
            if self._sink_taken:
                return Pause.TAKEN
            large = frames.skip and watch.readable and session.broker_skip >= self._splice_min_bytes > 0
            if large or splice.inside:
                step = self._splice_response(broker, watch, session.broker_skip)
                if step is Step.DONE:
                    self._rest_came(watch)
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
                    if step is not Step.ENDED:
                        self._expect_rest(watch)
                    return _AFTER_SPLICE[step]
            if not watch.readable:
                return None
            if watch.rest_s == NEVER:  # the process has no pipe left
                self._rest_came(watch)
            try:
                received = broker.recv_into(shared.buffer, self._response_read_bytes)
            except BlockingIOError:
                watch.readable = False
                return None
            except OSError as error:
                raise broker_failed(error) from error
            if received == 0:
                return Pause.ENDED
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

    def _splice_response(self, broker: socket, watch: Watch[Pause], count: int) -> Step:
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

    def _expect_rest(self, watch: Watch[Pause]) -> None:
        """The kernel moves a large response, and has not all of it yet."""
        self._client_watch.expect_rest()
        watch.expect_rest()

    def _rest_came(self, watch: Watch[Pause]) -> None:
        """It has moved all of it, or is not to move the rest."""
        self._client_watch.rest_came(self.last_activity_s)
        watch.rest_came(self.last_activity_s)

    def _wake_client_pump(self) -> None:
        """Room in flight, or nothing owed any more: whoever waits for that looks again."""
        if self._progress_wanted:
            self._progress_wanted = False
            self._progress.set()
            self._progress = trio.Event()
