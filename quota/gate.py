"""The gate of one shared counter: queues requests until the group's debt is paid (ADR 0026).

A mute stops the connection that caused it. The gate queues what a mute cannot stop: requests of connections that
have not been muted yet, of those that closed and reconnected, and of those whose mute was cut to `max_mute`. They wait
in the order of arrival, one place for each connection, and pass one by one as the debt is paid at the limit's rate.

Requests that are kept although their client has gone (acks=0) have one place for all of them together, so they take
one connection's part of the limit from the live ones, however many connections they came on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, Protocol

from quota.pacing import LARGE_MS

GRACE_MS: Final = 200
"""A group may owe this much time's worth before its next request is queued: connections that comply with throttles come
back at about the right moment, and should not be queued as well."""
LOOK_AGAIN_MS: Final = 1000
"""A connection in the queue asks again after this time at the latest: limits are raised, a fleet's shares move, and
others leave the queue."""
LOOK_AGAIN_FIRST_MS: Final = 10
"""And no sooner than this."""
LATE_MS: Final = 100
"""A connection that does not ask within this time when it is next (perhaps its broker reads no more) is passed over; it
keeps the right to go first once it asks."""
MAX_KEPT_MS: Final = 10_000
"""A request is kept for a client that has gone if its turn comes within this time, and no longer."""
MAX_KEPT: Final = 32
"""At most this many such requests of one group are kept,"""
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""with at most this many bytes received on their connections;"""
MAX_KEPT_OF_ALL: Final = 256
"""at most this many of all groups,"""
MAX_KEPT_BYTES_OF_ALL: Final = 32 * 1024 * 1024
"""with at most this many bytes."""
MAX_REFUSED: Final = 8
"""A group may send at most this many times its limit in discarded requests; further ones wait as others do,"""
MAX_REFUSED_MS: Final = 30_000
"""and for at most this long at once."""
AWAY_MS: Final = 10_000
"""How long after its expected return a connection with a refused request keeps its place."""
REVIEW_MS: Final = 1000
"""How often it is reviewed whether a claimed request still arrives."""
LONGEST_ARRIVAL_MS: Final = 30_000
"""A request keeps its claim while it arrives fast enough to be whole in this time: a client's usual timeout."""

# Compared for each request: C numbers in compiled code (see the .pxd).
_LARGE_MS: Final[float] = LARGE_MS
_GRACE_MS: Final[float] = GRACE_MS
_REVIEW_MS: Final = REVIEW_MS


class Sender(Protocol):
    """A connection whose request passes before all of it has arrived."""

    @property
    def missing_bytes(self) -> int:
        """How many bytes of that request have not arrived yet."""


@dataclass(slots=True)
class Kept:
    """The requests of all groups that are kept although their client has gone: how many, and their bytes."""

    requests: int = 0
    bytes: int = 0

    def take(self, size_bytes: int) -> bool:
        """Keep one more request. False: it would be too many, or too much."""
        if self.requests >= MAX_KEPT_OF_ALL or self.bytes + size_bytes > MAX_KEPT_BYTES_OF_ALL:
            return False
        self.requests += 1
        self.bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """A request of :meth:`take` is no longer kept."""
        self.requests -= 1
        self.bytes -= size_bytes


@dataclass(slots=True)
class Place:
    """A connection's place in the queue."""

    ahead_ms: float
    """The cost of everything that had entered before it."""
    cost_ms: float
    since: int
    asks_at: int
    away_until: float = inf
    """Its request was refused: another one is expected until then."""


class Queue:
    """Connections that wait, in the order in which they came. Costs are milliseconds of the group's limit."""

    __slots__ = ("_entered_ms", "_late", "_left_ms", "_places")

    def __init__(self) -> None:
        self._places: OrderedDict[object, Place] = OrderedDict()
        self._late: dict[object, Place] = {}
        """Those that have been passed over."""
        self._entered_ms = 0.0
        self._left_ms = 0.0

    def __len__(self) -> int:
        return len(self._places) + len(self._late)

    def __contains__(self, connection: object) -> bool:
        return connection in self._places or connection in self._late

    def empty(self) -> bool:
        """Whether nobody waits."""
        return not (self._places or self._late)

    @property
    def waiting_ms(self) -> float:
        """The cost of all requests in the queue."""
        return max(self._entered_ms - self._left_ms, 0.0)

    def is_first(self, connection: object, now: int) -> bool:
        """Whether no other connection has to pass before this one."""
        if connection in self._late:
            return True
        self._pass_over(now)
        return next(iter(self._places), connection) is connection

    def enter(self, connection: object, cost_ms: float, debt_ms: float, now: int) -> int:
        """Queue the connection, while the debt is `debt_ms` too high; returns how long until it should ask again."""
        place = self.find(connection)
        if place is None:
            place = self._places[connection] = Place(self._entered_ms, cost_ms, now, now)
            self._entered_ms += cost_ms
        wait_ms = min(max(self._turn_ms(place, debt_ms), LOOK_AGAIN_FIRST_MS), LOOK_AGAIN_MS)
        place.asks_at = now + wait_ms
        place.away_until = inf
        return wait_ms

    def refuse(self, connection: object, debt_ms: float, now: int) -> int:
        """The connection's request is refused, and its place stays; returns how long until its turn, 0: it has no
        place."""
        place = self.find(connection)
        if place is None:
            return 0
        wait_ms = max(self._turn_ms(place, debt_ms), 0)
        place.away_until = now + wait_ms + AWAY_MS
        return wait_ms

    def _turn_ms(self, place: Place, debt_ms: float) -> int:
        """How long until its turn, if no other charge comes."""
        return ceil(debt_ms + max(place.ahead_ms - self._left_ms, 0.0))

    def asks_at(self, connection: object, at: int) -> None:
        """The connection in the queue asks again at this time, which another queue has decided."""
        place = self.find(connection)
        if place is not None:
            place.asks_at = at

    def since(self, connection: object, now: int) -> int:
        """Since when the connection has waited; `now` if it does not wait yet."""
        place = self.find(connection)
        return now if place is None else place.since

    def first_since(self, now: int) -> int:
        """Since when the first in the queue has waited; later than `now` if the queue is empty."""
        self._pass_over(now)
        return next((place.since for place in self._places.values()), now + 1)

    def longest_since(self) -> int | None:
        """Since when the longest waiting one has waited; None if the queue is empty. Changes nothing."""
        firsts = (next(iter(places.values()), None) for places in (self._late, self._places))
        return min((place.since for place in firsts if place is not None), default=None)

    def rescale(self, factor: float) -> None:
        """The limit has changed: requests cost `factor` times as many milliseconds of it as before."""
        self._entered_ms *= factor
        self._left_ms *= factor
        for places in (self._places, self._late):
            for place in places.values():
                place.ahead_ms *= factor
                place.cost_ms *= factor

    def leave(self, connection: object) -> None:
        """The connection has passed, or will never ask again."""
        place = self._places.pop(connection, None) or self._late.pop(connection, None)
        if place is not None:
            self._left_ms += place.cost_ms
            if not len(self):
                self._entered_ms = self._left_ms = 0.0

    def find(self, connection: object) -> Place | None:
        """The connection's place, if it has one."""
        return self._places.get(connection) or self._late.get(connection)

    def _pass_over(self, now: int) -> None:
        places = self._places
        while places:
            first, place = next(iter(places.items()))
            if now <= place.asks_at + LATE_MS:
                break
            self._late[first] = places.pop(first)
        while self._late:
            first, place = next(iter(self._late.items()))
            if now <= place.away_until:
                return
            self.leave(first)


class Turn:
    """What a request that has passed will be charged once its last byte has arrived."""

    __slots__ = ("cost_ms", "review_at", "sender", "since", "size_bytes")

    def __init__(self, sender: Sender, review_at: int) -> None:
        self.sender = sender
        self.size_bytes = self.cost_ms = 0.0
        self.since = 0
        self.review_at = review_at

    @property
    def arrived(self) -> float:
        """The part of the request that has arrived; 1: all of it, and it is charged."""
        return max(1.0 - self.sender.missing_bytes / self.size_bytes, 0.0)

    def arrives(self, now: int) -> bool:
        """Whether the request is not whole yet, and arrives fast enough."""
        return 1.0 > self.arrived >= (now - self.since) / LONGEST_ARRIVAL_MS


class Gate:
    """Decides which request passes next in one group: those of ordinary size queue separately from large ones
    (`LARGE_MS`).

    The debt of a large request is paid by half of the limit while requests of ordinary size use the other half
    (`Pacer.backlog_ms`), so they need not wait for it. A large request passes once everything is paid, and those that
    came after it wait for that.
    """

    __slots__ = (
        "_abandoned",
        "_abandoned_from",
        "_claimed_until",
        "_claims",
        "_kept_bytes",
        "_large",
        "_large_claimed_until",
        "_ordinary",
        "_promised",
        "_promised_ms",
        "_refused_until",
        "_review_at",
    )

    def __init__(self) -> None:
        # Connections that have passed: when they were asked to come back, and what they are expected to send then (as
        # much as before).
        self._promised: OrderedDict[object, tuple[float, float]] = OrderedDict()
        self._promised_ms = 0.0
        self._ordinary = Queue()
        self._large = Queue()
        # Connections whose client has gone. The queue itself is the place that they share in the other two.
        self._abandoned = Queue()
        self._abandoned_from = -inf  # the next one's turn, as a live connection would learn it
        self._kept_bytes: dict[object, int] = {}  # received on each of those connections
        # Requests that have passed are charged when their last byte has been read. Until then they are claims, which
        # decay with time. A claim is for what arrives: when the connection ends, or sends too little, the claim for
        # the bytes that are missing is released.
        self._claimed_until = -inf
        self._large_claimed_until = -inf
        self._claims: OrderedDict[object, Turn] = OrderedDict()  # the next one that is reviewed comes first
        self._review_at = 0  # no claim is reviewed before this time
        self._refused_until = -inf  # until then `MAX_REFUSED` limits are used by what was thrown away

    def __len__(self) -> int:
        shared = self._abandoned in self._ordinary or self._abandoned in self._large
        return len(self._ordinary) + len(self._large) + len(self._abandoned) - shared

    def ahead_ms(self, cost_ms: float) -> float:
        """For a request of this cost that has just passed: the cost of all others that will be forwarded before its
        connection's next one, because they wait already or were asked to come back."""
        if cost_ms > LARGE_MS:
            return self._ordinary.waiting_ms + self._promised_ms + self._large.waiting_ms
        return self._ordinary.waiting_ms + max(self._promised_ms - cost_ms, 0.0)

    def before_ms(self, backlog_ms: float) -> float:
        """The cost of the queued requests that pass before a request of ordinary size that came now."""
        large_ms = 0.0 if backlog_ms else min(self._large.waiting_ms, LARGE_MS * len(self._large))
        return self._ordinary.waiting_ms + large_ms

    def next_ms(self, paid_at: float, backlog_ms: float, all_paid_at: float, now: int) -> int:
        """How long until the next queued request may pass, with debts as in :meth:`ask`, and all of them paid at
        `all_paid_at`; 0 if none is queued, or one may pass as soon as it asks. Changes nothing."""
        ordinary, large = self._ordinary.longest_since(), self._large.longest_since()
        if ordinary is None and large is None:
            return 0
        until = max(paid_at, self._claimed_until)
        if ordinary is None or (large is not None and large <= ordinary and not backlog_ms):
            until = max(until, all_paid_at, self._large_claimed_until)
        return max(ceil(until - now - GRACE_MS), 0)

    def ask(
        self,
        connection: object,
        cost_ms: float,
        paid_at: float,
        backlog_ms: float,
        now: int,
        *,
        arriving: tuple[Sender, float] | None = None,
    ) -> int:
        """May this connection's request pass, while the group is in debt until `paid_at`, and owes `backlog_ms` for
        large requests beyond it? 0: yes. Otherwise ask again after that many milliseconds; until then the connection
        has its place. `arriving`: the request is not whole yet; who sends it, and its size in bytes."""
        large = cost_ms > LARGE_MS
        queue, other = (self._large, self._ordinary) if large else (self._ordinary, self._large)
        expected = self._keep_promises(connection, now)
        self._review_claims(now)
        paid_at = max(paid_at, self._claimed_until)
        debt_ms = paid_at - now - GRACE_MS
        abandoned = self._abandoned if connection in self._abandoned else None
        if abandoned is not None:
            if not abandoned.is_first(connection, now) or now < self._abandoned_from:
                return abandoned.enter(connection, cost_ms, max(debt_ms, self._abandoned_from - now), now)
        elif len(self._abandoned) and not expected and connection not in queue:
            debt_ms = max(debt_ms, LOOK_AGAIN_FIRST_MS)  # in a moment it shows whether this client has gone as well
        place = connection if abandoned is None else abandoned
        other.leave(place)  # under a higher limit a large request becomes an ordinary one
        if large:
            debt_ms = max(debt_ms + backlog_ms, self._large_claimed_until - now - GRACE_MS)
        elif not backlog_ms and self._large.first_since(now) <= queue.since(place, now):
            debt_ms = max(debt_ms, LOOK_AGAIN_FIRST_MS)  # a large request goes first
        if debt_ms > 0 or not queue.is_first(place, now):
            wait_ms = queue.enter(place, cost_ms, debt_ms, now)
            if abandoned is not None:
                abandoned.asks_at(connection, now + wait_ms)
            return wait_ms
        queue.leave(place)
        self._pass(paid_at, cost_ms)
        if abandoned is not None:
            self._forget(connection)
            self._abandoned_from = max(paid_at, now) + self._ordinary.waiting_ms + self._promised_ms + cost_ms
        elif not large:
            self._promised_ms += cost_ms
            self._promised[connection] = (max(paid_at, now) + self.ahead_ms(cost_ms) + cost_ms, cost_ms)
        if arriving is not None:
            sender, size_bytes = arriving
            self._claim(sender, size_bytes, cost_ms, now)
        return 0

    def claim(self, sender: Sender, size_bytes: float, cost_ms: float, paid_at: float, now: int) -> bool:
        """Let a request that is still arriving pass, if it fits in the group's window and nobody waits. `paid_at`
        is in the past, as the group is not in debt. False: use :meth:`ask`."""
        if self._promised:
            self._keep_promises(sender, now)
        self._review_claims(now)
        from_ms = paid_at if paid_at > self._claimed_until else self._claimed_until
        if from_ms > now + _GRACE_MS or (cost_ms > _LARGE_MS and self._large_claimed_until > now + _GRACE_MS):
            return False
        if not (self._ordinary.empty() and self._large.empty() and self._abandoned.empty()):
            return False
        self._pass(from_ms, cost_ms)
        self._claim(sender, size_bytes, cost_ms, now)
        return True

    def _pass(self, paid_at: float, cost_ms: float) -> None:
        """A request passes: until it is charged, its cost is added to a debt that lasts until `paid_at`."""
        large = cost_ms > _LARGE_MS
        self._claimed_until = paid_at + (_LARGE_MS if large else cost_ms)
        if large:
            self._large_claimed_until = paid_at + cost_ms

    def _claim(self, sender: Sender, size_bytes: float, cost_ms: float, now: int) -> None:
        turn = self._claims.get(sender)
        if turn is None:
            turn = self._claims[sender] = Turn(sender, now + _REVIEW_MS)
        turn.size_bytes, turn.cost_ms, turn.since = size_bytes, cost_ms, now

    def refuse(self, connection: object, cost_ms: float, paid_at: float, backlog_ms: float, now: int) -> int | None:
        """A queued request of this cost is to be thrown away: how long until the connection's turn, which stays; None:
        so many were that this one has to wait. Debts are those of :meth:`ask`."""
        refused_until = max(self._refused_until, now) + cost_ms / MAX_REFUSED
        if refused_until > now + MAX_REFUSED_MS:
            return None
        self._refused_until = refused_until
        debt_ms = max(paid_at, self._claimed_until) - now - GRACE_MS
        queue = self._ordinary if connection in self._ordinary else self._large
        return queue.refuse(connection, debt_ms + (backlog_ms if queue is self._large else 0.0), now)

    def abandon(self, connection: object, size_bytes: int, paid_at: float, backlog_ms: float, now: int) -> bool:
        """The client of this queued request has gone, but the request is to be forwarded in its turn: the connection
        shares one place with all others like it. False: its turn is too far away (`MAX_KEPT_MS`), it has no place, or
        too much is kept. `size_bytes` have been received on the connection; debts are those of :meth:`ask`."""
        kept = self._kept_bytes
        if len(kept) >= MAX_KEPT or sum(kept.values()) + size_bytes > MAX_KEPT_BYTES:
            return False
        queue = self._ordinary if connection in self._ordinary else self._large
        place = queue.find(connection)
        if place is None:
            return False
        cost_ms = place.cost_ms
        debt_ms = max(paid_at, self._claimed_until) - now
        if queue is self._large:
            debt_ms = max(debt_ms + backlog_ms, self._large_claimed_until - now)
        # All others take a turn before each of the abandoned ones.
        others_ms = self._ordinary.waiting_ms + self._large.waiting_ms - cost_ms
        turn_ms = max(debt_ms, 0.0) + self._abandoned.waiting_ms + others_ms * (len(self._abandoned) + 1)
        if turn_ms > MAX_KEPT_MS:
            return False
        queue.leave(connection)
        self._abandoned.enter(connection, cost_ms, debt_ms, now)
        kept[connection] = size_bytes
        return True

    def rescale(self, factor: float, now: int) -> None:
        """The limit has changed from L to L / `factor`: claims, promises and queued costs are bytes, which take
        `factor` times as many milliseconds of the new limit. 100 kB are 10 s at 10 kB/s, and 1 s at 100 kB/s (0.1)."""
        for queue in (self._ordinary, self._large, self._abandoned):
            queue.rescale(factor)
        for claim in self._claims.values():
            claim.cost_ms *= factor
        self._abandoned_from = _later(self._abandoned_from, factor, now)
        self._refused_until = _later(self._refused_until, factor, now)
        self._claimed_until = _later(self._claimed_until, factor, now)
        self._large_claimed_until = _later(self._large_claimed_until, factor, now)
        self._promised_ms *= factor
        for connection, (back_at, cost_ms) in list(self._promised.items()):
            self._promised[connection] = (_later(back_at, factor, now), cost_ms * factor)

    def leave(self, connection: object) -> None:
        """The connection ends, or has nothing to wait for any more."""
        self._ordinary.leave(connection)
        self._large.leave(connection)
        self._forget(connection)
        if not len(self._abandoned):
            self._ordinary.leave(self._abandoned)
            self._large.leave(self._abandoned)
        self._break_promise(connection)
        self._release(connection)

    def _forget(self, connection: object) -> None:
        self._abandoned.leave(connection)
        self._kept_bytes.pop(connection, None)

    def _release(self, connection: object) -> None:
        """The claim, if any, ends; what has arrived is charged, and what is missing will not arrive."""
        claim = self._claims.pop(connection, None)
        if claim is None:
            return
        arrived_ms = claim.cost_ms * claim.arrived
        self._claimed_until -= min(claim.cost_ms, LARGE_MS) - min(arrived_ms, LARGE_MS)
        if claim.cost_ms > LARGE_MS:
            self._large_claimed_until -= claim.cost_ms - arrived_ms

    def _review_claims(self, now: int) -> None:
        """Release the claims of requests that hardly arrive."""
        if now < self._review_at:
            return
        self._review_at = now + _REVIEW_MS
        while self._claims:
            turn = next(iter(self._claims.values()))
            if now < turn.review_at:
                self._review_at = turn.review_at
                return
            if now < turn.since + _REVIEW_MS or turn.arrives(now):
                turn.review_at = now + _REVIEW_MS
                self._claims.move_to_end(turn.sender)
            else:
                self._release(turn.sender)

    def _break_promise(self, connection: object) -> bool:
        promised = self._promised.pop(connection, None)
        if promised is not None:
            self._promised_ms = self._promised_ms - promised[1] if self._promised else 0.0
        return promised is not None

    def _keep_promises(self, connection: object, now: int) -> bool:
        """The connection has come back; returns whether it was expected. Others that should have come by now, and have
        not, are waited for no longer."""
        expected = self._break_promise(connection)
        while self._promised:
            other, (back_at, _) = next(iter(self._promised.items()))
            if now <= back_at + LATE_MS:
                break
            self._break_promise(other)
        return expected


def _later(until: float, factor: float, now: int) -> float:
    """A future time, scaled so that the rest until then takes `factor` times as long; a past time stays."""
    return until if until <= now else now + (until - now) * factor
