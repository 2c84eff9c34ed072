"""What both directions of a session share, and the one place that decides what its client may do (`ClientState`)."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.core.auth.sasl import DEFAULT_CLAIM, Login
from proxy.core.interceptors.intercept import NO_INTERCEPTORS, Interceptors, Outcome
from proxy.core.session.in_flight import InFlightQueue, InFlightRequest, Penalty
from proxy.core.session.login import UNAUTHENTICATED, Logins
from proxy.core.session.request_time import MIN_MS, RequestTime
from proxy.core.session.sizes import MAX_HELD_IN_FLIGHT_BYTES
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.apis import FETCH, PRODUCE
from proxy.core.wire.schema import APIS
from quota.counter import QuotaCounter
from quota.entity import Kind
from quota.gate import MAX_KEPT_MS
from quota.ledger import Account, Ledger


def no_clock() -> float:
    """Default of `cpu_ms`: what is computed here is charged as the cheapest request."""
    return 0.0


AddressTranslator = Callable[[int, str, int, str], tuple[str, int]]
"""(node id, host, port, "broker" or "controller") -> the (host, port) that clients see instead."""


# Compared for each request or response: C numbers in compiled code (see the .pxd).
_PRODUCE: Final = PRODUCE
_FETCH: Final = FETCH
BUSY: Final = Kind.REQUEST  # an alias, as looking it up in the enum takes longer
FETCHED: Final = Kind.FETCH
SHORT_MS: Final = 1000
"""A paced group's clients need not be told to wait for less than this: they wait for the answer to their next request
anyway. Even five requests at once, as Java's producers send them, take no more than 5 s of `request.timeout.ms`."""
SHORT_FETCH_MS: Final = 5000
"""The same for fetches, of which a consumer sends one at a time."""
TELL_AGAIN_MS: Final = 10_000
"""Once in this time a connection is told of a short throttle all the same, so that the client's own metrics show it."""
MAX_PASSING_BYTES: Final = 16 * 1024 * 1024
"""Bytes that may pass unmuted before a client logs in again, twice (`SessionState._may_pass`): more than the socket
buffers between it and us hold. Without a bound, a client that never logs in again would be unlimited for that long."""


class ClientState(enum.IntEnum):
    """What the client's side of a session does; `SessionState.client_state` computes it.

    | state      | means                                             | left by                                       |
    |------------|---------------------------------------------------|-----------------------------------------------|
    | OPEN       | requests are read and inspected                   | whatever causes one of those below            |
    | CONNECTING | the first request waits for the broker connection | `connected` -> OPEN                           |
    | DRAINING   | the current request is still read to its end, but | the end of the connection                     |
    |            | no other                                          |                                               |
    | FULL       | too many requests are in flight, or too much is   | a response -> OPEN, the backlog               |
    |            | kept for them                                     | first (`has_backlog`, `resume`)               |
    | ASKING     | an interceptor has asked the broker something, or | its decision (`decided`, `outcome`) -> OPEN   |
    |            | waits, before it decides                          |                                               |
    | LOGIN      | the broker owes the answer to a SASL message, or  | the answer, or `identify` -> OPEN             |
    |            | the client's name is being looked up              |                                               |
    | HELD       | the next request waits for its group's debt       | the gate lets it pass (`end_hold`) -> OPEN    |
    |            | (ADR 0026); `mute_until_ms` is when to ask again  |                                               |
    | MUTED      | nothing is read before `mute_until_ms` (KIP-219); | the deadline -> OPEN                          |
    |            | responses go on flowing                           |                                               |

    Where several are true at once, the one further down counts: a muted client stays muted when its requests have been
    answered, and FULL is checked again when the mute is over.
    """

    OPEN = 0
    CONNECTING = 1
    DRAINING = 2
    FULL = 3
    ASKING = 4
    LOGIN = 5
    HELD = 6
    MUTED = 7

    @property
    def blocks(self) -> bool:
        """Whether no request is inspected, nor read, while this lasts."""
        return self >= ClientState.FULL


# In compiled code these are C numbers (see the .pxd).
_OPEN: Final = int(ClientState.OPEN)
_CONNECTING: Final = int(ClientState.CONNECTING)
_DRAINING: Final = int(ClientState.DRAINING)
_FULL: Final = int(ClientState.FULL)
_ASKING: Final = int(ClientState.ASKING)
_LOGIN: Final = int(ClientState.LOGIN)
_HELD: Final = int(ClientState.HELD)
_MUTED: Final = int(ClientState.MUTED)
_MAX_IN_FLIGHT_BYTES: Final = MAX_HELD_IN_FLIGHT_BYTES


@dataclass(slots=True)
class Held:
    """The next request, held because its group is in debt for earlier ones (ADR 0026). It has been neither charged nor
    forwarded, and no response can tell the client of it."""

    kind: Kind
    group: QuotaCounter | None
    """The group in whose queue the connection has its place."""
    since_ms: float
    unanswered: bool = False
    """It expects no answer (acks=0): it is forwarded in its turn even if the client has closed."""
    all_read: bool = False
    """Everything that the client has sent so far has been read."""
    kept_bytes: int | None = None
    """The client has closed, and the request is kept: this was received on the connection and not forwarded,"""
    kept_until_ms: float = 0.0
    """and it is dropped at this time."""


class SessionState:
    """The requests in flight, the mute, and other state that both directions use."""

    __slots__ = (
        "_counted",
        "_passes_again",
        "_passes_from",
        "_tell_again_ms",
        "authenticated",
        "broker_mute_until_ms",
        "claim",
        "client_bytes",
        "client_waits",
        "connecting",
        "counters",
        "cpu_ms",
        "draining",
        "due_bytes",
        "expire_ms",
        "gone",
        "held",
        "held_bytes",
        "inflight",
        "interceptors",
        "ledger",
        "logins",
        "max_in_flight",
        "mute_until_ms",
        "outcome",
        "owed_until_ms",
        "promised",
        "renew_ms",
        "request_time",
        "told_until_ms",
        "translate",
        "waiting",
        "wake",
    )

    def __init__(
        self,
        ledger: Ledger,
        counters: Counters,
        translate: AddressTranslator | None,
        interceptors: Interceptors = NO_INTERCEPTORS,
        max_in_flight: int = 1024,
        cpu_ms: Callable[[], float] = no_clock,
    ) -> None:
        self.ledger = ledger
        self.cpu_ms = cpu_ms
        """The CPU time of the thread, to charge what is computed here."""
        self.counters = counters
        self._counted = counters.counted
        self.translate = translate
        """None: nothing is rewritten."""
        self.interceptors = interceptors
        self.outcome: Outcome | None = None
        """The interceptor's decision about the request that waited for its answer."""
        self.authenticated: Callable[[Login | None], None] = _no_matter
        """Called when the broker has accepted a login; with None when requests pass without one."""
        self.claim = DEFAULT_CLAIM
        """The claim of OAUTHBEARER tokens that is the principal's name."""
        self.logins: Logins | None = None
        """Created when a login begins."""
        self.client_waits = False
        """Nothing is read from the client until the broker has answered its SASL message (or its name is known)."""
        self.wake: Callable[[], None] = _unheard
        """Called when an interceptor has decided later: the client's requests can go on."""
        self.waiting: tuple[bytes, bytes, InFlightRequest] | None = None
        """Request (header, body) whose interceptor has not decided yet."""
        self.connecting = False
        """The first request waits for the broker connection."""
        self.draining = False
        """No further request is started."""
        self.max_in_flight = max_in_flight
        self.inflight = InFlightQueue()
        self.held: Held | None = None
        """The held request, if the client waits for that and not for a mute; `mute_until_ms` is when to ask again."""
        self.promised: QuotaCounter | None = None
        """The group that expects this connection's next request after its mute."""
        self.held_bytes = 0
        """Kept by requests in flight; above a bound no further request is inspected."""
        self.request_time = RequestTime()
        self.mute_until_ms = 0.0
        """The client is not read before this time."""
        self.renew_ms = self.expire_ms = math.inf
        """Between these times the client is not muted: its session ends then, and it has to log in again (KIP-368)."""
        self._passes_from: int | None = None
        """`client_bytes` when a mute was first put off."""
        self._passes_again = True
        """The second such time of this session is still available."""
        self.client_bytes = 0
        """Bytes received from the client,"""
        self.due_bytes = 0
        """and how many it will be when the latest Produce request that the gate was asked about is whole."""
        self.gone = False
        """The client has closed its side while it was muted or its request was held."""
        self.told_until_ms = 0.0
        """The end of the latest throttle that a response tells the client."""
        self._tell_again_ms = -math.inf
        """Short throttles are not told before this time."""
        self.owed_until_ms = 0.0
        """End of a mute that was put off for that reason; it resumes once the client has logged in."""
        self.broker_mute_until_ms = 0.0
        """The broker does not read from us before this time, because of its own quota (KIP-219)."""

    # ---- what the client may do -------------------------------------------------------------------------------------

    def client_state(self, now_ms: float) -> int:
        """The value of the `ClientState` at `now_ms`."""
        if self.mute_until_ms > now_ms:
            return _MUTED if self.held is None else _HELD
        if self.client_waits:
            return _LOGIN
        if self.waiting is not None and self.outcome is None:
            return _ASKING
        if self.inflight.count >= self.max_in_flight or self.held_bytes > _MAX_IN_FLIGHT_BYTES:
            return _FULL
        if self.connecting:
            return _CONNECTING
        return _DRAINING if self.draining else _OPEN

    def wait_for_interceptor(self, head: bytes, body: bytes, pending: InFlightRequest) -> None:
        """Store a whole request until its interceptor has decided."""
        self.waiting = (head, body, pending)

    def take_waiting(self) -> tuple[bytes, bytes, InFlightRequest]:
        """The interceptor has decided: return the arguments of `wait_for_interceptor`."""
        assert self.waiting is not None
        waiting, self.waiting = self.waiting, None
        return waiting

    def count_request(self, account: Account, api_key: int) -> None:
        """Count a request of `account` that is forwarded or answered here."""
        key = api_key if api_key in (_PRODUCE, _FETCH) or api_key in APIS else -1
        self._counted.add(key)
        account.counted.add(key)
        if not account.touched:
            self.ledger.wake(account)

    def decided(self, outcome: Outcome) -> None:
        """Store a decision that an interceptor took later, and wake the connection."""
        self.outcome = outcome
        self.wake()

    def mute(self, account: Account, kind: Kind, delay_ms: int, now_ms: float, charged: float | None = None) -> None:
        """Do not read the client for `delay_ms`, because of a Produce request that gets no response (acks=0)."""
        self.ledger.note_throttle(account, kind, delay_ms, at_ms=now_ms, api_key=PRODUCE, amount=charged)
        self._hold(now_ms + delay_ms, now_ms)

    def broker_throttled(self, pending: InFlightRequest, broker_throttle_ms: int, now_ms: float) -> None:
        """The broker itself throttles: it has told the client so, and does not read this connection meanwhile."""
        self.ledger.note_broker_throttle(pending.account, broker_throttle_ms)
        self.broker_mute_until_ms = max(self.broker_mute_until_ms, now_ms + broker_throttle_ms)

    def impose(
        self, pending: InFlightRequest, kind: Kind, delay_ms: int, now_ms: float, charged: float | None = None
    ) -> None:
        """Do not read the client for `delay_ms`, because of this request.

        A request may exceed several quotas, some when it comes and some when its response does. The throttle is the
        longest of them, not their sum, and is attributed to that quota alone; of equal ones to the later, as in Kafka
        to the request quota (`KafkaApis`, which compares the same two). `charged` is what that quota was charged for
        the request.

        Smooth pacing mutes for a moment after nearly each request. The client is not told of each: Java's logs a line
        for every throttle that it is told of.
        """
        until_ms = now_ms + delay_ms
        penalty = pending.penalty
        if penalty is None:
            penalty = pending.penalty = Penalty(kind)
        if self._tells(pending, kind, delay_ms, now_ms):
            if not penalty.told_until_ms:
                self.counters.throttles_told += 1
            penalty.told_until_ms = max(penalty.told_until_ms, until_ms)
            self.told_until_ms = max(self.told_until_ms, until_ms)
            self._tell_again_ms = now_ms + TELL_AGAIN_MS
        if until_ms >= penalty.until_ms:
            penalty.kind, penalty.delay_ms, penalty.until_ms, penalty.charged = kind, delay_ms, until_ms, charged
        self._hold(until_ms, now_ms)

    def charge_own(self, account: Account, began_ms: float, now_ms: float) -> None:
        """Charge what was computed here since `cpu_ms` said `began_ms`, as request time. Unthrottled: the rest of the
        request is yet to be charged."""
        spent_ms = self.cpu_ms() - began_ms
        if spent_ms > 0 and account is not UNAUTHENTICATED:
            self.ledger.charge_no_throttle(account, BUSY, spent_ms, now_ms)

    def answered_here(self, pending: InFlightRequest, began_ms: float, now_ms: float) -> int:
        """Charge an answer that is made here, as `charge_own` and at least as the cheapest request at a broker. Returns
        the throttle in ms that the answer has to tell."""
        if pending.account is UNAUTHENTICATED:
            return 0
        spent_ms = max(self.cpu_ms() - began_ms, MIN_MS)
        delay_ms = self.ledger.charge(pending.account, BUSY, spent_ms, now_ms)
        if delay_ms > 0:
            self.impose(pending, BUSY, delay_ms, now_ms, spent_ms)
        return delay_ms

    def _tells(self, pending: InFlightRequest, kind: Kind, delay_ms: int, now_ms: float) -> bool:
        """Whether the response to this request tells of a throttle of `delay_ms`."""
        group = pending.account.meter(kind).group
        short_ms = SHORT_FETCH_MS if kind is FETCHED else SHORT_MS
        return group is None or not group.paced or delay_ms >= short_ms or now_ms >= self._tell_again_ms

    def _hold(self, until_ms: float, now_ms: float) -> None:
        if until_ms > self.renew_ms and now_ms < self.expire_ms and (now_ms < self.renew_ms or self._may_pass(now_ms)):
            self.owed_until_ms = max(self.owed_until_ms, until_ms)
            until_ms = self.renew_ms
        self.mute_until_ms = max(self.mute_until_ms, until_ms)

    def hold(
        self, kind: Kind, group: QuotaCounter | None, wait_ms: float, now_ms: float, *, unanswered: bool = False
    ) -> None:
        """Do not read the client for `wait_ms`: its next request waits in `group`'s queue."""
        held = self.held
        if held is None:
            held = self.held = Held(kind, group, now_ms)
        elif held.group is not group:
            if held.group is not None:
                held.group.pass_held(self)
            held.kind, held.group = kind, group
        held.unanswered = unanswered
        until_ms = now_ms + wait_ms
        if now_ms < self.renew_ms < until_ms:
            until_ms = self.renew_ms  # it may pass then
        self.mute_until_ms = max(self.mute_until_ms, until_ms)

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the latest Produce request that the gate was asked about have not arrived yet."""
        return max(self.due_bytes - self.client_bytes, 0)

    def client_gone(self) -> None:
        """The client has closed its side: others do not wait for its next request."""
        if not self.gone:
            self.gone = True
            if self.promised is not None and self.held is None:
                self.promised.pass_held(self)

    def keeps(self, size_bytes: int, now_ms: float) -> bool:
        """Whether the held request of a client that has gone is kept until its turn: if it expects no answer and is
        whole, its turn comes soon, and not too much is kept. `size_bytes` have been received and not forwarded."""
        held = self.held
        self.client_gone()
        if held is None or not held.unanswered or (held.all_read and self.missing_bytes):
            return False
        if held.kept_bytes is not None:
            return now_ms < held.kept_until_ms
        kept = self.ledger.kept
        if held.group is None or not kept.take(size_bytes):
            return False
        if not held.group.abandon(self, size_bytes, int(now_ms)):
            kept.give_back(size_bytes)
            return False
        held.kept_bytes, held.kept_until_ms = size_bytes, now_ms + MAX_KEPT_MS
        return True

    def _take_held(self) -> Held | None:
        held, self.held = self.held, None
        if held is not None and held.kept_bytes is not None:
            self.ledger.kept.give_back(held.kept_bytes)
        return held

    def end_hold(self, account: Account, api_key: int, amount: float, now_ms: float) -> None:
        """The held request is forwarded now: record how long it has waited."""
        held = self._take_held()
        if held is None:
            return
        if held.group is not None and held.group is not self.promised:
            held.group.pass_held(self)  # its limits changed; otherwise it left the queue when it was let through
        held_ms = round(now_ms - held.since_ms)
        self.ledger.note_throttle(account, held.kind, held_ms, at_ms=now_ms, api_key=api_key, amount=amount, held=True)

    def close(self) -> None:
        """The connection ends: give up its place in any queue."""
        held = self._take_held()
        for group in (None if held is None else held.group, self.promised):
            if group is not None:
                group.pass_held(self)
        if self.waiting is not None:
            self.take_waiting()
        # These callbacks refer back to this session: without them no cycle is left to the garbage collector.
        self.wake, self.authenticated, self.logins = _unheard, _no_matter, None

    def put_off_ms(self, now_ms: float) -> int:
        """What is left of a mute that was put off so that the client can log in again; 0 for none."""
        return math.ceil(self.owed_until_ms - now_ms) if self.owed_until_ms > now_ms >= self.renew_ms else 0

    def may_renew(self, now_ms: float) -> bool:
        """Whether a client that should wait may pass so that its login can be read (KIP-368)."""
        return self.renew_ms <= now_ms < self.expire_ms and self._may_pass(now_ms)

    def _may_pass(self, now_ms: float) -> bool:
        """Whether the client may pass now, or once more before its session ends.

        In the last part of its session, no more may come than could have been in flight to us. If it is more, the
        client ignores throttles (as librdkafka does) and its timer for the login is late. The login comes after
        everything sent before that timer fires: all this gets a second chance, half way to the end.
        """
        taken = self.client_bytes
        if self._passes_from is None:
            self._passes_from = taken
        if taken - self._passes_from < MAX_PASSING_BYTES:
            return True
        if not self._passes_again:
            return False
        self._passes_again = False
        self._passes_from = None
        self.renew_ms = (now_ms + self.expire_ms) / 2.0
        return True

    def renew(self, renew_ms: float, expire_ms: float, now_ms: float) -> None:
        """The client has logged in, and has to log in again between these two times."""
        self.renew_ms, self.expire_ms = renew_ms, expire_ms
        self._passes_from = None
        self._passes_again = True
        owed_until_ms, self.owed_until_ms = self.owed_until_ms, 0.0
        self._hold(owed_until_ms, now_ms)

    def note(self, pending: InFlightRequest) -> None:
        """The request is finished: record the throttle it caused, under the one quota that caused it."""
        penalty = pending.penalty
        if penalty is not None:
            self.ledger.note_throttle(
                pending.account,
                penalty.kind,
                penalty.delay_ms,
                at_ms=penalty.until_ms - penalty.delay_ms,
                api_key=pending.api_key,
                amount=penalty.charged,
            )


def _unheard() -> None:
    """Default of `wake`: there is no shell around this session."""


def _no_matter(_login: Login | None) -> None:
    """Default of `authenticated`: the login is ignored."""
