"""The I/O of one connection pair: everything that can be done with requests and responses without blocking.

`proxy.net.io.rounds` calls `on_client_readable` and `on_broker_readable` when a socket is readable, or when one that
was full is writable again. The pumps (`proxy.net.io.connection`) wait for everything else. Both functions use one
receive buffer that all connections share: nothing stays in it between two waits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.core.errors import SessionError, broker_failed, client_failed
from proxy.core.session.outgoing import Outgoing
from proxy.core.session.session import Session
from proxy.core.session.throttle import Place
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io.compliance import ThrottleComplianceProbe
from proxy.net.io.endpoint import Endpoint
from proxy.net.io.kernel import unread_bytes
from proxy.net.io.reactor import Reactor
from proxy.net.io.rounds import AGAIN, NEVER, Again, Watch
from proxy.net.io.splice import PipePool, SinkError, SourceError, Splice, Step

READS_BEFORE_CHECKPOINT: Final = 8
"""Reads in a row without waiting before other connections are served, as long as each has few frames."""
LARGE_FETCH_BYTES: Final = 262_144
HEAD_BYTES: Final = 4096
"""After a fetch response larger than the former, no more than the latter is read of the next one at first: it is
probably large as well, so its head is enough here and the kernel moves the rest."""
MAX_READ_AHEAD_BYTES: Final = 1 << 20
"""So much may be read of what a client has sent although it is muted or its request is held: when more lies unread
than the receive window holds, the end of the connection lies behind it."""
MAX_READ_AHEAD_BYTES_OF_ALL: Final = 64 << 20
"""All connections read ahead so much at most; none more than a quarter of what is left of it, so some is always left
for others."""
MIN_UNREAD_BYTES: Final = 32_768
"""With less unread the receive window is open, and a client's end is reported without a read."""
MIN_MUTE_READ_AHEAD_S: Final = 1.0
"""With less of a mute left nothing is read ahead: nobody waits long for a client that has gone."""
# In compiled code these are C numbers (see the .pxd).


class StopReason(enum.Enum):
    """Why the I/O stopped: what the pump's task has to do before it continues."""

    WAITS = enum.auto()
    """Too many requests are in flight, or an interceptor has asked the broker something."""
    CONNECT = enum.auto()
    """The first request has arrived (`to_broker`), and there is no broker connection yet."""
    ENDED = enum.auto()


@dataclass(slots=True)
class Shared:
    """What all connections of a sidecar have in common."""

    counters: Counters
    pipes: PipePool
    buffer: memoryview
    """Receive buffer; valid only until the next await."""
    splice_min_bytes: int
    reactor: Reactor
    """Reports readable sockets."""
    close_log: CloseLogLimiter
    ahead_bytes: int = 0
    """Read ahead by all connections (`MAX_READ_AHEAD_BYTES`)."""


class ConnectionIO:
    """What one connection pair does when one of its sockets is ready."""

    __slots__ = (
        "_ahead_bytes",
        "_buffer",
        "_clock",
        "_requests",
        "_responses",
        "_round",
        "_shared",
        "_splice_down",
        "_splice_min_bytes",
        "_splice_up",
        "_state",
        "broker",
        "broker_watch",
        "client",
        "client_watch",
        "compliance",
        "is_held",
        "last_activity_s",
        "on_progress",
        "progress_wanted",
        "session",
        "to_broker",
        "to_client",
    )

    def __init__(self, client: Endpoint, client_watch: Watch, session: Session, shared: Shared, now_s: float) -> None:
        self.client = client
        self.client_watch = client_watch
        self.broker: Endpoint | None = None
        self.broker_watch: Watch | None = None
        self.session = session
        self._state, self._requests, self._responses = session.state, session.requests, session.responses
        self._shared = shared
        self._round = shared.reactor.round
        self._clock = self._round.clock
        self._buffer = shared.buffer
        self.to_broker = b""
        """Bytes that the broker's full socket did not take: they are sent first."""
        self.to_client = b""
        self._splice_min_bytes = 0
        """What is left of a body has to be as long for the kernel to move it; 0: it never does."""
        self._splice_up = Splice(shared.pipes)
        self._splice_down = Splice(shared.pipes)
        self.on_progress: Callable[[], None] | None = None
        """Called, if `progress_wanted`, when requests have been answered or an interceptor has decided."""
        self.progress_wanted = False
        self.compliance: ThrottleComplianceProbe | None = None
        """Watches a mute, if it is long enough."""
        self.is_held = False
        """The next request is held because its group is in debt; the connection is counted among the held ones."""
        self._ahead_bytes = 0
        """The backlog as counted in `Shared.ahead_bytes`."""
        self.last_activity_s = now_s

    def connected(self, broker: Endpoint, watch: Watch) -> None:
        """The broker connection is established."""
        self.broker, self.broker_watch = broker, watch
        self._state.connecting = False
        if self.client.splices and broker.splices:
            self._splice_min_bytes = self._shared.splice_min_bytes

    def close(self) -> None:
        """The connection has ended."""
        self.unmute()
        self._splice_up.close()
        self._splice_down.close()
        self.on_progress = self.broker_watch = None

    # ---- client -> broker -------------------------------------------------------------------------------------------

    def on_client_readable(self) -> StopReason | Again | None:
        """Do everything with the client's requests that does not block (see `proxy.net.io.reactor.take`)."""
        state, requests, watch = self._state, self._requests, self.client_watch
        frames, splice, broker, throttle = requests.reader, self._splice_up, self.broker, state.throttle
        if self.to_client:
            self._flush_client()
        if self.to_broker and not (self.broker is not None and self._flush_broker()):
            return None if broker is not None else self._connect()
        if state.exchange.answer_due():
            self._answer()
        for _ in range(READS_BEFORE_CHECKPOINT):
            now_s = self._clock.now_s()
            now_ms = now_s * 1000.0
            if throttle.blocks(now_ms) and not splice.inside:
                return self._stay_muted(now_s)
            # No look at the client's compliance: now that the mute is over, those send as well that have waited.
            if self.compliance is not None or self.is_held:
                self.unmute()
            if state.draining and requests.at_boundary:
                return StopReason.ENDED
            # The walk stopped at something to wait for, or at the backlog; or a name is being looked up.
            stopped = frames.stopped or state.client_waits
            if stopped and state.must_wait():
                return StopReason.WAITS
            skip = frames.movable()
            if broker is not None and ((watch.readable and skip >= self._splice_min_bytes > 0) or splice.inside):
                step = self._splice_request(broker, skip)
                if step is Step.DONE or step is Step.SHARE:
                    continue
                if step is Step.EMPTY:
                    watch.readable = False
                    return None
                if step is Step.FULL:
                    self._wait_for_room_at_broker()
                    return None
                if step is Step.ENDED:
                    return StopReason.ENDED
            if stopped and requests.has_backlog():
                requests.resume(now_ms)
            elif not watch.readable:
                return None
            else:
                wanted = len(self._buffer)
                try:
                    received = self.client.receive(self._buffer, wanted)
                except OSError as error:
                    raise client_failed(error) from error
                if received < 0:
                    watch.readable = False
                    return None
                if received == 0:
                    return StopReason.ENDED
                self.last_activity_s = now_s
                requests.take(self._buffer, received, now_ms)
                if received < wanted and not watch.over:
                    watch.readable = False
            out = requests.out
            if not out.empty():
                if broker is None:  # the broker is dialled when the first request arrives
                    self.to_broker = b"".join(out.parts())
                    out.begin()
                    return self._connect()
                more = watch.readable and frames.movable() >= self._splice_min_bytes > 0
                self.to_broker = _send(broker, out, more, broker_failed)
                if self.to_broker and not self._flush_broker():
                    return None
            if state.exchange.answer_due():
                self._answer()
            if not (watch.readable or frames.left or frames.stopped or state.draining):
                return None  # the next round would find no more
            if not frames.did_little():
                break
        return AGAIN

    def _connect(self) -> StopReason:
        self._state.connecting = True
        return StopReason.CONNECT

    def _flush_broker(self) -> bool:
        """Send what was left over for the broker. False: its socket is full; this is called again when it is
        writable."""
        assert self.broker is not None
        self.to_broker = _flush(self.broker, self.to_broker, broker_failed)
        if self.to_broker:
            self._wait_for_room_at_broker()
            return False
        return True

    def _wait_for_room_at_broker(self) -> None:
        assert self.broker_watch is not None
        self.broker_watch.room_for = self.client_watch

    def _splice_request(self, broker: Endpoint, count: int) -> Step:
        splice = self._splice_up
        try:
            return splice.step(self.client.fd, broker.fd, count)
        except SourceError as error:
            raise client_failed(error.__cause__) from error
        except SinkError as error:
            raise broker_failed(error.__cause__) from error
        finally:
            if splice.moved:
                self.last_activity_s = now_s = self._clock.now_s()
                self._requests.moved(splice.moved, now_s * 1000.0)

    # ---- mute -------------------------------------------------------------------------------------------------------

    def _stay_muted(self, now_s: float) -> StopReason | None:
        """The mute's deadline has not come: read nothing, and come back then. ENDED if the client has gone."""
        session, watch, throttle = self.session, self.client_watch, self._state.throttle
        compliance, deadline_s = self.compliance, throttle.until_ms / 1000.0
        if throttle.place is not None:
            return self._stay_held(throttle.place, now_s, deadline_s)
        if compliance is None:
            self._shared.counters.connections_muted += 1
            # Only what the client was told to wait for: a client that was told nothing ignores nothing.
            told_s = min(deadline_s, throttle.told_until_ms / 1000.0)
            compliance = self.compliance = ThrottleComplianceProbe(self.client.sock, now_s, told_s)
        if deadline_s - now_s >= MIN_MUTE_READ_AHEAD_S:
            self._read_ahead(now_s, MIN_UNREAD_BYTES)
        self._count_backlog()
        self._check_compliance(compliance, now_s)
        if self._state.draining and session.client_at_boundary:
            return StopReason.ENDED
        if watch.over:
            throttle.client_gone()
            if not (session.has_backlog or self._unforwarded_bytes()):
                return StopReason.ENDED
        watch.come_back(min(deadline_s, compliance.next_poll_s))
        return None

    def _stay_held(self, held: Place, now_s: float, deadline_s: float) -> StopReason | None:
        """As `_stay_muted`, while a request is held because its group is in debt. The client was not told to wait, so
        its compliance is not recorded."""
        if not self.is_held:
            self.unmute()
            self.is_held = True
            self._shared.counters.connections_waiting += 1
        self._read_ahead(now_s, 0 if self._state.throttle.missing_bytes else MIN_UNREAD_BYTES)
        self._count_backlog()
        held.all_read = not unread_bytes(self.client.sock)
        if self._state.draining:
            return StopReason.ENDED
        # A client sends a request that was not forwarded again, on another connection.
        if self.client_watch.over and not self._state.throttle.keeps(self._unforwarded_bytes(), now_s * 1000.0):
            return StopReason.ENDED
        self.client_watch.come_back(deadline_s)
        return None

    def _read_ahead(self, now_s: float, more_than: int) -> None:
        """If more than so many bytes are unread, read once what the client has sent, into the backlog."""
        requests, watch, shared = self._requests, self.client_watch, self._shared
        if watch.readable and not requests.reader.left and unread_bytes(self.client.sock) > more_than:
            left = (MAX_READ_AHEAD_BYTES_OF_ALL - shared.ahead_bytes + self._ahead_bytes) // 4
            wanted = min(min(MAX_READ_AHEAD_BYTES, left) - requests.reader.kept_bytes(), len(self._buffer))
            if wanted > 0:
                try:
                    received = self.client.receive(self._buffer, wanted)
                except OSError:
                    received = 0  # reset: what has been read is all that came
                if received > 0:
                    self.last_activity_s = now_s
                    requests.read_ahead(self._buffer, received)
                    watch.go_on_later()
                elif received == 0:
                    watch.over = True

    def _count_backlog(self) -> None:
        ahead_bytes = self._requests.reader.kept_bytes()
        self._shared.ahead_bytes += ahead_bytes - self._ahead_bytes
        self._ahead_bytes = ahead_bytes

    def _unforwarded_bytes(self) -> int:
        """What the client has sent and was not forwarded."""
        return self._requests.reader.kept_bytes() + unread_bytes(self.client.sock)

    def _check_compliance(self, compliance: ThrottleComplianceProbe, now_s: float) -> None:
        if compliance.poll(now_s, self._state.throttle.client_bytes) and compliance.in_time(self._clock.now_s()):
            self.session.note_mute(compliance.mute_ms, ignored=compliance.ignored)

    def unmute(self) -> None:
        """The connection is neither muted nor held any more."""
        if self.compliance is not None:
            self.compliance = None
            self._shared.counters.connections_muted -= 1
        if self.is_held:
            self.is_held = False
            self._shared.counters.connections_waiting -= 1
        self._shared.ahead_bytes -= self._ahead_bytes
        self._ahead_bytes = 0

    # ---- broker -> client -------------------------------------------------------------------------------------------

    def on_broker_readable(self) -> StopReason | Again | None:
        """Do everything with the broker's responses that does not block (see `proxy.net.io.reactor.take`)."""
        responses, watch, broker = self._responses, self.broker_watch, self.broker
        assert watch is not None
        assert broker is not None
        frames, splice = responses.reader, self._splice_down
        if self.to_client and not self._flush_client():
            return None
        for _ in range(READS_BEFORE_CHECKPOINT):
            if frames.keeps():
                responses.resume(self._clock.now_s() * 1000.0)
                sent = self._send_client(False)
                self._progress()
                return AGAIN if sent else None
            skip = frames.movable()
            if (watch.readable and skip >= self._splice_min_bytes > 0) or splice.inside:
                step = self._splice_response(broker, skip)
                if step is Step.DONE:
                    self._rest_came(watch)
                    self._progress()
                    if not self._send_client(False):
                        return None
                    continue
                if step is Step.SHARE:
                    continue
                if step is Step.ENDED:
                    return StopReason.ENDED
                if step is not Step.NO_PIPE:
                    self._expect_rest(watch)
                    if step is Step.EMPTY:
                        watch.readable = False
                    else:
                        self.client_watch.room_for = watch
                    return None
            if not watch.readable:
                return None
            if watch.rest_s == NEVER:  # all of a large response has come, or there is no pipe left
                self._rest_came(watch)
            wanted = len(self._buffer)
            if self._splice_min_bytes and not frames.left and responses.fetched_bytes >= LARGE_FETCH_BYTES:
                wanted = HEAD_BYTES
            try:
                received = broker.receive(self._buffer, wanted)
            except OSError as error:
                raise broker_failed(error) from error
            if received < 0:
                watch.readable = False
                return None
            if received == 0:
                return StopReason.ENDED
            self.last_activity_s = now_s = self._clock.now_s()
            responses.take(self._buffer, received, now_s * 1000.0, self._round.since_ms)
            if received < wanted and not watch.over:
                watch.readable = False
            more = watch.readable and frames.movable() >= self._splice_min_bytes > 0
            sent = self._send_client(more)
            if self.progress_wanted:
                self._progress()
            if not sent:
                return None
            if not (watch.readable or frames.left or frames.stopped):
                return None  # the next round would find no more
            if not frames.did_little():
                break
        return AGAIN

    def _send_client(self, more: bool) -> bool:
        """Send the responses' `out` to the client, with nothing left over. False: its socket is full; this is called
        again when it is writable."""
        out = self._responses.out
        if out.empty():
            return True
        self.to_client = _send(self.client, out, more, client_failed)
        return not self.to_client or self._flush_client()

    def _flush_client(self) -> bool:
        """Send what was left over for the client; as `_send_client`."""
        self.to_client = _flush(self.client, self.to_client, client_failed)
        if self.to_client:
            self.client_watch.room_for = self.client_watch if self.broker_watch is None else self.broker_watch
            return False
        if self._state.exchange.answer_due():
            self._answer()
        self._progress()
        return not self.to_client

    def _answer(self) -> None:
        """Send local answers that are next in order, unless older bytes still have to be sent before them."""
        if not self.to_client and not self._splice_down.inside:
            self._responses.answer()
            self._send_client(False)

    def _splice_response(self, broker: Endpoint, count: int) -> Step:
        splice = self._splice_down
        try:
            return splice.step(broker.fd, self.client.fd, count)
        except SourceError as error:
            raise broker_failed(error.__cause__) from error
        except SinkError as error:
            raise client_failed(error.__cause__) from error
        finally:
            if splice.moved:
                self.last_activity_s = now_s = self._clock.now_s()
                self._responses.moved(splice.moved, now_s * 1000.0)

    def _expect_rest(self, watch: Watch) -> None:
        """The kernel is moving a large response, and the rest has not arrived yet."""
        self.client_watch.expect_rest()
        watch.expect_rest()

    def _rest_came(self, watch: Watch) -> None:
        """The kernel has moved all of it, or will not move the rest."""
        self.client_watch.rest_came(self.last_activity_s)
        watch.rest_came(self.last_activity_s)

    def _progress(self) -> None:
        """There is room in flight, or nothing is owed any more: wake the task that waits for that."""
        if self.progress_wanted and self.on_progress is not None:
            self.progress_wanted = False
            self.on_progress()


Failed = Callable[[BaseException | None], SessionError]


def _send(endpoint: Endpoint, out: Outgoing, more: bool, failed: Failed) -> bytes:
    """Send all of `out`. Returns a copy of what was not sent."""
    try:
        if out.buffers is None:
            start, end = out.start, out.end
            start += endpoint.send(out.view, start, end, more)
            return b"" if start == end else bytes(out.view[start:end])
        parts = out.parts()
        out.begin()  # they may be copies of a login's messages
        sent = endpoint.send_all(parts, more)
    except OSError as error:
        raise failed(error) from error
    total = 0
    for part in parts:
        total += len(part)
    return b"" if sent == total else b"".join(parts)[sent:]


def _flush(endpoint: Endpoint, left: bytes, failed: Failed) -> bytes:
    """Send until the socket is full: only then does epoll report it writable. Returns the rest."""
    done, total = 0, len(left)
    try:
        while done < total:
            sent = endpoint.send(left, done, total, False)
            if sent == 0:
                break
            done += sent
    except OSError as error:
        raise failed(error) from error
    return left[done:] if done else left
