"""The gate of one shared counter: holds requests until the group's debt is paid (ADR 0026).

A mute stops the connection that caused it. The gate holds what a mute cannot: requests of connections that have not
been muted yet, of those that closed and reconnected, and of those whose mute was cut to `max_mute`. They wait in the
order of arrival, one place for each connection, and pass one by one as the debt is paid at the limit's rate.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil, inf
from typing import Final

from quota.pacing import LARGE_MS

GRACE_MS: Final = 200
"""A group may owe this much time's worth before its next request is held: connections that comply with throttles come
back at about the right moment, and should not be held as well."""
LOOK_AGAIN_MS: Final = 1000
"""A connection in the queue asks again after this time at the latest: limits are raised, and others leave the queue."""
LOOK_AGAIN_FIRST_MS: Final = 10
"""And no sooner than this."""
LATE_MS: Final = 100
"""A connection that does not ask within this time when it is next (perhaps its broker reads no more) is passed over; it
keeps the right to go first once it asks."""


class Place:
    """A connection's place in the queue."""

    __slots__ = ("ahead_ms", "asks_at", "cost_ms", "since")

    def __init__(self, ahead_ms: float, cost_ms: float, now: int) -> None:
        self.ahead_ms = ahead_ms
        """The cost of everything that had entered before it."""
        self.cost_ms = cost_ms
        self.since = now
        self.asks_at = now


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
        place = self._find(connection)
        if place is None:
            place = self._places[connection] = Place(self._entered_ms, cost_ms, now)
            self._entered_ms += cost_ms
        ahead_ms = max(place.ahead_ms - self._left_ms, 0.0)
        wait_ms = min(max(ceil(debt_ms + ahead_ms), LOOK_AGAIN_FIRST_MS), LOOK_AGAIN_MS)
        place.asks_at = now + wait_ms
        return wait_ms

    def since(self, connection: object, now: int) -> int:
        """Since when the connection has waited; `now` if it does not wait yet."""
        place = self._find(connection)
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

    def _find(self, connection: object) -> Place | None:
        return self._places.get(connection) or self._late.get(connection)

    def _pass_over(self, now: int) -> None:
        places = self._places
        while places:
            first, place = next(iter(places.items()))
            if now <= place.asks_at + LATE_MS:
                return
            self._late[first] = places.pop(first)


class Gate:
    """Decides which request passes next in one group: those of ordinary size queue separately from large ones
    (`LARGE_MS`).

    The debt of a large request is paid by half of the limit while requests of ordinary size use the other half
    (`Pacer.backlog_ms`), so they need not wait for it. A large request passes once everything is paid, and those that
    came after it wait for that.
    """

    __slots__ = ("_claimed_until", "_large", "_large_claimed_until", "_ordinary", "_promised", "_promised_ms")

    def __init__(self) -> None:
        # Connections that have passed: when they were told to come back, and what they are expected to send then (as
        # much as before).
        self._promised: OrderedDict[object, tuple[float, float]] = OrderedDict()
        self._promised_ms = 0.0
        self._ordinary = Queue()
        self._large = Queue()
        # Requests that have passed are charged when their last byte has been read. Until then they are claims, which
        # decay with time: a request that never ends delays no other for longer than it would have taken.
        self._claimed_until = -inf
        self._large_claimed_until = -inf

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._large)

    def ahead_ms(self, cost_ms: float) -> float:
        """For a request of this cost that has just passed: the cost of all others that will be forwarded before its
        connection's next one, because they wait already or were told to come back."""
        if cost_ms > LARGE_MS:
            return self._ordinary.waiting_ms + self._promised_ms + self._large.waiting_ms
        return self._ordinary.waiting_ms + max(self._promised_ms - cost_ms, 0.0)

    def before_ms(self, backlog_ms: float) -> float:
        """The cost of the held requests that pass before a request of ordinary size that came now."""
        large_ms = 0.0 if backlog_ms else min(self._large.waiting_ms, LARGE_MS * len(self._large))
        return self._ordinary.waiting_ms + large_ms

    def next_ms(self, paid_at: float, backlog_ms: float, all_paid_at: float, now: int) -> int:
        """How long until the next held request may pass, with debts as in :meth:`ask`, and all of them paid at
        `all_paid_at`; 0 if none is held, or one may pass as soon as it asks. Changes nothing."""
        ordinary, large = self._ordinary.longest_since(), self._large.longest_since()
        if ordinary is None and large is None:
            return 0
        until = max(paid_at, self._claimed_until)
        if ordinary is None or (large is not None and large <= ordinary and not backlog_ms):
            until = max(until, all_paid_at, self._large_claimed_until)
        return max(ceil(until - now - GRACE_MS), 0)

    def ask(self, connection: object, cost_ms: float, paid_at: float, backlog_ms: float, now: int) -> int:
        """May this connection's request pass, while the group is in debt until `paid_at`, and owes `backlog_ms` for
        large requests beyond it? 0: yes. Otherwise ask again after that many milliseconds; until then the connection
        has its place."""
        large = cost_ms > LARGE_MS
        queue, other = (self._large, self._ordinary) if large else (self._ordinary, self._large)
        other.leave(connection)  # under a higher limit a large request becomes an ordinary one
        self._keep_promises(connection, now)
        paid_at = max(paid_at, self._claimed_until)
        debt_ms = paid_at - now - GRACE_MS
        if large:
            debt_ms = max(debt_ms + backlog_ms, self._large_claimed_until - now - GRACE_MS)
        elif not backlog_ms and self._large.first_since(now) <= queue.since(connection, now):
            debt_ms = max(debt_ms, LOOK_AGAIN_FIRST_MS)  # a large request goes first
        if debt_ms > 0 or not queue.is_first(connection, now):
            return queue.enter(connection, cost_ms, debt_ms, now)
        queue.leave(connection)
        self._claimed_until = paid_at + min(cost_ms, LARGE_MS)
        if large:
            self._large_claimed_until = paid_at + cost_ms
        else:
            self._promised_ms += cost_ms
            self._promised[connection] = (max(paid_at, now) + self.ahead_ms(cost_ms) + cost_ms, cost_ms)
        return 0

    def rescale(self, factor: float, now: int) -> None:
        """The limit has changed from L to L / `factor`: claims, promises and queued costs are bytes, which take
        `factor` times as many milliseconds of the new limit. 100 kB are 10 s at 10 kB/s, and 1 s at 100 kB/s (0.1)."""
        self._ordinary.rescale(factor)
        self._large.rescale(factor)
        self._claimed_until = _later(self._claimed_until, factor, now)
        self._large_claimed_until = _later(self._large_claimed_until, factor, now)
        self._promised_ms *= factor
        for connection, (back_at, cost_ms) in list(self._promised.items()):
            self._promised[connection] = (_later(back_at, factor, now), cost_ms * factor)

    def leave(self, connection: object) -> None:
        """The connection ends, or has nothing to wait for any more."""
        self._ordinary.leave(connection)
        self._large.leave(connection)
        self._break_promise(connection)

    def _break_promise(self, connection: object) -> None:
        promised = self._promised.pop(connection, None)
        if promised is not None:
            self._promised_ms = self._promised_ms - promised[1] if self._promised else 0.0

    def _keep_promises(self, connection: object, now: int) -> None:
        """The connection has come back. Others that should have by now, and have not, are waited for no longer."""
        self._break_promise(connection)
        while self._promised:
            other, (back_at, _) = next(iter(self._promised.items()))
            if now <= back_at + LATE_MS:
                return
            self._break_promise(other)


def _later(until: float, factor: float, now: int) -> float:
    """A future time, scaled so that the rest until then takes `factor` times as long; a past time stays."""
    return until if until <= now else now + (until - now) * factor
