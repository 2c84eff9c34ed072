"""A shared counter of partition mutations: KIP-599's token bucket (or its earlier plan), strict or permissive."""

from quota.bucket import Mutation, TokenBucket, bucket_throttle_ms
from quota.burst import WindowedBurst
from quota.counter import NO_LINE, LedgerSettings, Line, QuotaCounter
from quota.entity import CounterKey, Kind
from quota.table import Resolution
from quota.trial import Trial


class BucketCounter(QuotaCounter):
    """A counter of partition mutations: KIP-599's token bucket, or windows with spread bursts where chosen."""

    __slots__ = ("_settings", "_trial_bucket", "_waiting", "bucket")

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        super().__init__(kind, key, settings, now)
        self.may_queue = settings.smooth
        self._settings = settings
        self.bucket = _new_bucket(settings)
        self._trial_bucket: TokenBucket | WindowedBurst | None = None  # the candidate's, created when there is one
        self._waiting: set[object] = set()  # connections; tokens come back for all of them alike, so no queue

    def apply_limit(self, found: Resolution) -> None:
        """See :meth:`QuotaCounter.apply_limit`."""
        super().apply_limit(found)
        if self.candidate is not None and self._trial_bucket is None:
            self._trial_bucket = _new_bucket(self._settings)

    def fullness(self, now: int) -> float:
        """See :meth:`QuotaCounter.fullness`: the used part of the burst."""
        return max(self.utilisation(now) or 0.0, 0.0) * self.share

    def _move(self, old: float, new: float, level: float, now: int) -> None:
        self.bucket.move(old, new, level, max(now, self.last_ms))

    def charge(self, amount: float, now: int) -> int:
        """See :meth:`QuotaCounter.charge`; the permissive way."""
        return self.charge_mutation(amount, strict=False, now=now).throttle_ms

    def charge_mutation(self, amount: float, *, strict: bool, now: int) -> Mutation:
        """Strict: refuse while tokens are below zero, charging nothing; otherwise accept, whatever the size, without
        delay. Permissive: always accept, and delay as soon as tokens are below zero (KIP-599)."""
        now = max(now, self.last_ms)
        limit = self.limit
        self.last_ms = now
        if limit is None:
            self.bucket.fill(now)
            self._add(amount)
            return Mutation(True, 0)
        if strict and (tokens := self.bucket.measure(limit, now)) < 0:
            if self.shadow:
                self._add(amount)
                self._put_to_trial(amount, now, strict=True)
            return Mutation(self.shadow, self._impose(bucket_throttle_ms(tokens, limit), now))
        self._add(amount)
        self._put_to_trial(amount, now, strict=strict)
        tokens = self.bucket.take(amount, limit, now)
        return Mutation(True, 0 if strict else self._impose(bucket_throttle_ms(tokens, limit), now))

    def record(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.record`."""
        self.last_ms = now = max(now, self.last_ms)
        self._add(amount)
        if self.limit is None:
            self.bucket.fill(now)
        else:
            tokens = self.bucket.take(amount, self.limit, now)
            self._put_to_trial(amount, now)
            if self.shadowed is not None and self.shadow:
                self.shadowed.note(bucket_throttle_ms(tokens, self.limit), now)

    def refund(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.refund`: tokens come back, up to the burst."""
        self.last_ms = now = max(now, self.last_ms)
        self.usage._amount -= amount
        if self.limit is not None:
            self.bucket.take(-amount, self.limit, now)
            self._put_to_trial(-amount, now)

    def due(self, now: int) -> int:
        """See :meth:`QuotaCounter.due`."""
        if self.limit is None or self.shadow:
            return 0
        return self._capped(bucket_throttle_ms(self.observed(now), self.limit))

    def queue(self, connection: object, _amount: float, now: int, whole: bool = False) -> int:
        """See :meth:`QuotaCounter.queue`: until tokens are no longer below zero."""
        wait_ms = self.due(now) if self.may_queue else 0
        (self._waiting.add if wait_ms else self._waiting.discard)(connection)
        return wait_ms

    def leave_queue(self, connection: object) -> None:
        """See :meth:`QuotaCounter.leave_queue`."""
        self._waiting.discard(connection)

    @property
    def waiting(self) -> int:
        """See :meth:`QuotaCounter.waiting`."""
        return len(self._waiting)

    def line(self, now: int) -> Line:
        """See :meth:`QuotaCounter.line`."""
        if self.limit is None or self.shadow or not self.may_queue:
            return NO_LINE
        owed_ms = bucket_throttle_ms(self.observed(now), self.limit)
        return Line(self.waiting, owed_ms if self._waiting else 0, owed_ms, owed_ms)

    def observed(self, now: int) -> float:
        """The tokens left, negative when overdrawn; 0 without a limit."""
        return 0.0 if self.limit is None else self.bucket.peek(self.limit, max(now, self.last_ms))

    def utilisation(self, now: int) -> float | None:
        """The used share of the burst; above 1 when overdrawn."""
        return _used_share(self.bucket, self.limit, max(now, self.last_ms))

    def trial_utilisation(self, trial: Trial, now: int) -> float | None:
        """See :meth:`QuotaCounter.trial_utilisation`."""
        bucket = self._trial_bucket if trial is self.candidate else self.bucket
        return None if bucket is None else _used_share(bucket, trial.limit, max(now, self.last_ms))

    def owes(self, now: int) -> bool:
        """See :meth:`QuotaCounter.owes`."""
        return super().owes(now) or self.observed(now) < 0

    def forgettable(self, now: int) -> bool:
        """See :meth:`QuotaCounter.forgettable`: a full bucket. (Windows with spread bursts restart when charged.)"""
        limit = self.limit
        full = limit is None or self.observed(now) >= self.bucket.burst(limit)
        return full and not self.owes(now)

    def _put_to_trial(self, amount: float, now: int, *, strict: bool = False) -> None:
        """Charge the candidate's bucket as well. It is not charged with what it would refuse (strict). But the topic
        was not refused: the client did not wait, so each of its next requests counts as another refusal."""
        trial, bucket = self.candidate, self._trial_bucket
        if trial is None or trial.limit is None or bucket is None:
            return
        if strict:
            tokens = bucket.measure(trial.limit, now)
            if tokens >= 0:
                bucket.take(amount, trial.limit, now)
        else:
            tokens = bucket.take(amount, trial.limit, now)
        if amount >= 0:
            trial.note(bucket_throttle_ms(tokens, trial.limit), now)

    def _add(self, amount: float) -> None:
        self.usage._amount += amount
        self.usage.charges += 1


def _used_share(bucket: TokenBucket | WindowedBurst, limit: float | None, now: int) -> float | None:
    if limit is None:
        return None
    burst = bucket.burst(limit)
    return (burst - bucket.peek(limit, now)) / burst


def _new_bucket(settings: LedgerSettings) -> TokenBucket | WindowedBurst:
    num_samples, window_ms = settings.mutation_num_samples, settings.mutation_window_ms
    if settings.mutation_algorithm == "windowed_burst":
        return WindowedBurst(num_samples, window_ms)
    return TokenBucket(num_samples * window_ms / 1000.0)
