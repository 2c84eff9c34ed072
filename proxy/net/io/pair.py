"""One connection pair: the sockets of a session, and the one place where its effects are carried out.

`proxy.net.io.loop` runs a `Direction` when its source is readable, or when its sink, which was full, is writable
again. Everything that has to wait (dialling, the look-up of a user, a decision) is asked of the connection's task
(`proxy.net.io.connection`). All connections share one receive buffer: nothing stays in it between two events.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from proxy.core.auth.sasl import Login
from proxy.core.errors import CloseReason, SessionError, broker_failed, client_failed
from proxy.core.interceptors.intercept import Outcome
from proxy.core.session.effects import Effects
from proxy.core.session.outgoing import Outgoing
from proxy.core.session.session import Session
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io.compliance import MIN_PROBED_MS, ThrottleComplianceProbe
from proxy.net.io.kernel import unread_bytes
from proxy.net.io.loop import NEVER, EventLoop, Handler
from proxy.net.io.splice import DONE, EMPTY, ENDED, FULL, NO_PIPE, SHARED, SINK_FAILED, SOURCE_FAILED, PipePool, Splice

if TYPE_CHECKING:
    from proxy.net.io.endpoint import Endpoint

READS_IN_A_ROW: Final = 8
"""Before other connections are served."""
MAX_READ_AHEAD_BYTES: Final = 1 << 20
"""So much may be read of what a client has sent although it is muted or its request is queued: when more lies unread
than the receive window holds, the end of the connection lies behind it."""
MAX_READ_AHEAD_BYTES_OF_ALL: Final = 64 << 20
"""All connections read ahead so much at most; none more than a quarter of what is left of it, so some is always left
for others."""
# Compared for each read: C numbers in compiled code (see the .pxd).
_MOST_UNSENT: Final = 65_536
"""While the client has not read more than this, no more requests are read from it."""
_NEVER: Final = NEVER
_SETTLE: Final = 2
"""`Session.take_request` and `take_response`: the session has more to say."""


@dataclass(slots=True)
class Shared:
    """What all connections of a sidecar have in common."""

    counters: Counters
    pipes: PipePool
    buffer: memoryview
    """Receive buffer; valid only until the next await."""
    splice_min_bytes: int
    """What is left of a body has to be as long for the kernel to move it; 0: it never does."""
    loop: EventLoop
    close_log: CloseLogLimiter
    effects: Effects = field(default_factory=Effects)
    ahead_bytes: int = 0
    """Read ahead by all connections (`MAX_READ_AHEAD_BYTES`)."""


class Direction(Handler):
    """What is read from `source`, and sent to `sink`. A pair has two, and both run the same way:

    unsent? --> send it, or wait ---------------+
    a large body? --> splice                    |  all of it without blocking
    else read --> a door of the session --> `ConnectionPair.apply` --> `send`
    """

    def __init__(self, pair: ConnectionPair, shared: Shared, upward: bool) -> None:
        """`upward`: from the client to the broker."""
        super().__init__()
        self._pair: ConnectionPair | None = pair
        self._loop = shared.loop
        self._buffer, self._buffer_bytes = shared.buffer, len(shared.buffer)
        self._upward = upward
        self._splice = Splice(shared.pipes)
        self.source: Endpoint | None = None
        self.sink: Endpoint | None = None
        """None: not connected yet. What is sent waits."""
        self.open = True
        """The session lets it read."""
        self.moves = 0
        """How many of the next bytes may be spliced; 0 as well if they are too few, or one side cannot."""
        self.unfinished = False
        """What is sent next is part of a frame, with which its receiver can do nothing yet: the kernel may keep less
        than a segment of it for up to 0.2 s (MSG_MORE). Java's TLS clients write a Produce request in three records."""
        self.unsent = b""
        """What the sink did not take: it is sent first, and nothing is read until then."""

    def run(self) -> None:
        """Do all that can be done without blocking."""
        pair = self._pair
        if pair is None:
            return
        if pair.more:
            if not self._upward:
                return  # `turn` comes first
            pair.turn()
        for _ in range(READS_IN_A_ROW):
            if pair.closed or pair.more or (self.unsent and not self._flush()):
                return
            if self._splice.inside or (self.moves and self.readable and self.open):
                if not self._move():
                    return
            elif not self.open:
                if self._upward:
                    pair.stay()
                return
            elif not self.readable or not self._read():
                return
            if pair.yields:
                break
        self._loop.go_on_later(self)

    def on_time(self) -> None:
        """The time has come that the session, or the look at the client's compliance, asked for."""
        pair = self._pair
        if pair is not None:
            pair.on_time()

    def failed(self) -> None:
        """An exception of ours is being handled: the connection ends, others go on."""
        pair = self._pair
        if pair is not None:
            pair.close(sys.exc_info()[1])

    def send(self, out: Outgoing) -> None:
        """Send what the session gave, in order; keep what the sink does not take."""
        sink = self.sink
        if sink is None or self.unsent:
            self.unsent += b"".join(out.parts())
            out.begin()
            return
        if out.buffers is None:
            self.send_range(out.view, out.start, out.end, self.unfinished)
            return
        parts = out.parts()
        out.begin()  # they may be copies of a login's messages
        try:
            sent = sink.send_all(parts, self.unfinished)
        except OSError as error:
            self._fail(not self._upward, error)
            return
        total = 0
        for part in parts:
            total += len(part)
        if sent < total:
            self.unsent = b"".join(parts)[sent:]
            self._flush()

    def send_range(self, view: memoryview, start: int, end: int, more: bool) -> None:
        """Send `view[start:end]`, when there is a sink and nothing is left over; keep what the sink does not take."""
        sink = self.sink
        assert sink is not None
        try:
            sent = sink.send(view, start, end, more)
        except OSError as error:
            self._fail(not self._upward, error)
            return
        if sent < end - start:
            self.unsent = bytes(view[start + sent : end])
            self._flush()

    def close(self) -> None:
        """The connection has ended. Nothing is left that refers back to it."""
        self._splice.close()
        self.readable = self.open = self.waits_for_writable = False
        self.at_s = NEVER
        self.unsent = b""
        self._pair = self.source = self.sink = None

    def _read(self) -> bool:
        """Read once. False: there is no more for now."""
        pair, source, buffer, wanted = self._pair, self.source, self._buffer, self._buffer_bytes
        assert pair is not None
        assert source is not None
        try:
            received = source.receive(buffer, wanted)
        except OSError as error:
            self._fail(self._upward, error)
            return False
        if received > 0:
            if received < wanted and not self.over:
                self.readable = False  # a short read has emptied the socket
            pair.on_bytes(self._upward, buffer, received)
            return self.readable or self.moves > 0 or not self.open
        self.readable = False
        if received == 0:
            pair.on_end(self._upward)
        return False

    def _move(self) -> bool:
        """Splice once. False: one side would block."""
        pair, splice = self._pair, self._splice
        assert pair is not None
        assert self.source is not None
        assert self.sink is not None
        step = splice.step(self.source.fd, self.sink.fd, max(self.moves, splice.inside))
        if splice.moved:
            pair.on_moved(self._upward, splice.moved)
        if step is EMPTY:
            self.readable = False
        elif step is FULL:
            self.waits_for_writable = True
        elif step is NO_PIPE:
            self.moves = 0
            return True
        elif step is ENDED:
            pair.on_end(self._upward)
        elif step is SOURCE_FAILED or step is SINK_FAILED:
            error, splice.error = splice.error, None  # it refers to frames
            self._fail((step is SOURCE_FAILED) is self._upward, error)
        return step is DONE or step is SHARED

    def _flush(self) -> bool:
        """Send what was left over, until the socket is full: only then does epoll report it writable. False: it is."""
        pair, sink, left = self._pair, self.sink, self.unsent
        done, total = 0, len(left)
        if sink is None:
            return False
        try:
            while done < total:
                sent = sink.send(left, done, total, False)
                if sent == 0:
                    break
                done += sent
        except OSError as error:
            self._fail(not self._upward, error)
            return False
        self.unsent = left[done:] if done else left
        self.waits_for_writable = done < total
        if done == total and pair is not None:
            pair.became_writable(self)
        return done == total and self._pair is not None

    def _fail(self, client: bool, error: BaseException | None) -> None:
        """One side's socket failed: the client's, or else the broker's."""
        if self._pair is not None:
            self._pair.close(client_failed(error) if client else broker_failed(error))


class ConnectionPair:
    """A client's connection and its broker connection, which is made when the first request has come."""

    def __init__(
        self,
        client: Endpoint,
        session: Session,
        shared: Shared,
        changed: Callable[[], object],
        identify: Callable[[Login], str | None],
    ) -> None:
        """`changed()` is called when `wants_broker` or `closed` is set. `identify(login)` returns the user of a login;
        None: call `identified` later. A SessionError that it raises ends the connection. The session's effects are
        `shared.effects`."""
        self._shared = shared
        self._loop = shared.loop
        self._changed: Callable[[], object] = changed
        self._identify: Callable[[Login], str | None] = identify
        self._splice_min_bytes = 0
        self.session = session
        self.up = Direction(self, shared, True)
        self.down = Direction(self, shared, False)
        self.up.source = self.down.sink = client
        self.down.readable = False
        self._wake_at_ms = _NEVER
        self.active_s = self._loop.clock.now_s()
        """When bytes were moved last, in either direction."""
        self._may_read = True
        """The session lets the client be read."""
        self.more = False
        """The session has more to do: `turn`."""
        self.yields = False
        """The last door took a whole turn."""
        self.wants_broker = False
        """Dial the broker and call `connected`."""
        self.closed = False
        self.reason: CloseReason | BaseException | None = None
        """Why the connection ends, once it does."""
        self.compliance: ThrottleComplianceProbe | None = None
        """Watches a mute, if it is long enough."""
        self._ahead_bytes = 0
        """What was read ahead, as counted in `Shared.ahead_bytes`."""

    # ---- called by the connection's task ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve. Raises OSError if the kernel cannot watch the socket."""
        assert self.up.source is not None
        self._loop.watch(self.up.source.fd, self.up, self.down)
        self._run_up()

    def connected(self, broker: Endpoint, round_trip_ms: float) -> None:
        """The broker's connection is up. Raises OSError if the kernel cannot watch the socket."""
        up, down = self.up, self.down
        if self.closed:
            return
        self._loop.watch(broker.fd, down, up)
        up.sink = down.source = broker
        down.readable = True
        if up.source is not None and up.source.splices and broker.splices:
            self._splice_min_bytes = self._shared.splice_min_bytes
        self.apply(self.session.on_connected(round_trip_ms, self._now_ms()))
        if not self.closed and up.unsent:
            up._flush()
        self._run_up()

    def identified(self, user: str) -> None:
        """The user of the login that `identify` was asked about is known."""
        if not self.closed:
            self.apply(self.session.on_identity(user, self._now_ms()))
            self._run_up()

    def decided(self, outcome: Outcome) -> None:
        """An interceptor has decided about the request that waits."""
        if not self.closed:
            self.apply(self.session.on_decision(outcome, self._now_ms()))
            self._run_up()

    def drain(self) -> None:
        """Read no further request; close once everything in flight has been answered."""
        if not self.closed:
            self.apply(self.session.on_drain(self._now_ms()))

    def retire(self, late: bool) -> None:
        """End the connection, now or later, at a moment when the client misses nothing; `late`: as `drain` does."""
        if not self.closed:
            self.session.retire()
            if late:
                self.drain()
            else:
                self._end_between()

    def close(self, reason: CloseReason | BaseException | None) -> None:
        """End the connection for this reason, unless it has ended."""
        if self.closed:
            return
        self.reason = reason
        self.closed = True
        shared, up, down = self._shared, self.up, self.down
        self.session.close(self._now_ms())
        for endpoint in (up.source, down.source):
            if endpoint is not None:
                self._loop.forget(endpoint.fd)
        up.close()
        down.close()
        self.compliance = None
        self._count_ahead(0)
        shared.effects.begin()  # an error refers to the frames of its traceback
        self._changed()
        self._changed = self._identify = _unheard

    # ---- events -----------------------------------------------------------------------------------------------------

    def on_bytes(self, upward: bool, buffer: memoryview, count: int) -> None:
        """`count` bytes were read."""
        self.active_s = self._loop.ready_s()
        now_ms = self.active_s * 1000.0
        session, up, since_ms = self.session, self.up, self._loop.since_ms
        was_open = up.open
        if upward:
            taken = session.take_request(buffer, count, now_ms)
        else:
            taken = session.take_response(buffer, count, now_ms, since_ms)
        if taken:
            if upward:
                left = session.requests.reader.left
                if left or up.unfinished:
                    self._expect(up, left)
                up.send_range(buffer, 0, count, up.unfinished)
            else:
                self.down.send_range(buffer, 0, count, False)
            if taken != _SETTLE or self.closed:
                return
            self.apply(session.on_deadline(now_ms))
        elif upward:
            self.apply(session.on_client_bytes(buffer, count, now_ms))
        else:
            self.apply(session.on_broker_bytes(buffer, count, now_ms, since_ms))
        if not upward:
            self._look_after(was_open)

    def on_moved(self, upward: bool, count: int) -> None:
        """`count` bytes were spliced."""
        self.active_s = self._loop.clock.now_s()
        now_ms = self.active_s * 1000.0
        if upward:
            self.apply(self.session.on_client_moved(count, now_ms))
        else:
            was_open = self.up.open
            self.apply(self.session.on_broker_moved(count, now_ms))
            self._look_after(was_open)

    def _look_after(self, was_open: bool) -> None:
        """A response has muted the client, perhaps: look at what it has sent already (`stay`)."""
        up = self.up
        if was_open and not up.open and (up.readable or up.over):
            self._loop.go_on_later(up)

    def on_end(self, upward: bool) -> None:
        """One side sends no more."""
        now_ms = self._now_ms()
        self.apply(self.session.on_client_end(now_ms) if upward else self.session.on_broker_end(now_ms))

    def turn(self) -> None:
        """Others have been served: go on with what the session left."""
        self.more = False
        self.apply(self.session.on_turn(self._now_ms()))
        if not self.more and not self.closed:
            self._loop.go_on_later(self.down)

    def on_time(self) -> None:
        """The mute is over, or it is time to look whether the client heeds it."""
        now_ms = self._now_ms()
        if now_ms >= self._wake_at_ms:
            self.apply(self.session.on_deadline(now_ms))
        elif self.compliance is None:
            self._come_back()  # a rounding error too early
        self._run_up()

    def stay(self) -> None:
        """The client is not read now. While it is muted or queued, look at what it has sent: whether it heeds its mute,
        and whether it has gone."""
        up, now_s = self.up, self._loop.clock.now_s()
        now_ms = now_s * 1000.0
        if self._wake_at_ms == _NEVER:
            return
        if now_ms >= self._wake_at_ms:
            self.apply(self.session.on_deadline(now_ms))
            return
        session, client = self.session, up.source
        queued = session.throttle.place is not None
        ahead_over = session.read_ahead_over(now_ms)
        assert client is not None
        if up.readable and ahead_over < _NEVER and unread_bytes(client.sock) > ahead_over:
            self._read_ahead(client, now_ms)
        if self.closed:
            return
        if self.compliance is not None:
            self._look(self.compliance, now_s)
        if up.over or up.readable or queued:
            self.apply(session.on_unread(unread_bytes(client.sock), up.over, now_ms))
        if not self.closed:
            self._count_ahead(session.requests.reader.kept_bytes())

    def _read_ahead(self, client: Endpoint, now_ms: float) -> None:
        """Read once what the client has sent, which the session keeps."""
        shared, up = self._shared, self.up
        left = (MAX_READ_AHEAD_BYTES_OF_ALL - shared.ahead_bytes + self._ahead_bytes) // 4
        wanted = min(min(MAX_READ_AHEAD_BYTES, left) - self.session.requests.reader.kept_bytes(), len(shared.buffer))
        if wanted <= 0:
            return
        try:
            received = client.receive(shared.buffer, wanted)
        except OSError:
            received = 0  # reset: what has been read is all that came
        if received > 0:
            self.active_s = now_ms / 1000.0
            self.apply(self.session.on_client_bytes(shared.buffer, received, now_ms))
            self._loop.go_on_later(up)
        elif received == 0:
            up.over = True

    def _look(self, compliance: ThrottleComplianceProbe, now_s: float) -> None:
        """Look whether the client heeds its mute, if it is time to."""
        if compliance.poll(now_s, self.session.throttle.client_bytes) and compliance.in_time(self._loop.clock.now_s()):
            self.session.note_mute(compliance.mute_ms, ignored=compliance.ignored)
        self._come_back()

    def became_writable(self, direction: Direction) -> None:
        """What was left over has been sent."""
        self._open_or_shut()
        if direction.readable:
            self._loop.go_on_later(direction)
        self._end_if_sent()

    # ---- effects ----------------------------------------------------------------------------------------------------

    def apply(self, effects: Effects) -> None:
        """Carry out what the session wants."""
        if self.closed:
            return
        user, login = None, effects.identified
        if login is not None:  # first: a user that is refused is not shown the broker's welcome
            try:
                user = self._identify(login)
            except SessionError as error:
                self.close(error)
                return
        up, down = self.up, self.down
        self._expect(up, effects.splice_up)
        self._expect(down, effects.splice_down)
        self.yields, self._may_read = effects.yields, effects.read_client
        if effects.more != self.more:
            self.more = effects.more
            self._loop.go_on_later(up if effects.more else down)
        if not effects.to_broker.empty():
            up.send(effects.to_broker)
        if not effects.to_client.empty():
            down.send(effects.to_client)
        if up.source is None:
            return  # a socket has failed
        if up.open != effects.read_client or down.unsent:
            self._open_or_shut()
        if down.open != effects.read_broker:
            down.open = effects.read_broker
            self._loop.go_on_later(down)
        if effects.wake_at_ms != self._wake_at_ms:
            self._wake(effects.wake_at_ms)
        if effects.connect:
            self.wants_broker = True
            self._changed()
        if effects.close is not None:
            self.close(effects.close)
        elif effects.ended is not None:
            self.reason = self.reason or effects.ended
            self._end_if_sent()
        elif user is not None:
            self.apply(self.session.on_identity(user, self._now_ms()))
        elif effects.ask is not None:
            effects.ask.start(self.decided)
        elif self.session.retiring:
            self._end_between()

    def _expect(self, direction: Direction, left: int) -> None:
        """So many of the next bytes need not be looked at, as they belong to a frame that is being forwarded."""
        direction.unfinished = left > 0
        direction.moves = left if left >= self._splice_min_bytes > 0 else 0

    def _end_between(self) -> None:
        """End a connection that is to retire, unless a request is under way or has come and was not read."""
        up, down = self.up, self.down
        if self.reason is not None or up.source is None or up.unsent or down.unsent:
            return
        if self.session.may_end(self._now_ms()) and not unread_bytes(up.source.sock):
            self.drain()

    def _open_or_shut(self) -> None:
        """Whether the client is read: not while it leaves much unread itself."""
        up = self.up
        opened = self._may_read and len(self.down.unsent) <= _MOST_UNSENT
        if opened and not up.open and up.readable:
            self._loop.go_on_later(up)
        up.open = opened

    def _wake(self, at_ms: float) -> None:
        """The client is muted or queued until this time; NEVER: it is no longer."""
        self._wake_at_ms = at_ms
        throttle, client = self.session.throttle, self.up.source
        if at_ms == _NEVER:
            self.compliance = None
            self._count_ahead(0)
        elif throttle.place is not None:  # no throttle was announced
            self.compliance = None
        elif self.compliance is None and client is not None:
            # Only what was announced: a client that knows of no throttle ignores none.
            announced_ms, now_ms = min(at_ms, throttle.announced_until_ms), self._now_ms()
            if announced_ms - now_ms >= MIN_PROBED_MS:
                self.compliance = ThrottleComplianceProbe(client.sock, now_ms / 1000.0, announced_ms / 1000.0)
        self._come_back()

    def _come_back(self) -> None:
        at_s = self._wake_at_ms / 1000.0
        if self.compliance is not None:
            at_s = min(at_s, self.compliance.next_poll_s)
        self._loop.come_back(at_s, self.up)

    def _count_ahead(self, ahead_bytes: int) -> None:
        self._shared.ahead_bytes += ahead_bytes - self._ahead_bytes
        self._ahead_bytes = ahead_bytes

    def _end_if_sent(self) -> None:
        """Close for the reason there is, if all has been sent."""
        if self.reason is None or self.down.unsent:
            return
        if not self.up.unsent or self.reason is CloseReason.BROKER_CLOSED:
            self.close(self.reason)

    def _run_up(self) -> None:
        if not (self.closed or self.up.queued):
            self.up.run()

    def _now_ms(self) -> float:
        return self._loop.clock.now_s() * 1000.0


def _unheard(*_: object) -> None:
    """`changed` and `identify` of a connection that has ended."""
