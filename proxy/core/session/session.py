"""One connection pair as a state machine: bytes and a clock reading in, bytes to send and a mute deadline out.

    client bytes -> RequestHandler  --+-- forwarded (perhaps patched), replaced, or dropped and answered here
                        |          |
                     SessionState (Exchange: requests in flight; Throttle: mute)
                        |          |
    broker bytes -> ResponseHandler --+-- forwarded (throttle patched), or its head replaced (addresses)

When the client has to wait, and for what, is in `proxy.core.session.states`.

Rules that hold in both directions:
- no sockets, no tasks, no clock: `now_ms` is given (monotonic milliseconds);
- what is returned is in wire order, and views into the caller's buffer are valid only until the next call;
- a response is matched to the oldest request in flight (Kafka answers in order); anything else ends the connection;
- muting never stops the broker's direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.core.auth.sasl import DEFAULT_CLAIM, Login
from proxy.core.interceptors.intercept import NO_INTERCEPTORS, Interceptors
from proxy.core.session.outgoing import Buffer
from proxy.core.session.request_handler import RequestHandler
from proxy.core.session.response_handler import ResponseHandler
from proxy.core.session.sizes import DEFAULT_SIZES, SizeLimits
from proxy.core.session.state import AddressTranslator, SessionState, no_clock
from proxy.core.telemetry.observer import Counters
from quota.entity import Kind
from quota.ledger import Ledger


class Session:
    """The two directions of one client connection and its broker connection.

    The shell calls `requests.take` / `responses.take` with what it read and sends what is returned to the other side;
    while `client_skip` / `broker_skip` is positive it may move that many bytes itself (splice) and report them by
    `moved`. Each call does a bounded amount of work. What it left is in a backlog: the shell serves other connections,
    then calls `resume`, and reads no more before. `client_bytes` and the methods after it do the same for callers that
    want views.
    """

    __slots__ = (
        "exchange",
        "requests",
        "responses",
        "state",
    )

    def __init__(
        self,
        ledger: Ledger,
        counters: Counters,
        *,
        user: str,
        translate: AddressTranslator | None,
        sizes: SizeLimits = DEFAULT_SIZES,
        max_in_flight: int = 1024,
        interceptors: Interceptors = NO_INTERCEPTORS,
        login_expected: bool = False,
        claim: str = DEFAULT_CLAIM,
        cpu_ms: Callable[[], float] = no_clock,
    ) -> None:
        """`translate(node_id, host, port, kind)` returns the address that clients see instead; None: rewrite nothing.

        `interceptors` inspect the requests of some APIs whole (`proxy.core.interceptors.intercept`).
        `login_expected`: the listener is known to need SASL, so what comes before the login is not charged
        (`proxy.core.session.before_login`). `claim` is the claim of OAUTHBEARER tokens that names the principal.
        `cpu_ms()` is the CPU time of the thread, which answers that are made here are charged by.
        """
        state = SessionState(ledger, counters, translate, interceptors, max_in_flight, cpu_ms)
        self.state: Final = state
        self.requests: Final = RequestHandler(state, user, sizes, login_expected)
        state.claim = claim
        self.responses: Final = ResponseHandler(state, sizes.max_response_bytes)
        """Both directions. The connection's I/O uses them, and `state`, directly for every read."""
        self.exchange: Final = state.exchange

    def client_bytes(self, view: memoryview, now_ms: float) -> list[Buffer]:
        """Process bytes read from the client (a writable view, heads are patched in place). Returns the buffers to send
        to the broker, up to where the client has to wait. Raises SessionError if the bytes are not Kafka's protocol."""
        requests = self.requests
        requests.take(view, len(view), now_ms)
        sent = requests.out.parts()
        while self.has_backlog and not self.state.blocked(now_ms):
            requests.resume(now_ms)
            sent += requests.out.parts()
        return sent

    def client_moved(self, count: int, now_ms: float) -> None:
        """`count` bytes from the client went to the broker unseen."""
        self.requests.moved(count, now_ms)

    def resume(self, now_ms: float) -> list[Buffer]:
        """Go on with the backlog after a mute; as `client_bytes`."""
        self.requests.resume(now_ms)
        return self.requests.out.parts()

    def broker_bytes(self, view: memoryview, now_ms: float, arrived_ms: float | None = None) -> list[Buffer]:
        """Process bytes read from the broker, which may have arrived as early as `arrived_ms` (None: just now). Returns
        the buffers to send to the client, of the backlog as well. Raises SessionError if they match no request, or must
        be rewritten and cannot be parsed."""
        responses = self.responses
        responses.take(view, len(view), now_ms, now_ms if arrived_ms is None else arrived_ms)
        sent = responses.out.parts()
        while responses.reader.keeps():
            responses.resume(now_ms)
            sent += responses.out.parts()
        return sent

    def broker_moved(self, count: int, now_ms: float) -> list[Buffer]:
        """`count` bytes from the broker went to the client unseen. Returns answers as `ready_answers`."""
        self.responses.moved(count, now_ms)
        return self.responses.out.parts()

    def ready_answers(self) -> list[Buffer]:
        """Local answers that are next in order."""
        self.responses.answer()
        return self.responses.out.parts()

    @property
    def user(self) -> str:
        """The user that is charged for further requests."""
        return self.requests.user

    def identify(self, user: str) -> None:
        """The client has proved its identity: charge `user` for further requests, but not for earlier ones."""
        self.requests.identify(user)
        if self.state.client_waits:
            self.state.client_waits = False
            self.state.wake()

    def when_authenticated(self, tell: Callable[[Login | None], None]) -> None:
        """`tell(login)` is called whenever the broker has accepted a SASL login, before its answer is passed on; with
        None when the broker accepts requests although a login was expected. A SessionError that it raises ends the
        connection.
        """
        self.state.authenticated = tell

    def broker_ended(self) -> None:
        """The broker has closed the connection. Raises SessionError if there is a more precise reason."""
        self.requests.before.broker_ended()

    def hold(self) -> None:
        """Read nothing from the client until `identify` is called."""
        self.state.client_waits = True

    @property
    def mute_until_ms(self) -> float:
        """The client is not read before this time."""
        return self.state.throttle.until_ms

    @property
    def round_trip_ms(self) -> float:
        """The network's round trip to the broker, during which no broker thread works on a request."""
        return self.state.request_time.round_trip_ms

    @round_trip_ms.setter
    def round_trip_ms(self, value: float) -> None:
        self.state.request_time.round_trip_ms = value

    @property
    def client_skip(self) -> int:
        """Bytes from the client that may be moved to the broker unseen."""
        return self.requests.reader.movable()

    @property
    def broker_skip(self) -> int:
        """Bytes from the broker that may be moved to the client unseen."""
        return self.responses.reader.movable()

    @property
    def client_at_boundary(self) -> bool:
        """True between two requests: a good place to stop reading."""
        return self.requests.at_boundary

    @property
    def response_begun(self) -> bool:
        """True in the middle of a response."""
        return not self.responses.reader.at_boundary()

    @property
    def under_way(self) -> bool:
        """True once a client may stay as long as it likes: it has logged in where the listener needs that, or else sent
        a request, even ApiVersions alone."""
        return self.requests.under_way

    def pass_unread(self) -> None:
        """The connection's bytes cannot be parsed (TLS that is passed through): do not wait for a first request."""
        self.requests.established = True

    @property
    def has_backlog(self) -> bool:
        """True if requests that were already read wait to be inspected; call `resume` before reading more."""
        return self.requests.has_backlog()

    def describe(self, now_ms: float) -> str:
        """What the client may do at `now_ms`, in one word."""
        return self.state.describe(now_ms)

    @property
    def must_wait(self) -> bool:
        """True while no request is inspected until something other than time has happened."""
        return self.state.must_wait()

    def when_decided(self, wake: Callable[[], None]) -> None:
        """`wake()` is called when an interceptor that waited has decided: check `must_wait` again."""
        self.state.wake = wake

    @property
    def quiet(self) -> bool:
        """True if no answer is owed or half sent."""
        return not self.exchange and self.responses.reader.at_boundary()

    @property
    def client_ids(self) -> list[str]:
        """Client ids seen on this connection (a bounded number of them)."""
        return self.requests.client_ids

    @property
    def software(self) -> str | None:
        """Client library and version, from ApiVersions v3+."""
        return self.requests.software

    def note_mute(self, mute_ms: float, *, ignored: bool) -> None:
        """A mute of `mute_ms` is nearly over; `ignored`: the client went on sending in its second half."""
        self.state.counters.libraries.note(self.software, mute_ms, ignored=ignored)
        account = self.requests.account
        if account is not None:
            account.note_mute(ignored=ignored)
            self.state.ledger.wake(account)

    @property
    def client_bytes_total(self) -> int:
        """Bytes received from the client."""
        return self.state.throttle.client_bytes

    @property
    def broker_bytes_total(self) -> int:
        """Bytes sent to the client."""
        return self.responses.bytes_total

    def close(self, now_ms: float) -> None:
        """The connection ends: refund what admitted fetches had reserved, and the part of a response that never
        came."""
        state = self.state
        state.close()
        self.requests.end(now_ms)
        self.responses.close(now_ms)
        for pending in state.exchange:
            state.throttle.note(pending)
            if pending.admission is not None:
                state.ledger.settle(pending.account, Kind.FETCH, pending.admission, 0, now_ms)
        state.exchange.clear()
