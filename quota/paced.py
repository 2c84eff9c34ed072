"""Counters of groups that pay their debt before more of their requests are forwarded (ADR 0026)."""

from math import inf
from typing import Final, cast

from quota.counter import NO_LINE, LedgerSettings, Line
from quota.entity import CounterKey, Kind
from quota.gate import GRACE_MS, Gate, Sender
from quota.pacing import LARGE_MS, SLACK_MS, TOLERANCE_MS, Pacer
from quota.rate import MAX_THROTTLE_MS, round_half_up, throttle_ms
from quota.window import MAX_RENEWING_BYTES, WindowCounter

MAX_RENEWING_MS: Final = 10_000
"""So that clients can log in again, no more may pass unpaid than the limit allows in this time."""
MAX_BUSY_DEBT_MS: Final = 30_000
"""The most request time that a group ever owes, as time of its limit. Requests of all kinds wait for it, heartbeats
too, and consumers must not lose their group membership over it (`session.timeout.ms` is 45 s)."""
_LEARN: Final = 1 / 16
"""Weight of the newest value in a running mean."""


def mean_with(value: float, mean: float | None) -> float:
    """The running mean after this value; None: it is the first."""
    if mean is None:
        return value
    known = mean
    return known + (value - known) * _LEARN


class DebtCounter(WindowCounter):
    """A group whose requests wait at a gate while it is in debt: from a violation on, an *episode*, its pacer has the
    debt."""

    __slots__ = ("_gate", "pacer")

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int, pacer: Pacer) -> None:
        super().__init__(kind, key, settings, now)
        self.pacer = pacer
        self._gate: Gate | None = None  # created when a connection is first queued

    def _rescale(self, factor: float, now: int) -> None:
        self.pacer.rescale(factor, now)
        if self._gate is not None:
            self._gate.rescale(factor, now)

    def _in_episode(self, before: int, now: int) -> bool:
        """Whether an episode goes on at `now`, after the last charge at `before`; one that has been calm ends."""
        self.may_queue = self.may_queue and not self._calm(before, now)
        return self.may_queue

    def _calm(self, before: int, now: int) -> bool:
        reach_ms = self.rate.reach_ms
        return self.pacer.calm(now, before + reach_ms, reach_ms)

    def _delay(self, amount: float, observed: float, limit: float, before: int, now: int) -> int:
        goes_on = self._in_episode(before, now)
        delay = WindowCounter._delay(self, amount, observed, limit, before, now) if observed > self._watched else 0
        if goes_on:
            self.pacer.note_rate(observed / limit, now)
            return self._pace(amount, limit, delay, now)
        if observed > limit and not self.shadow:
            self._begin(throttle_ms(observed, limit, self.rate.window_ms), now)
        return delay

    def _begin(self, delay: int, now: int) -> None:
        self.may_queue = True
        self.pacer.begin(now, delay)

    def _pace(self, amount: float, limit: float, delay: int, now: int) -> int:
        """Charge the pacer in an episode; returns the delay, at least Kafka's."""
        raise NotImplementedError

    def refund(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.refund`."""
        paced = self._in_episode(self.last_ms, max(now, self.last_ms))
        super().refund(amount, now)
        if paced and self.limit is not None:
            self.pacer.give_back(amount * self._unit / self.limit * 1000.0)

    def debt_ms(self, now: int) -> float:
        """See :meth:`WindowCounter.debt_ms`."""
        return self.pacer.owed_ms(now) if self.may_queue else 0.0

    def owes(self, now: int) -> bool:
        """See :meth:`QuotaCounter.owes`."""
        return super().owes(now) or self.waiting > 0

    def owed_ms(self, now: int) -> int:
        """See :meth:`QuotaCounter.owed_ms`."""
        owed_ms = int(self.debt_ms(now))
        return owed_ms if owed_ms > max(self.throttled_until - now, 0) + GRACE_MS else 0

    def forgettable(self, now: int) -> bool:
        """See :meth:`QuotaCounter.forgettable`."""
        return super().forgettable(now) and (not self.may_queue or self._calm(self.last_ms, max(now, self.last_ms)))

    def queue(self, connection: object, amount: float, now: int, whole: bool = False) -> int:
        """See :meth:`QuotaCounter.queue`."""
        if now < self.last_ms:
            now = self.last_ms
        arrives = not whole and amount > 0
        if self.limit is None or self.shadow or not (self.may_queue or arrives):
            self.leave_queue(connection)
            return 0
        if self.may_queue:
            self.pacer.pay_backlog(now)
        elif self.claim(cast(Sender, connection), amount, now):
            return 0
        gate, limit = self._open_gate(), self.limit
        cost_ms = self._cost_ms(amount, limit)
        arriving = (cast(Sender, connection), amount) if arrives else None
        return gate.ask(connection, cost_ms, *self._debts(limit, now), now, arriving=arriving)

    def claim(self, connection: Sender, amount: float, now: int) -> bool:
        """See :meth:`QuotaCounter.claim`."""
        if self.limit is None or self.shadow:
            self.leave_queue(connection)
            return True
        if self.may_queue:
            return False
        gate, limit = self._open_gate(), self.limit
        if now < self.last_ms:
            now = self.last_ms
        return gate.claim(connection, amount, self._cost_ms(amount, limit), self._paid_at(limit, now), now)

    def refuse(self, connection: object, amount: float, now: int) -> int | None:
        """See :meth:`QuotaCounter.refuse`."""
        limit, now = self.limit, max(now, self.last_ms)
        if limit is None or self.shadow or not self.may_queue:
            return None
        gate, cost_ms = self._open_gate(), self._cost_ms(amount, limit)
        wait_ms = gate.refuse(connection, cost_ms, *self._debts(limit, now), now)
        return None if wait_ms is None else self._capped(wait_ms)

    def abandon(self, connection: object, size_bytes: int, now: int) -> bool:
        """See :meth:`QuotaCounter.abandon`."""
        limit, gate = self.limit, self._gate
        if limit is None or gate is None:
            return False
        now = max(now, self.last_ms)
        return gate.abandon(connection, size_bytes, *self._debts(limit, now), now)

    def _open_gate(self) -> Gate:
        """The gate, made when it is first needed."""
        gate = self._gate
        if gate is None:
            gate = self._gate = Gate()
        return gate

    def _cost_ms(self, amount: float, limit: float) -> float:
        """The expected cost, as a time of the limit: bytes / (bytes/s), or busy ms * 0.1 / percent."""
        return amount * self._unit / limit * 1000.0

    def _debts(self, limit: float, now: int) -> tuple[float, float]:
        """Until when the group is in debt, and its debt beyond that for large requests."""
        if not self.may_queue:
            return self._paid_at(limit, now), 0.0
        paid_at, backlog_ms = self.pacer.debts(now)
        if backlog_ms:
            # While the large request is in the window, Kafka's delay would apply to every request.
            paid_at = max(paid_at, float(now + WindowCounter._due(self, limit, now) - LARGE_MS))
        return paid_at, backlog_ms

    def _paid_at(self, limit: float, now: int) -> float:
        """Until when the group has paid, outside an episode: in the past, as what its window has left is a credit."""
        total, window_ms = self.rate.peek(now)
        return now - (window_ms - total / limit * 1000.0)

    def line(self, now: int) -> Line:
        """See :meth:`QuotaCounter.line`."""
        limit, gate = self.limit, self._gate
        if limit is None or self.shadow or not (self.may_queue or self.waiting):
            return NO_LINE
        now = max(now, self.last_ms)
        paid_at, backlog_ms = self._debts(limit, now)
        debt_ms = max(int(self.debt_ms(now)), 0)
        newcomer_ms = paid_at - now - GRACE_MS
        next_ms = 0
        if gate is not None:
            newcomer_ms += gate.before_ms(backlog_ms)
            next_ms = gate.next_ms(paid_at, backlog_ms, now + debt_ms, now)
        return Line(self.waiting, next_ms, max(round_half_up(newcomer_ms), 0), debt_ms)

    def leave_queue(self, connection: object) -> None:
        """See :meth:`QuotaCounter.leave_queue`."""
        if self._gate is not None:
            self._gate.leave(connection)

    @property
    def waiting(self) -> int:
        """See :attr:`QuotaCounter.waiting`."""
        return 0 if self._gate is None else len(self._gate)


class BusyCounter(DebtCounter):
    """Request time. Kafka cuts its delay to one sample, so the delay does not measure the debt, and the pace is kept by
    the gate alone."""

    __slots__ = ("_typical_ms",)

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        super().__init__(kind, key, settings, now, Pacer(TOLERANCE_MS, inf, MAX_BUSY_DEBT_MS))
        self._typical_ms: float | None = None  # running mean of the charges in episodes; None before the first

    def _pace(self, amount: float, limit: float, delay: int, now: int) -> int:
        self.pacer.take(amount * self._unit / limit * 1000.0, now)
        self._typical_ms = mean_with(amount, self._typical_ms)
        return delay

    def queue(self, connection: object, amount: float, now: int, whole: bool = False) -> int:
        """See :meth:`QuotaCounter.queue`. `amount` is 0, not known before: the usual one is assumed."""
        return DebtCounter.queue(self, connection, amount or self._typical_ms or 0.0, now, True)

    def _renewal(self, size_bytes: int, limit: float) -> tuple[float, float]:
        return (self._typical_ms or 0.0) * self._unit, limit * MAX_RENEWING_MS / 1000.0


class PacedCounter(DebtCounter):
    """Produced bytes. In an episode the pace is announced where it is the longer delay (ADR 0004)."""

    __slots__ = ()

    def __init__(
        self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int, tolerance_ms: int = TOLERANCE_MS
    ) -> None:
        super().__init__(kind, key, settings, now, Pacer(tolerance_ms))

    def _pace(self, amount: float, limit: float, delay: int, now: int) -> int:
        cost_ms = amount / limit * 1000.0
        paced = self.pacer.take(cost_ms, now, delay, self._slack_ms(limit, now) if delay else 0)
        if self.shadow:
            return delay
        if self._gate is not None:
            # Queued connections go first: the delay announced is until it is next after them.
            paced += self._gate.ahead_ms(cost_ms)
        return min(round_half_up(paced), MAX_THROTTLE_MS) if paced > delay else delay

    def check(self, now: int) -> int:
        """See :meth:`QuotaCounter.check`. An episode that has been calm ends."""
        self._in_episode(self.last_ms, max(now, self.last_ms))
        return self.due(now)

    def _slack_ms(self, limit: float, now: int) -> float:
        """How much of Kafka's delay may become credit."""
        return SLACK_MS

    def _due(self, limit: float, now: int) -> int:
        delay = WindowCounter._due(self, limit, now)
        unpaid_ms = -self.pacer.credit_ms(now) if self.may_queue else 0.0
        return min(round_half_up(unpaid_ms), MAX_THROTTLE_MS) if unpaid_ms > delay else delay

    def _renewal(self, size_bytes: int, limit: float) -> tuple[float, float]:
        return size_bytes, min(MAX_RENEWING_BYTES, limit * MAX_RENEWING_MS / 1000.0)

    @property
    def paced(self) -> bool:
        """See :attr:`QuotaCounter.paced`."""
        return self.may_queue
