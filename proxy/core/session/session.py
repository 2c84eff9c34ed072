"""One connection pair as a state machine: events in, `Effects` out. Its doors are the only way in, for shell and tests.

    client bytes -> FrameReader -> RequestHandler  --- verdict ---> effects.to_broker
                                       |   charges, gate
                    Auth   Throttle   Exchange   (who, until when the client waits, what is owed to it)
                                       |   penalty, answer
    broker bytes -> FrameReader -> ResponseHandler --- verdict ---> effects.to_client

What a session may do next is in `proxy.core.session.states`. Rules that hold at every door:
- no sockets, no tasks, no clock: `now_ms` is given (monotonic milliseconds);
- a door never raises for what a peer does: `effects.close` says why the connection ends;
- a door does a bounded amount of work. What it left is in `effects.more`;
- a response is matched to the oldest request in flight (Kafka answers in order); anything else ends the connection;
- muting never stops the broker's direction.
"""

from __future__ import annotations

from math import inf
from typing import Final

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import Outcome
from proxy.core.session.auth import wipe
from proxy.core.session.effects import Effects
from proxy.core.session.frames import FRAMES_PER_TURN, HEAD
from proxy.core.session.request_handler import RequestHandler
from proxy.core.session.response_handler import ResponseHandler
from proxy.core.session.sizes import FIRST_BYTES, malformed_response, unreadable
from proxy.core.session.state import SessionState
from proxy.core.session.states import BROKER, CLIENT, Answering, Broker, Client, Event, Proving, step
from proxy.core.wire.frames import WireError
from quota.entity import Kind

MIN_UNREAD_BYTES: Final = 32_768
"""With less unread the receive window is open, and the client's end is reported without a read."""
MIN_MUTE_READ_AHEAD_MS: Final = 1000.0
"""Nothing is read ahead while less of a mute is left, as nobody waits long for a client that has gone, or while less
lies between the next request's arrival and the mute's end, as it is not refused before that."""
TLS_SHIFT: Final = 5
"""Encrypted bytes are counted as unread: 3 % more than come of them. A later request must not seem to be among them."""
# Compared for each request: C values in compiled code (see the .pxd).
_FRAMES: Final = FRAMES_PER_TURN
_END_OF_LITTLE: Final = FRAMES_PER_TURN - FRAMES_PER_TURN // 8
_HEAD: Final = HEAD
_NEVER: Final = inf
_OPEN: Final = Client.OPEN
_FLOWING: Final = Answering.FLOWING
_UP: Final = Broker.UP


class Session:
    """One client connection and its broker connection."""

    def __init__(self, state: SessionState) -> None:
        self._effects = state.effects
        self.client = Client.OPEN
        self.broker = Broker.ABSENT
        self._plain_up = self._plain_down = False
        """`take_request` and `take_response` may be used: nothing else is going on in that direction."""
        self.retiring = False
        """The connection is old. It ends at its next quiet moment (`may_end`): no shorter door is used, so that none is
        missed."""
        self.state: Final = state
        self.auth: Final = state.auth
        self.exchange: Final = state.exchange
        self.throttle: Final = state.throttle
        self.requests: Final = RequestHandler(state)
        self.responses: Final = ResponseHandler(state)

    # ---- doors: the client ------------------------------------------------------------------------------------------

    def on_client_bytes(self, view: memoryview, count: int, now_ms: float) -> Effects:
        """The first `count` bytes of a writable view came from the client (heads are patched in place). Those that were
        read ahead (`read_ahead_over`) are kept."""
        self._begin()
        requests = self.requests
        self.throttle.client_bytes += count
        if self.throttle.until_ms > now_ms:
            requests.reader.keep(view, count)
            self.throttle.arrived(0, now_ms)
            if self.throttle.due_ms < 0.0:
                self.throttle.due_ms = 0.0
        else:
            requests.reader.feed(view, count)
            self._read_requests(now_ms)
            if self.auth.secret:
                requests.out.copy()
                wipe(view[:count])
        return self._settle(now_ms)

    def take_request(self, view: memoryview, count: int, now_ms: float) -> int:
        """A shorter door for a Produce request that nothing delays, or a part of it. 0: it is another, and nothing has
        been done: use `on_client_bytes`. Otherwise send it on as it is; after 2, use `on_deadline` as well."""
        if not self._plain_up:
            return 0
        try:
            pending = self.requests.take_plain(view, count, now_ms)
        except WireError:
            return 0
        if pending is None:
            return 0
        if pending.penalty is None and self.exchange.state is _FLOWING:
            return 1
        if not self.requests.reader.left and self.state.blocked(now_ms):
            self.requests.reader.stop_here()
        return 2

    def take_response(self, view: memoryview, count: int, now_ms: float, arrived_ms: float) -> int:
        """The same for the whole response to a Produce request; otherwise use `on_broker_bytes`."""
        if not self._plain_down:
            return 0
        full = self.exchange.state is not _FLOWING
        pending = self.responses.take_plain(view, count, now_ms, arrived_ms)
        if pending is None:
            return 0
        return 2 if full or pending.penalty is not None else 1

    def on_client_moved(self, count: int, now_ms: float) -> Effects:
        """`count` bytes of `effects.splice_up` went to the broker unseen."""
        self._begin()
        reader = self.requests.reader
        self.throttle.client_bytes += count
        reader.moved(count)
        if not reader.left:
            self._read_requests(now_ms)
        return self._settle(now_ms)

    def on_client_end(self, now_ms: float) -> Effects:
        """The client sends no more. What it is owed is still delivered: a broker that sees the end of its input closes
        at once, answers owed or not."""
        self.client = step(CLIENT, self.client, Event.END)
        return self.on_deadline(now_ms)

    def on_unread(self, unread_bytes: int, closed: bool, now_ms: float) -> Effects:
        """The client, which is muted or queued, has sent `unread_bytes` more; `closed`: and nothing follows them."""
        throttle, reader = self.throttle, self.requests.reader
        left_bytes = reader.kept_bytes() + unread_bytes
        place = throttle.place
        throttle.arrived(unread_bytes - (unread_bytes >> TLS_SHIFT), now_ms)
        if place is not None:
            place.all_read = not unread_bytes
        if closed and self.client is _OPEN:
            throttle.client_gone()
            # The client sends a request that was not forwarded again, on another connection.
            if not (left_bytes if place is None else throttle.keeps(left_bytes, now_ms)):
                self.client = step(CLIENT, self.client, Event.END)
        return self.on_deadline(now_ms)

    # ---- doors: the broker ------------------------------------------------------------------------------------------

    def on_connected(self, round_trip_ms: float, now_ms: float) -> Effects:
        """The broker's connection is up. No broker thread works on a request during the network's `round_trip_ms`."""
        self.broker = step(BROKER, self.broker, Event.CONNECTED)
        self.state.request_time.round_trip_ms = round_trip_ms
        return self.on_deadline(now_ms)

    def on_broker_bytes(self, view: memoryview, count: int, now_ms: float, arrived_ms: float) -> Effects:
        """The first `count` bytes of a writable view came from the broker, perhaps as early as `arrived_ms`."""
        self._begin()
        self.responses.bytes_total += count
        secret = self.auth.secret
        self.responses.reader.feed(view, count)
        self._read_responses(now_ms, arrived_ms)
        if secret:
            self.responses.out.copy()
            wipe(view[:count])
        return self._settle(now_ms)

    def on_broker_moved(self, count: int, now_ms: float) -> Effects:
        """`count` bytes of `effects.splice_down` went to the client unseen."""
        self._begin()
        reader = self.responses.reader
        self.responses.bytes_total += count
        reader.moved(count)
        if not reader.left:
            self._read_responses(now_ms, now_ms)
        return self._settle(now_ms)

    def on_broker_end(self, now_ms: float) -> Effects:
        """The broker has closed the connection."""
        self.broker = step(BROKER, self.broker, Event.END)
        error = self.auth.broker_ended()
        effects = self.on_deadline(now_ms)
        effects.ended = CloseReason.BROKER_CLOSED
        if error is not None:
            self._fail(error)
        return effects

    # ---- doors: time, and what the shell was asked for --------------------------------------------------------------

    def on_turn(self, now_ms: float) -> Effects:
        """Others have been served: go on with what the last door left (`effects.more`)."""
        self._begin()
        reader = self.responses.reader
        if reader.keeps():
            reader.go_on()
            self._read_responses(now_ms, self.responses.came_ms)
        return self._settle(now_ms)

    def on_deadline(self, now_ms: float) -> Effects:
        """The time that `effects.wake_at_ms` named has come, or a shorter door returned 2: say what comes next."""
        self._begin()
        return self._settle(now_ms)

    def on_identity(self, user: str, now_ms: float) -> Effects:
        """The client has proved to be `user`: charge it for further requests, but not for earlier ones."""
        self.requests.identify(user)
        return self.on_deadline(now_ms)

    def on_decision(self, outcome: Outcome, now_ms: float) -> Effects:
        """`effects.ask` has decided about the request that waits."""
        self.exchange.decide(outcome)
        return self.on_deadline(now_ms)

    def on_drain(self, now_ms: float) -> Effects:
        """Begin no further request; end when everything in flight has been answered."""
        self.client = step(CLIENT, self.client, Event.DRAIN)
        return self.on_deadline(now_ms)

    def retire(self) -> None:
        """Use no shorter door any more: the shell asks `may_end` after every one."""
        self.retiring = True
        self._plain_up = self._plain_down = False

    def close(self, now_ms: float) -> None:
        """The connection ends: refund what admitted fetches had reserved, and the part of a response that never
        came."""
        if self.client is Client.GONE:
            return
        self.client = step(CLIENT, self.client, Event.CLOSE)
        self.broker = step(BROKER, self.broker, Event.CLOSE)
        state = self.state
        state.throttle.close()
        self.requests.end(now_ms)
        self.responses.close(now_ms)
        for pending in state.exchange:
            state.throttle.note(pending)
            if pending.grant is not None:
                state.ledger.settle(pending.account, Kind.FETCH, pending.grant, 0, now_ms)
        state.exchange.clear()

    # ---- what every door does ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._effects.begin()
        self.requests.reader.frames_left = self.responses.reader.frames_left = _FRAMES

    def _read_requests(self, now_ms: float) -> None:
        """Take the requests that have come, as far as they may be taken."""
        requests = self.requests
        reader = requests.reader
        try:
            event = reader.next()
            while event:
                if event == _HEAD:
                    reader.follow(requests.decide(now_ms))
                else:
                    requests.ended(now_ms)
                    if self.client is not _OPEN or self.state.blocked(now_ms):
                        reader.stop_here()
                event = reader.next()
        except WireError as error:
            first = b"" if requests.saw_request else bytes(reader.buf[reader.start : reader.stop][:FIRST_BYTES])
            self._fail(unreadable(error, first))
        except SessionError as error:
            self._fail(error)

    def _read_responses(self, now_ms: float, arrived_ms: float) -> None:
        """Take the responses that have come, and send the local answers whose turn it is."""
        responses = self.responses
        reader = responses.reader
        responses.begin(now_ms, arrived_ms)
        try:
            event = reader.next()
            while event:
                if event == _HEAD:
                    reader.follow(responses.decide())
                else:
                    responses.ended()
                event = reader.next()
        except WireError as error:
            self._fail(malformed_response(error))
        except SessionError as error:
            self._fail(error)

    def _settle(self, now_ms: float) -> Effects:
        """Go on with what was kept, if that may be, and say what comes next."""
        effects, exchange = self._effects, self.exchange
        requests, responses = self.requests.reader, self.responses.reader
        while True:
            if exchange.oldest is not None and exchange.answer_due() and responses.at_boundary():
                self.responses.send_answers()
            waits = self.state.blocked(now_ms)
            if waits and exchange.outcome is not None:
                waits = self.throttle.blocks(now_ms)
            goes_on = self._looks(now_ms) if waits else requests.stopped and self.client is _OPEN
            if effects.close is not None or requests.frames_left <= 0:
                break
            if exchange.outcome is not None and not waits:
                self._carry_out(now_ms)
            elif goes_on:
                requests.go_on()
                self._read_requests(now_ms)
            else:
                break
        until_ms = self.throttle.until_ms
        if until_ms > now_ms:
            due_ms = self.throttle.due_ms
            effects.wake_at_ms = due_ms if now_ms < due_ms < until_ms else until_ms
        else:
            effects.read_client = not requests.stopped
        if requests.left:
            effects.splice_up = requests.movable()
        if responses.left:
            effects.splice_down = responses.movable()
        effects.more = responses.keeps() or goes_on or (exchange.outcome is not None and not waits)
        effects.yields = min(requests.frames_left, responses.frames_left) < _END_OF_LITTLE
        if self.broker is not _UP:
            self._settle_broker()
        if self.client is not _OPEN:
            self._settle_client()
        self._settle_plain(waits)
        return effects

    def _looks(self, now_ms: float) -> bool:
        """Whether a muted or queued client's next request, which is kept, has to be looked at: when it has to be
        answered, or that it is time to (`Throttle.due_ms`)."""
        throttle, reader = self.throttle, self.requests.reader
        return (
            throttle.until_ms > now_ms
            and 0.0 <= throttle.due_ms <= now_ms
            and self.client is _OPEN
            and reader.keeps()
            and not reader.left
            and not self.auth.blocks
            and self.exchange.state is _FLOWING
        )

    def _settle_plain(self, waits: bool) -> None:
        """Whether the shorter doors may be used until another one is."""
        effects = self._effects
        plain = self.broker is _UP and self.client is _OPEN and effects.close is None and not self.auth.secret
        plain = plain and not self.retiring
        up = plain and effects.read_client and not waits and self.state.reserved is None
        reader = self.requests.reader
        self._plain_up = up and (reader.is_idle() or 0 < reader.left == effects.splice_up)
        self._plain_down = plain and self.responses.reader.is_idle()

    def _carry_out(self, now_ms: float) -> None:
        """Do what an interceptor has decided later."""
        try:
            self.requests.decided(now_ms)
        except WireError as error:
            self._fail(unreadable(error, b""))
        except SessionError as error:
            self._fail(error)

    def _settle_broker(self) -> None:
        """The broker is dialled for the first request, which waits for it."""
        effects = self._effects
        if self.broker is Broker.ABSENT and not effects.to_broker.empty():
            self.broker = step(BROKER, self.broker, Event.REQUEST)
            effects.connect = True
        if self.broker is Broker.DIALLING:
            effects.read_client = effects.more = False

    def _settle_client(self) -> None:
        """No further request is begun: the connection ends when nothing is owed."""
        effects = self._effects
        if self.client is Client.LAST:
            if not self.client_at_boundary:
                return
            self.client = step(CLIENT, self.client, Event.BOUNDARY)
        effects.read_client = False
        if self.broker is Broker.DIALLING:
            return
        # A client that ended inside a request is not waited for: its broken request will never be answered.
        owed = self.broker is _UP and not self.quiet and self.client_at_boundary
        if not owed and effects.ended is None:
            effects.ended = self._last_reason()

    def _last_reason(self) -> CloseReason:
        """Why a connection ends on which no further request is begun."""
        if self.client is Client.ENDED:
            return CloseReason.CLIENT_CLOSED
        return CloseReason.MAX_AGE if self.retiring else CloseReason.DRAINED

    def _fail(self, error: SessionError) -> None:
        if self._effects.close is None:
            self._effects.close = error

    # ---- what the shell looks at ------------------------------------------------------------------------------------

    def read_ahead_over(self, now_ms: float) -> float:
        """The shell may read on although the client is muted or queued if more than so many bytes are unread: its end
        lies behind what the receive window holds. Infinite: it may not."""
        throttle = self.throttle
        if self.requests.reader.left or throttle.until_ms <= now_ms:
            return _NEVER
        if throttle.place is not None:
            return 0 if throttle.missing_bytes else MIN_UNREAD_BYTES
        since_ms = now_ms
        if throttle.due_ms <= 0.0:  # the head of the next request is wanted
            since_ms = throttle.arrivals.came_ms(self.requests.bytes_before, now_ms)
        if throttle.until_ms - since_ms < MIN_MUTE_READ_AHEAD_MS and not throttle.refuse_to:
            return _NEVER
        return 0 if throttle.due_ms <= 0.0 else MIN_UNREAD_BYTES

    def may_end(self, now_ms: float) -> bool:
        """Whether the client misses nothing if the connection ends: between two requests, nothing is owed, and it
        neither waits nor logs in."""
        return (
            self.client is _OPEN
            and self.broker is not Broker.DIALLING
            and self.under_way
            and self.quiet
            and self.client_at_boundary
            and not self.requests.reader.kept_bytes()
            and not self.state.blocked(now_ms)
        )

    def describe(self, now_ms: float) -> str:
        """What the client waits for at `now_ms`, or that it is open, in one word: the first that applies."""
        throttle, exchange = self.throttle, self.exchange
        if self.mute_until_ms > now_ms:
            return "muted" if throttle.place is None else "queued"
        if self.auth.blocks:
            return "login"
        if exchange.state is not _FLOWING:
            return exchange.state.name.lower()
        if self.broker is Broker.DIALLING:
            return "connecting"
        return "open" if self.client is _OPEN or self.client is Client.ENDED else "draining"

    def note_mute(self, mute_ms: float, *, ignored: bool) -> None:
        """A mute of `mute_ms` is nearly over; `ignored`: the client went on sending in its second half."""
        self.state.counters.libraries.note(self.requests.software, mute_ms, ignored=ignored)
        account = self.requests.account
        if account is not None:
            account.note_mute(ignored=ignored)
            self.state.ledger.wake(account)

    @property
    def user(self) -> str:
        """The user that is charged for further requests."""
        return self.auth.user

    @property
    def client_ids(self) -> list[str]:
        """The latest client-ids of this connection, at most `MAX_CLIENT_IDS`; it has one in practice."""
        return list(self.requests.joined)

    @property
    def mute_until_ms(self) -> float:
        """The client is not read before this time."""
        return self.throttle.until_ms

    @property
    def client_at_boundary(self) -> bool:
        """True between two requests, all of which have been taken: a good place to stop reading."""
        asking = self.exchange.state is Answering.ASKING or self.auth.state is Proving.PROBING
        return self.requests.reader.at_boundary() and not asking

    @property
    def quiet(self) -> bool:
        """True if no answer is owed or half sent."""
        return not self.exchange.count and self.responses.reader.at_boundary()

    @property
    def under_way(self) -> bool:
        """True once a client may stay as long as it likes: it has logged in where the listener needs that, or else sent
        a request, even ApiVersions alone: clients open connections, ask for versions and keep them for later."""
        return self.requests.established or (self.requests.saw_request and not self.auth.expected)
