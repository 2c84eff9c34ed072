"""A shared counter of bytes or busy time in Kafka's sampled window."""

from typing import Final

from quota.counter import NOT_LIMITED, FetchGrant, LedgerSettings, QuotaCounter
from quota.entity import CounterKey, Kind
from quota.rate import MAX_THROTTLE_MS, SampledRate, throttle_ms
from quota.table import Resolution

MAX_RENEWING_BYTES: Final = 40 * 1024 * 1024
"""What may pass unpaid so that clients can log in again: twice what lies in socket buffers before one connection's
login (`proxy.core.session.throttle.MAX_PASSING_BYTES`), and some more, as requests pass whole."""


class WindowCounter(QuotaCounter):
    """What was used in Kafka's window, and Kafka's delay for it; what a group owes beyond that is its subclasses'."""

    __slots__ = ("_longest_ms", "_renewed", "_unit", "_watched", "rate")

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        super().__init__(kind, key, settings, now)
        self.rate = SampledRate(settings.num_samples, settings.window_ms)
        busy = kind is Kind.REQUEST
        # 1 ms of busy time is 0.1 percent-seconds of one thread; the request quota's delay is at most one sample long.
        self._unit = 0.1 if busy else 1.0
        self._longest_ms = settings.window_ms if busy else MAX_THROTTLE_MS
        self._renewed = (0.0, now)  # what has passed so that clients could log in again, and when
        self._watched = 0.0  # the lower of the limit and its candidate: below it nothing happens

    def apply_limit(self, found: Resolution) -> None:
        """See :meth:`QuotaCounter.apply_limit`."""
        super().apply_limit(found)
        self._watch()

    def _watch(self) -> None:
        if self.limit is not None:
            candidate = None if self.candidate is None else self.candidate.limit
            self._watched = self.limit if candidate is None else min(self.limit, candidate)

    def fullness(self, now: int) -> float:
        """See :meth:`QuotaCounter.fullness`."""
        return 0.0 if self.whole is None else self.observed(now) / self.whole

    def _move(self, old: float, new: float, level: float, now: int) -> None:
        now = max(now, self.last_ms)
        self.rate.move(old, new, level, now)
        self._rescale(old / new, now)
        self._watch()

    def charge(self, amount: float, now: int) -> int:
        """See :meth:`QuotaCounter.charge`. Recorded, then checked: charges that violate the limit count, too
        (KIP-13)."""
        if now < self.last_ms:
            now = self.last_ms
        delay = self._count(amount, now)
        return self._impose(delay, now) if delay > 0 else 0

    def record(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.record`. A violation counts all the same; check() finds its delay."""
        if now < self.last_ms:
            now = self.last_ms
        delay = self._count(amount, now)
        if self.shadowed is not None and self.shadow:
            self.shadowed.note(delay, now)

    def _count(self, amount: float, now: int) -> int:
        """Record; returns the delay."""
        before = self.last_ms
        usage = self.usage
        usage._amount += amount
        usage.charges += 1
        self.last_ms = now
        rate = self.rate
        rate.record(amount * self._unit, now)
        if self.limit is None:
            self.may_queue = False
            return 0
        observed = rate.measure(now)
        if observed <= self._watched and not self.may_queue:
            return 0
        return self._delay(amount, observed, self.limit, before, now)

    def _delay(self, amount: float, observed: float, limit: float, before: int, now: int) -> int:
        """The delay for a charge, the last one before it at `before`; also recorded is what the candidate would do."""
        window_ms = self.rate.window_ms
        trial = self.candidate
        if trial is not None and trial.limit is not None:
            trial.note(self._kafka_delay(observed, trial.limit, window_ms), now)
        return self._kafka_delay(observed, limit, window_ms)

    def _kafka_delay(self, observed: float, limit: float, window_ms: int) -> int:
        return min(throttle_ms(observed, limit, window_ms), self._longest_ms) if observed > limit else 0

    def refund(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.refund`: a negative amount in the current sample, as in Kafka (KIP-13, fetch)."""
        self.last_ms = now = max(now, self.last_ms)
        self.usage._amount -= amount
        self.rate.record(-amount * self._unit, now)

    def due(self, now: int) -> int:
        """See :meth:`QuotaCounter.due`."""
        limit = self.limit
        return 0 if limit is None or self.shadow else self._capped(self._due(limit, max(now, self.last_ms)))

    def _due(self, limit: float, now: int) -> int:
        """The delay at `now`, uncut."""
        total, window_ms = self.rate.peek(now)
        return self._kafka_delay(total / (window_ms / 1000.0), limit, window_ms)

    def admit(self, wanted: int, now: int, head_bytes: int = 0) -> FetchGrant:
        """Check, for a fetch that is about to go to the broker, and how much it may bring: what the window has left."""
        limit = self.limit
        if limit is None or self.shadow:
            return NOT_LIMITED
        now = max(now, self.last_ms)
        delay = self._impose(self._due(limit, now), now)
        total, window_ms = self.rate.peek(now)
        return FetchGrant(delay, 0 if delay else max(int(limit * window_ms / 1000.0 - total), 0))

    def observed(self, now: int) -> float:
        """The rate in the window: bytes/s, or percent of one thread."""
        total, window_ms = self.rate.peek(max(now, self.last_ms))
        return total / (window_ms / 1000.0)

    def utilisation(self, now: int) -> float | None:
        """Rate over limit."""
        return None if self.limit is None else self.observed(now) / self.limit

    def debt_ms(self, now: int) -> float:
        """How long until all past usage is paid, if there is no more; negative with credit."""
        raise NotImplementedError

    def owes(self, now: int) -> bool:
        """See :meth:`QuotaCounter.owes`."""
        return super().owes(now) or self.debt_ms(now) > 0

    def forgettable(self, now: int) -> bool:
        """See :meth:`QuotaCounter.forgettable`."""
        now = max(now, self.last_ms)
        return self.rate.empty(now) and not self.owes(now)

    def renews(self, size_bytes: int, now: int) -> bool:
        """See :meth:`QuotaCounter.renews`."""
        limit = self.limit
        if limit is None:
            return True
        cost, most = self._renewal(size_bytes, limit)
        passed, since = self._renewed
        passed = max(passed - (now - since) * limit / 1000.0, 0.0) + cost
        if passed > most:
            return False
        self._renewed = (passed, now)
        return True

    def _renewal(self, size_bytes: int, limit: float) -> tuple[float, float]:
        """What a request of this size costs, and the most that may pass unpaid, in the unit of the limit."""
        return size_bytes, MAX_RENEWING_BYTES


class KafkaCounter(WindowCounter):
    """As in a broker: a delay is for the connection that caused it. What `max_throttle_ms` cuts from it is carried: the
    window would forget it."""

    __slots__ = ("owed_until",)

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        super().__init__(kind, key, settings, now)
        self.owed_until = 0.0
        """The end of the uncut delay, a whole number of ms: the next delay ends there at the earliest (see `_carried`).
        No integer of 64 bits: a debt at a high limit takes ages at a low one."""

    def charge(self, amount: float, now: int) -> int:
        """See :meth:`QuotaCounter.charge`."""
        delayed = WindowCounter.charge(self, amount, now)
        return delayed if delayed or self.limit is None else self._impose(0, max(now, self.last_ms))

    def _due(self, limit: float, now: int) -> int:
        return self._carried(WindowCounter._due(self, limit, now), now)

    def _carried(self, delay: int, now: int) -> int:
        """The delay, at least what is left of an earlier one."""
        return min(max(delay, int(self.owed_until) - now), MAX_THROTTLE_MS) if self.owed_until > now else delay

    def _impose(self, delay: int, now: int) -> int:
        delay = self._carried(delay, now)
        delayed = WindowCounter._impose(self, delay, now)
        if 0 < delayed < delay:
            self.owed_until = max(self.owed_until, float(now + delay))
        return delayed

    def _rescale(self, factor: float, now: int) -> None:
        self.owed_until = float(now + int(max(self.owed_until - now, 0.0) * factor))

    def debt_ms(self, now: int) -> float:
        """See :meth:`WindowCounter.debt_ms`."""
        return self.owed_until - now

    def owed_ms(self, now: int) -> int:
        """See :meth:`QuotaCounter.owed_ms`."""
        return max(int(self.owed_until) - now, 0)
