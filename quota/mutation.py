"""A shared counter of partition mutations: KIP-599's token bucket (or its earlier plan), strict or permissive."""

from quota.bucket import Mutation, TokenBucket, bucket_throttle_ms
from quota.burst import WindowedBurst
from quota.entity import GroupKey, Kind
from quota.group import Group, Settings


class BucketGroup(Group):
    """A counter of partition mutations: KIP-599's token bucket, or windows with spread bursts where chosen."""

    __slots__ = ("bucket",)

    carries = False  # tokens below zero are the debt, to the last partition

    def __init__(self, kind: Kind, key: GroupKey, settings: Settings, now: int) -> None:
        super().__init__(kind, key, settings, now)
        num_samples, window_ms = settings.mutation_num_samples, settings.mutation_window_ms
        self.bucket: TokenBucket | WindowedBurst
        if settings.mutation_algorithm == "windowed_burst":
            self.bucket = WindowedBurst(num_samples, window_ms)
        else:
            self.bucket = TokenBucket(num_samples * window_ms / 1000.0)

    def charge(self, amount: float, now: int) -> int:
        """See :meth:`Group.charge`; the permissive way."""
        return self.charge_mutation(amount, strict=False, now=now).throttle_ms

    def charge_mutation(self, amount: float, *, strict: bool, now: int) -> Mutation:
        """Strict: refuse while tokens are below zero, charging nothing; else accept, whatever the size, without delay.
        Permissive: always accept, and delay as soon as tokens are below zero (KIP-599)."""
        now = max(now, self.last_ms)
        limit = self.limit
        self.last_ms = now
        if limit is None:
            self.bucket.fill(now)
            self._add(amount)
            return Mutation(True, 0)
        if strict:
            tokens = self.bucket.measure(limit, now)
            if tokens < 0:
                if self.shadow:
                    self._add(amount)
                return Mutation(self.shadow, self._impose(bucket_throttle_ms(tokens, limit), now))
            self.bucket.take(amount, limit, now)
            self._add(amount)
            return Mutation(True, 0)
        self._add(amount)
        tokens = self.bucket.take(amount, limit, now)
        return Mutation(True, self._impose(bucket_throttle_ms(tokens, limit), now))

    def record(self, amount: float, now: int) -> None:
        """See :meth:`Group.record`."""
        self.last_ms = now = max(now, self.last_ms)
        self._add(amount)
        if self.limit is None:
            self.bucket.fill(now)
        else:
            self.bucket.take(amount, self.limit, now)

    def refund(self, amount: float, now: int) -> None:
        """See :meth:`Group.refund`: tokens come back, up to the burst."""
        self.last_ms = now = max(now, self.last_ms)
        self.usage.amount -= amount
        if self.limit is not None:
            self.bucket.take(-amount, self.limit, now)

    def due(self, now: int) -> int:
        """See :meth:`Group.due`."""
        if self.limit is None or self.shadow:
            return 0
        now = max(now, self.last_ms)
        delay = max(bucket_throttle_ms(self.bucket.peek(self.limit, now), self.limit), self.owed_until - now)
        return self._capped(delay, now, count=False) if delay > 0 else 0

    def allowance(self, now: int) -> int | None:
        """See :meth:`Group.allowance`: the whole tokens left."""
        if self.limit is None or self.shadow:
            return None
        return max(int(self.bucket.peek(self.limit, max(now, self.last_ms))), 0)

    def observed(self, now: int) -> float:
        """The tokens left, negative when overdrawn; 0 without a limit."""
        return 0.0 if self.limit is None else self.bucket.peek(self.limit, max(now, self.last_ms))

    def utilisation(self, now: int) -> float | None:
        """The used share of the burst; above 1 when overdrawn."""
        if self.limit is None:
            return None
        burst = self.bucket.burst(self.limit)
        return (burst - self.observed(now)) / burst

    def owes(self, now: int) -> bool:
        """See :meth:`Group.owes`."""
        return super().owes(now) or (self.limit is not None and self.observed(now) < 0)

    def _add(self, amount: float) -> None:
        self.usage.amount += amount
        self.usage.charges += 1
