"""Why and until when a client is not read: a mute after a request, or a place in the queue before one."""

from __future__ import annotations

import math
from typing import Final

from proxy.core.session.exchange import InFlightRequest, Penalty
from proxy.core.session.states import THROTTLE, Event, Throttled, step
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.apis import END_TXN, ENDING, PRODUCE
from quota.counter import QuotaCounter
from quota.entity import Kind
from quota.gate import MAX_KEPT_MS
from quota.ledger import Account, Ledger

SHORT_MS: Final = 1000
"""A paced group's clients need no throttle time shorter than this: they wait for the answer to their next request
anyway. Even five requests at once, as Java's producers send them, take no more than 5 s of `request.timeout.ms`."""
SHORT_FETCH_MS: Final = 5000
"""The same for fetches, of which a consumer sends one at a time."""
ANNOUNCE_AGAIN_MS: Final = 10_000
"""A short throttle is announced to a connection once in this time, so that the client's own metrics show it."""
MAX_ENDING: Final = 8
"""A muted producer may send so many requests to end a transaction."""
REFUSED_TOGETHER_MS: Final = 50
"""What comes so soon after a refusal was sent before the client knew of it: retries come after 80 ms or more."""
UNANNOUNCED_SHARE: Final = 0.8
"""Share of a transactional producer's answer timeout that a throttle may take without being announced."""
UNSLICED_MS: Final = 1 << 40
"""Longer than any throttle: the connection carries no heartbeats of a group's member."""
SLICES: Final = 4
"""A throttle lasts at most this part of a session. A heartbeat waits for two slices, that of the request before it
included, and is sent after a third of a session at the latest (`heartbeat.interval.ms`)."""
MIN_SLICE_MS: Final = 1000
"""Whatever session a client asks for."""
UNKNOWN_SESSION_MS: Final = 6000
"""The session of a member that joined on another connection: the shortest that brokers allow by default
(`group.min.session.timeout.ms`)."""
MARK_MS: Final = 100
"""How exactly it is known when bytes came."""
MAX_MARKS: Final = 32
MAX_PASSING_BYTES: Final = 16 * 1024 * 1024
"""Bytes that may pass unmuted before a client logs in again, twice (`Grace.passes`): more than the socket
buffers between it and us hold. Without a bound, a client that never logs in again would be unlimited for that long."""
RENEWAL_SHARE: Final = 0.08
MAX_RENEWAL_MS: Final = 30_000.0
# Aliases, as looking it up in the enum takes longer.
FETCHED: Final = Kind.FETCH
PRODUCED: Final = Kind.PRODUCE
_END_TXN: Final = END_TXN
_MUTED: Final = Throttled.MUTED
_QUEUED: Final = Throttled.QUEUED
_REFUSING: Final = Throttled.REFUSING


def renewal_ms(lifetime_ms: int) -> float:
    """How long before the end of its session a client is no longer muted (KIP-368).

    What a client sent before its session expired must have reached the broker by then: a broker that receives anything
    but a new login afterwards closes the connection. Clients renew after 85 to 95 % of the lifetime (Java) or 90 %
    (librdkafka). Earlier than 90 % would be of no use: librdkafka, which ignores throttle times, would fill up again
    what has just passed. So 2 % of the lifetime are left for its timer to be late, and 8 %, half a minute at most, for
    the rest.
    """
    return min(lifetime_ms * RENEWAL_SHARE, MAX_RENEWAL_MS)


class Place:
    """The place of the next request in its group's queue (ADR 0026). The request has been neither charged nor
    forwarded, and no response can announce it."""

    __slots__ = ("all_read", "group", "kept_bytes", "kept_until_ms", "kind", "since_ms", "unanswered")

    def __init__(self, kind: Kind, group: QuotaCounter | None, since_ms: float) -> None:
        self.kind = kind
        self.group = group
        """None: it waits for no debt, but because its own quota cannot be applied to it (a fetch that can be neither
        lowered nor answered here)."""
        self.since_ms = since_ms
        self.unanswered = False
        """It expects no answer (acks=0): it is forwarded in its turn even if the client has closed."""
        self.all_read = False
        """Everything that the client has sent so far has been read."""
        self.kept_bytes: int | None = None
        """The client has closed, and the request is kept: this was received on the connection and not forwarded,"""
        self.kept_until_ms = 0.0
        """and it is dropped at this time."""


class Grace:
    """The last part of a SASL session, in which a client is not muted so that it can log in again (KIP-368)."""

    def __init__(self) -> None:
        self.renew_ms = self.expire_ms = math.inf
        """Between these times the client is not muted: its session ends then, and it has to log in again."""
        self.owed_until_ms = 0.0
        """End of a mute that was put off for that reason; it resumes once the client has logged in."""
        self._from_bytes: int | None = None
        """What the client had sent when a mute was first put off."""
        self._again = True
        """The second such time of this session is still available."""

    def defer(self, until_ms: float, now_ms: float, taken_bytes: int) -> float:
        """When a mute until `until_ms` ends, of a client that has sent `taken_bytes`: earlier, if it has to log in
        before."""
        if (
            until_ms > self.renew_ms
            and now_ms < self.expire_ms
            and (now_ms < self.renew_ms or self.passes(now_ms, taken_bytes))
        ):
            self.owed_until_ms = max(self.owed_until_ms, until_ms)
            return self.renew_ms
        return until_ms

    def owed_ms(self, now_ms: float) -> int:
        """What is left of a mute that was put off; 0 for none."""
        return math.ceil(self.owed_until_ms - now_ms) if self.owed_until_ms > now_ms >= self.renew_ms else 0

    def may_renew(self, now_ms: float, taken_bytes: int) -> bool:
        """Whether a client that should wait may pass so that its login can be read (KIP-368)."""
        return self.renew_ms <= now_ms < self.expire_ms and self.passes(now_ms, taken_bytes)

    def passes(self, now_ms: float, taken_bytes: int) -> bool:
        """Whether the client may pass now, or once more before its session ends.

        In the last part of its session, no more may come than could have been in flight to us. If it is more, the
        client ignores throttles (as librdkafka does) and its timer for the login is late. The login comes after
        everything sent before that timer fires: all this gets a second chance, half way to the end.
        """
        if self._from_bytes is None:
            self._from_bytes = taken_bytes
        if taken_bytes - self._from_bytes < MAX_PASSING_BYTES:
            return True
        if not self._again:
            return False
        self._again = False
        self._from_bytes = None
        self.renew_ms = (now_ms + self.expire_ms) / 2.0
        return True


class Arrivals:
    """When bytes arrived that had to wait. The age of a request counts from its arrival."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []
        """How many bytes had come at which times,"""
        self.total = 0
        """and at the last of these times."""

    def note(self, total: int, now_ms: float) -> None:
        """So many bytes have come in all."""
        marks = self._marks
        if total <= self.total:
            return
        self.total = total
        at_ms = math.ceil(now_ms / MARK_MS) * float(MARK_MS)
        if marks and at_ms == marks[len(marks) - 1][1]:
            marks.pop()
        elif len(marks) == MAX_MARKS:
            del marks[0 : MAX_MARKS - 1 : 2]
        marks.append((total, at_ms))

    def came_ms(self, before: int, now_ms: float) -> float:
        """When the byte came that follows `before` others: a moment too late rather than too early."""
        marks = self._marks
        while marks and marks[0][0] <= before:
            del marks[0]
        return min(marks[0][1], now_ms) if marks else now_ms


class Slices:
    """How long one throttle of a connection lasts at most, so that the heartbeats of group members get through."""

    def __init__(self) -> None:
        self.most_ms = UNSLICED_MS
        self.rest_until_ms = 0.0
        """The end of a Fetch's throttle that was cut to a slice: the next Fetch that comes before it gets the rest."""
        self._members_until_ms = math.inf
        """After this time no member is left on the connection: one has left the group, and no heartbeat follows."""

    def cut(self, delay_ms: int, now_ms: float) -> int:
        """The part of a throttle of `delay_ms` that lasts now."""
        if now_ms > self._members_until_ms:
            self.most_ms, self._members_until_ms = UNSLICED_MS, math.inf
        return min(delay_ms, self.most_ms)

    def carries(self, session_ms: int | None) -> None:
        """The connection carries heartbeats of a group's member, which is expelled when none comes within `session_ms`.
        None: it may have joined on another connection."""
        self._members_until_ms = math.inf
        if session_ms is None:
            if self.most_ms != UNSLICED_MS:
                return
            session_ms = UNKNOWN_SESSION_MS
        self.most_ms = min(self.most_ms, max(session_ms // SLICES, MIN_SLICE_MS))

    def leaves(self, now_ms: float) -> None:
        """A member leaves its group. Others on the connection heartbeat within a session; if none does, throttles are
        whole again."""
        self._members_until_ms = now_ms + SLICES * self.most_ms


class Transactions:
    """The transactions of a connection. One times out if its end waits as long as its records."""

    def __init__(self) -> None:
        self.unannounced_ms = -1.0
        """Shorter throttles of Produce requests are not announced; below 0: there are no transactions."""
        self._requests_left = 0
        """How many more requests may pass the mute of a Produce request; 0: none, or EndTxn has passed."""
        self._strict_until_ms = 0.0
        """The end of the mutes by other quotas, which nothing passes."""

    def seen(self) -> None:
        """The connection carries transactions."""
        self.unannounced_ms = max(self.unannounced_ms, 0.0)

    def muted(self, kind: Kind, until_ms: float) -> None:
        """A request has muted the client."""
        if kind is PRODUCED:
            self._requests_left = MAX_ENDING if self.unannounced_ms > 0.0 else 0
        else:
            self._strict_until_ms = max(self._strict_until_ms, until_ms)

    def lets_end(self, api_key: int, now_ms: float) -> bool:
        """Whether this request of the muted client passes to end a transaction (`ENDING`): one EndTxn after each
        Produce request that mutes. It costs no bytes."""
        lets = self._requests_left > 0 and api_key in ENDING and now_ms >= self._strict_until_ms
        if lets:
            self._requests_left = 0 if api_key == _END_TXN else self._requests_left - 1
        return lets


class Throttle:
    """One client's throttle. It also stands for the connection in the queues of groups."""

    def __init__(self, ledger: Ledger, counters: Counters) -> None:
        self._ledger = ledger
        self._counters = counters
        self.state = Throttled.FREE
        self.until_ms = 0.0
        """The client is not read before this time; QUEUED: when to ask again."""
        self.place: Place | None = None
        """QUEUED: where."""
        self.promised: QuotaCounter | None = None
        """The group that expects this connection's next request after its mute."""
        self.grace = Grace()
        self.client_bytes = 0
        """Bytes received from the client,"""
        self.due_bytes = 0
        """and how many it will be when the latest Produce request that the gate was asked about is whole."""
        self.slices = Slices()
        self.transactions = Transactions()
        self.gone = False
        """The client has closed its side while it was muted or its request was queued."""
        self.announced_until_ms = 0.0
        """The end of the latest throttle that a response announced."""
        self._announce_again_ms = -math.inf
        """Short throttles are not announced before this time."""
        self.due_ms = 0.0
        """The queued request is refused at this time; infinite: never; 0: not decided yet; negative: more of it must
        arrive first."""
        self.refuse_to = 0
        """Produce requests that begin before so many `client_bytes` are refused together with one before them,"""
        self._together_ms = 0.0
        """and those that begin before this time."""
        self._resume_ms = 0.0
        """The end of a mute that a refusal interrupts."""
        self.arrivals: Final = Arrivals()

    def carries(self, session_ms: int | None) -> None:
        """The connection carries heartbeats of a group's member (see `Slices.carries`): throttles are cut to slices of
        its session. The rest of a debt delays the next requests in the gate, and a Fetch's is kept here. A broker cuts
        none, nor does `pacing: kafka`."""
        if self._ledger.settings.smooth:
            self.slices.carries(session_ms)

    def answers_within(self, timeout_ms: int) -> None:
        """The client of transactions waits so long for an answer. Its EndTxn waits here for the end of a throttle.
        After a response with a throttle time, Java's client sends EndTxn only after its whole `request.timeout.ms`. A
        broker announces each throttle, and so does `pacing: kafka`."""
        if self._ledger.settings.smooth:
            self.transactions.unannounced_ms = timeout_ms * UNANNOUNCED_SHARE

    def lets_end(self, api_key: int, now_ms: float) -> bool:
        """Whether this request of the muted client passes to end a transaction (`Transactions.lets_end`)."""
        lets = self.state is _MUTED and self.transactions.lets_end(api_key, now_ms)
        if lets:
            self.due_ms = 0.0
        return lets

    # ---- after a request --------------------------------------------------------------------------------------------

    def impose(
        self, pending: InFlightRequest, kind: Kind, delay_ms: int, now_ms: float, charged: float | None = None
    ) -> None:
        """Do not read the client for `delay_ms`, because of this request.

        A request may exceed several quotas, some when it comes and some when its response does. The throttle is the
        longest of them, not their sum, and is attributed to that quota alone; of equal ones to the later, as in Kafka
        to the request quota (`KafkaApis`, which compares the same two). `charged` is what that quota was charged for
        the request.

        Smooth pacing mutes for a moment after nearly each request. Not each is announced: Java's client logs a
        line for every response with a throttle time.
        """
        slice_ms = self.slices.cut(delay_ms, now_ms)
        if delay_ms > slice_ms and kind is FETCHED:
            self.slices.rest_until_ms = now_ms + delay_ms
        delay_ms = slice_ms
        until_ms = now_ms + delay_ms
        self.transactions.muted(kind, until_ms)
        penalty = pending.penalty
        if penalty is None:
            penalty = pending.penalty = Penalty(kind)
        if self._announces(pending, kind, delay_ms, now_ms):
            if not penalty.announced_until_ms:
                self._counters.throttled_responses += 1
            penalty.announced_until_ms = max(penalty.announced_until_ms, until_ms)
            self.announced_until_ms = max(self.announced_until_ms, until_ms)
            self._announce_again_ms = now_ms + ANNOUNCE_AGAIN_MS
        if until_ms >= penalty.until_ms:
            penalty.kind, penalty.delay_ms, penalty.until_ms, penalty.charged = kind, delay_ms, until_ms, charged
        self._mute(until_ms, now_ms)

    def impose_unanswered(self, account: Account, kind: Kind, delay_ms: int, now_ms: float, charged: float) -> None:
        """The same for a Produce request that gets no response (acks=0)."""
        delay_ms = self.slices.cut(delay_ms, now_ms)
        self._ledger.note_throttle(account, kind, delay_ms, at_ms=now_ms, api_key=PRODUCE, amount=charged)
        self._mute(now_ms + delay_ms, now_ms)

    def note(self, pending: InFlightRequest) -> None:
        """The request is finished: record the throttle it caused, under the one quota that caused it."""
        penalty = pending.penalty
        if penalty is not None:
            self._ledger.note_throttle(
                pending.account,
                penalty.kind,
                penalty.delay_ms,
                at_ms=penalty.until_ms - penalty.delay_ms,
                api_key=pending.api_key,
                amount=penalty.charged,
            )

    def _announces(self, pending: InFlightRequest, kind: Kind, delay_ms: int, now_ms: float) -> bool:
        """Whether the response to this request announces a throttle of `delay_ms`."""
        if delay_ms < self.transactions.unannounced_ms and kind is PRODUCED:
            return False
        group = pending.account.meter(kind).group
        short_ms = SHORT_FETCH_MS if kind is FETCHED else SHORT_MS
        return group is None or not group.paced or delay_ms >= short_ms or now_ms >= self._announce_again_ms

    def renewed(self, lifetime_ms: int, now_ms: float) -> None:
        """The client has logged in, and has to log in again before the end of a session of `lifetime_ms`; 0: never."""
        owed_until_ms = self.grace.owed_until_ms
        self.grace = Grace()
        if lifetime_ms:
            self.grace.expire_ms = now_ms + lifetime_ms
            self.grace.renew_ms = self.grace.expire_ms - renewal_ms(lifetime_ms)
        if owed_until_ms > now_ms:
            self._mute(owed_until_ms, now_ms)

    def _mute(self, until_ms: float, now_ms: float) -> None:
        until_ms = self.grace.defer(until_ms, now_ms, self.client_bytes)
        self._step(Event.MUTE)
        if self.state is _REFUSING:
            self._resume_ms = max(self._resume_ms, until_ms)
        else:
            self.until_ms = max(self.until_ms, until_ms)

    # ---- before a request -------------------------------------------------------------------------------------------

    def queue(
        self, kind: Kind, group: QuotaCounter | None, wait_ms: float, now_ms: float, *, unanswered: bool = False
    ) -> None:
        """Do not read the client for `wait_ms`: its next request waits in `group`'s queue."""
        self._step(Event.QUEUE)
        place = self.place
        if place is None:
            place = self.place = Place(kind, group, now_ms)
        elif place.group is not group:
            if place.group is not None:
                place.group.leave_queue(self)
            place.kind, place.group = kind, group
        place.unanswered = unanswered
        until_ms = now_ms + wait_ms
        if now_ms < self.grace.renew_ms < until_ms:
            until_ms = self.grace.renew_ms  # it may pass then
        if now_ms < self.due_ms < until_ms:
            until_ms = self.due_ms  # before it is refused, the group may have paid
        self.until_ms = max(self.until_ms, until_ms)

    def admit(self, account: Account, api_key: int, amount: float, now_ms: float) -> None:
        """The queued request, if there is one, is forwarded now: record how long it has waited."""
        place = self.place
        if place is None:
            return
        self._step(Event.ADMIT)
        self._waited(place, account, api_key, amount, now_ms)

    def _waited(self, place: Place, account: Account, api_key: int, amount: float, now_ms: float) -> None:
        self._leave(place)
        if place.group is not None and place.group is not self.promised:
            place.group.leave_queue(self)  # its limits changed; otherwise it left the queue when it was let through
        waited_ms = round(now_ms - place.since_ms)
        self._ledger.note_throttle(
            account, place.kind, waited_ms, at_ms=now_ms, api_key=api_key, amount=amount, queued=True
        )

    # ---- a queued request that is refused ---------------------------------------------------------------------------

    def arrived(self, unread_bytes: int, now_ms: float) -> None:
        """So many bytes have come that were not received, and the client is not read."""
        self.arrivals.note(self.client_bytes + unread_bytes, now_ms)

    def follows(self, before: int, now_ms: float) -> bool:
        """Whether a Produce request, which begins after `before` bytes, is refused together with one before it: the
        client sent it before it knew of that, and an idempotent one's sequence would have a gap."""
        if before < self.refuse_to or now_ms < self._together_ms:
            return True
        self.refuse_to = 0
        return False

    def refuse(self, account: Account, size_bytes: int, now_ms: float) -> None:
        """The queued request is thrown away. Its place in the queue stays."""
        place = self.place
        self._resume_ms = self.until_ms
        if place is not None:
            self._resume_ms = 0.0
            self._waited(place, account, PRODUCE, size_bytes, now_ms)
        self._step(Event.REFUSE)
        self.until_ms = 0.0

    def refused(self, wait_ms: int, now_ms: float, *, alone: bool = False) -> int:
        """All of it has been read. Returns the throttle time that is announced; `wait_ms` is for those before it.
        `alone`: what comes soon after it may be what has to come first."""
        if not (alone or self.refuse_to):
            self.refuse_to = max(self.arrivals.total, self.client_bytes)
            self._together_ms = now_ms + REFUSED_TOGETHER_MS
        self._step(Event.OVER)
        if self._resume_ms > now_ms:
            self._step(Event.MUTE)
            self.until_ms = self._resume_ms
        announced_ms = min(max(wait_ms, math.ceil(self._resume_ms - now_ms)), self.slices.most_ms)
        self.announced_until_ms = max(self.announced_until_ms, now_ms + announced_ms)
        self._counters.throttled_responses += announced_ms > 0
        return announced_ms

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the latest Produce request that the gate was asked about have not arrived yet."""
        return max(self.due_bytes - self.client_bytes, 0)

    # ---- time, and the end ------------------------------------------------------------------------------------------

    def blocks(self, now_ms: float) -> bool:
        """Whether nothing may be read from the client yet."""
        if self.until_ms > now_ms:
            return True
        if self.state is _MUTED:
            self._step(Event.DEADLINE)
        return False

    def client_gone(self) -> None:
        """The client has closed its side: others do not wait for its next request."""
        if not self.gone:
            self.gone = True
            if self.promised is not None and self.place is None:
                self.promised.leave_queue(self)

    def keeps(self, size_bytes: int, now_ms: float) -> bool:
        """Whether the queued request of a client that has gone is kept until its turn: if it expects no answer and is
        whole, its turn comes soon, and not too much is kept. `size_bytes` have been received and not forwarded."""
        place = self.place
        self.client_gone()
        if place is None or not place.unanswered or (place.all_read and self.missing_bytes):
            return False
        if place.kept_bytes is not None:
            return now_ms < place.kept_until_ms
        kept = self._ledger.kept
        if place.group is None or not kept.take(size_bytes):
            return False
        if not place.group.abandon(self, size_bytes, int(now_ms)):
            kept.give_back(size_bytes)
            return False
        place.kept_bytes, place.kept_until_ms = size_bytes, now_ms + MAX_KEPT_MS
        return True

    def close(self) -> None:
        """The connection ends: give up its place in any queue."""
        place = self.place
        if place is not None:
            self._leave(place)
        for group in (None if place is None else place.group, self.promised):
            if group is not None:
                group.leave_queue(self)
        self._enter(Throttled.FREE)

    def _leave(self, place: Place) -> None:
        self.place = None
        if place.kept_bytes is not None:
            self._ledger.kept.give_back(place.kept_bytes)

    def _step(self, event: Event) -> None:
        state = step(THROTTLE, self.state, event)
        if state is not self.state:
            self._enter(state)

    def _enter(self, state: Throttled) -> None:
        counters = self._counters
        if self.state is Throttled.FREE:
            self.due_ms = 0.0
        counters.connections.muted += (state is _MUTED) - (self.state is _MUTED)
        counters.connections.waiting += (state is _QUEUED) - (self.state is _QUEUED)
        self.state = state
