"""A shared counter of bytes or busy time: Kafka's sampled window, with our pacing for bytes (ADR 0004)."""

from math import inf
from typing import Final, cast

from quota.counter import NO_LINE, NOT_LIMITED, FetchAdmission, LedgerSettings, Line, QuotaCounter
from quota.entity import CounterKey, Kind
from quota.fetch_sizer import HEAD_BYTES, SHORTEST_MS, FetchSizer
from quota.gate import GRACE_MS, Gate, Sender
from quota.pacing import CROWDING, FETCH_TOLERANCE_MS, LARGE_MS, PLENTY, SLACK_MS, TOLERANCE_MS, Pacer
from quota.rate import MAX_THROTTLE_MS, SampledRate, round_half_up, throttle_ms
from quota.table import Limit

_LEARN: Final = 1 / 16
"""Weight of the newest response in the running mean of response sizes."""
MAX_RENEWING_BYTES: Final = 40 * 1024 * 1024
"""What may pass unpaid so that clients can log in again: twice what lies in socket buffers before one connection's
login (`proxy.core.session.state.MAX_PASSING_BYTES`), and some more, as requests pass whole."""
MAX_RENEWING_MS: Final = 10_000
"""And no more than the limit allows in this time; the same for request time."""
UNKNOWN_BATCH_BYTES: Final = 1_000_000
"""The least that a fetch is expected to bring, if it asks for as much, before any response has shown it: brokers send
one whole batch however little is asked for (KIP-74), and batches may have up to 1 MB (`max.message.bytes`)."""
ASK_AGAIN_MS: Final = 1000
"""While a limit is a share of a fleet's, which moves, connections held at the gate ask again this often."""
MAX_BUSY_DEBT_MS: Final = 30_000
"""The most request time that a group ever owes, as time of its limit. Requests of all kinds wait for it, heartbeats
too, and consumers must not lose their group membership over it (`session.timeout.ms` is 45 s)."""


class WindowCounter(QuotaCounter):
    """A counter of bytes or busy time in Kafka's sampled window, with pacing for bytes."""

    __slots__ = (
        "_admitted",
        "_bounded_ms",
        "_calm_ms",
        "_fetch_sizer",
        "_gate",
        "_outstanding",
        "_renewed",
        "_scale",
        "_smooth",
        "_typical",
        "_watched",
        "pacer",
        "rate",
    )

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        super().__init__(kind, key, settings, now)
        self.rate = SampledRate(settings.num_samples, settings.window_ms)
        is_request = kind is Kind.REQUEST
        tolerance_ms = FETCH_TOLERANCE_MS if kind is Kind.FETCH else TOLERANCE_MS
        self.pacer = Pacer(tolerance_ms, inf if is_request else LARGE_MS)
        # 1 ms of busy time is 0.1 percent-seconds of one thread; the request quota's delay is at most one sample long.
        self._scale = 0.1 if is_request else 1
        self._bounded_ms = settings.window_ms if is_request else None
        self._smooth = settings.smooth and not is_request
        self.carries = not settings.smooth  # otherwise the pacer keeps the debt
        self._renewed = (0.0, now)  # what has passed so that clients could log in again, and when
        self._gate: Gate | None = None  # created when a connection is first held
        self._fetch_sizer = FetchSizer() if kind is Kind.FETCH else None  # a produce request's size is fixed
        self._calm_ms = 2 * settings.num_samples * settings.window_ms
        self._admitted = 0  # fetches at the broker
        self._outstanding = 0.0  # bytes that admitted fetches are expected to bring, not yet counted
        self._watched = 0.0  # the lower of the limit and its candidate: below it nothing happens
        self._typical: float | None = None  # running mean of the sizes of responses; None before the first

    def apply_limit(self, limit: Limit) -> None:
        """See :meth:`QuotaCounter.apply_limit`."""
        super().apply_limit(limit)
        if self.limit is not None:
            candidate = None if self.candidate is None else self.candidate.limit
            self._watched = self.limit if candidate is None else min(self.limit, candidate)

    def fullness(self, now: int) -> float:
        """See :meth:`QuotaCounter.fullness`."""
        return 0.0 if self.whole is None else self.observed(now) / self.whole

    def _move(self, old: float, new: float, level: float, now: int) -> None:
        super()._move(old, new, level, now)
        now = max(now, self.last_ms)
        self.rate.move(old, new, level, now)
        pacer = self.pacer
        if pacer.active and (new > old or pacer.paid_at > now):
            # Debt and credit are amounts. A lower limit does not increase a credit.
            pacer.paid_at = now - pacer.credit_ms(now) * old / new
        pacer.backlog_ms *= old / new
        if self._gate is not None:
            self._gate.rescale(old / new, now)
        candidate = None if self.candidate is None else self.candidate.limit
        self._watched = new if candidate is None else min(new, candidate)

    def charge(self, amount: float, now: int) -> int:
        """See :meth:`QuotaCounter.charge`. Recorded, then checked: charges that violate the limit count, too
        (KIP-13)."""
        if now < self.last_ms:
            now = self.last_ms
        usage = self.usage
        usage._amount += amount
        usage.charges += 1
        if self.pacer.active:
            return self._charge_in_episode(amount, now)
        self.last_ms = now
        rate = self.rate
        rate.record(amount * self._scale, now)
        limit = self.limit
        if limit is None:
            return 0
        observed = rate.measure(now)
        if observed <= self._watched:
            return self._impose(0, now) if self.owed_until > now else 0
        return self._impose(self._over(observed, limit, now), now)

    def _over(self, observed: float, limit: float, now: int) -> int:
        """The limit or its candidate is exceeded outside an episode: Kafka's delay, and an episode may begin."""
        delay = self._exceeded(observed, limit, now)
        if observed > limit and self.pays and not self.shadow:
            # The delay for request time is cut to one sample; the debt is not.
            uncut = delay if self._bounded_ms is None else throttle_ms(observed, limit, self.rate.window_ms)
            self.pacer.begin(now, uncut if self._bounded_ms is None else min(uncut, MAX_BUSY_DEBT_MS))
            self.may_hold = True
        return delay

    def _exceeded(self, observed: float, limit: float, now: int) -> int:
        """The limit or its candidate is exceeded: record what the candidate would do, return the limit's own delay."""
        window_ms = self.rate.window_ms
        trial = self.candidate
        if trial is not None and trial.limit is not None and observed > trial.limit:
            trial.note(self._kafka_delay(observed, trial.limit, window_ms), now)
        return self._kafka_delay(observed, limit, window_ms) if observed > limit else 0

    def record(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.record`. A violation starts an episode all the same; check() finds its delay."""
        now = max(now, self.last_ms)
        usage = self.usage
        usage._amount += amount
        usage.charges += 1
        delay, _ = self._count(amount, now)
        if self.shadowed is not None and self.shadow:
            self.shadowed.note(delay, now)

    def refund(self, amount: float, now: int) -> None:
        """See :meth:`QuotaCounter.refund`: a negative amount in the current sample, as in Kafka (KIP-13, fetch)."""
        now = max(now, self.last_ms)
        if self.pacer.active and self._calm(now):
            self.pacer.active = False
        self.last_ms = now
        self.usage._amount -= amount
        self.rate.record(-amount * self._scale, now)
        if self.pacer.active and self.limit is not None:
            self.pacer.give_back(amount / self.limit * 1000.0)

    def check(self, now: int) -> int:
        """See :meth:`QuotaCounter.check`. With pacing also the wait until a useful amount is allowed."""
        if self._smooth:
            self._begin_if_used_up(max(now, self.last_ms))
        return self.due(now)

    def due(self, now: int) -> int:
        """See :meth:`QuotaCounter.due`."""
        now = max(now, self.last_ms)
        if self.limit is None or self.shadow:
            return 0
        kafka, wait = self._due(self.limit, self._grain_ms(self.limit, now), now)
        delay = max(kafka, wait, int(self.owed_until) - now)
        return self._capped(delay, now, count=False) if delay > 0 else 0

    def allowance(self, now: int) -> int | None:
        """See :meth:`QuotaCounter.allowance`: the room in the window, and in an episode also what the pace allows."""
        limit = self.limit
        if limit is None or self.shadow:
            return None
        now = max(now, self.last_ms)
        return self._room(limit, self._grain_ms(limit, now), now)

    def admit(self, wanted: int, now: int, head_bytes: int = 0) -> FetchAdmission:
        """Check, allowance and a reservation in one, for a fetch that is about to go to the broker. Its response would
        have `head_bytes` without any records.

        The reservation prevents the same bytes from being granted to several connections. Pass the admission to
        :meth:`settle` when the response has come (or will never come: amount 0).
        """
        limit = self.limit
        if limit is None or self.shadow:
            return NOT_LIMITED
        now = max(now, self.last_ms)
        pacer, sizer = self.pacer, self._fetch_sizer
        if sizer is not None:
            sizer.expect(head_bytes)
        if self._smooth:
            self._begin_if_used_up(now)
        min_chunk_ms = self._grain_ms(limit, now)
        if sizer is not None:
            pacer.tolerate(min_chunk_ms)
        kafka, wait = self._due(limit, min_chunk_ms, now)
        if kafka > 0 or wait > 0 or self.owed_until > now:
            delay = max(self._impose(kafka, now), self._wait_in_turn(kafka, wait, min_chunk_ms, now))
            self.throttled_until = max(self.throttled_until, now + delay)
            return FetchAdmission(delay, 0)
        granted = self._room(limit, min_chunk_ms, now)
        if not self._smooth:
            return FetchAdmission(0, granted)
        paced = pacer.active
        if not paced:
            granted = min(granted, int(limit * max(TOLERANCE_MS, min_chunk_ms) / 1000.0))
        # Reserved in full while nothing is known, and later by experience: most consumers wait at the end of a log and
        # ask for far more than they get, and must not hold up others by what they will not take. One batch comes whole,
        # whatever is granted.
        head = 0.0 if sizer is None else sizer.head
        if self._typical is None:
            expected: float = max(min(max(granted, UNKNOWN_BATCH_BYTES), wanted), 1)
        else:
            batch = 0.0 if sizer is None else sizer.batch + head
            expected = min(max(granted, batch), self._typical)
        granted = max(granted - int(head), 0)
        if paced and sizer is not None:
            granted = sizer.grant(granted, limit, pacer.credit_ms(now))
        granted = max(min(granted, wanted), 1)
        self._admitted += 1
        self._outstanding += expected
        paced_ms = 0.0
        if paced:
            paced_ms = expected / limit * 1000.0
            if pacer.credit_ms(now) > PLENTY * min_chunk_ms:
                pacer.shorten_queue(now)
            pacer.take(paced_ms, now)
        return FetchAdmission(0, granted, self, expected, paced_ms, max(head_bytes, HEAD_BYTES))

    def settle(self, admission: FetchAdmission, amount: float) -> None:
        """Release what :meth:`admit` reserved and learn from the actual size, which the caller then records."""
        self._admitted -= 1
        # Exactly zero when nothing is outstanding: sums of fractions would leave a residue.
        self._outstanding = max(self._outstanding - admission.reserved, 0.0) if self._admitted else 0.0
        if admission.paced_ms and self.pacer.active:
            self.pacer.give_back(admission.paced_ms)
        if not amount:
            return  # there was no response to learn from
        self._learn(amount)
        if self._fetch_sizer is not None and admission.max_bytes is not None:
            self._fetch_sizer.expect(admission.head_bytes)
            self._fetch_sizer.learn(admission.max_bytes, amount - admission.head_bytes)

    def observed(self, now: int) -> float:
        """The rate in the window: bytes/s, or percent of one thread."""
        total, window_ms = self.rate.peek(max(now, self.last_ms))
        return total / (window_ms / 1000.0)

    def utilisation(self, now: int) -> float | None:
        """Rate over limit."""
        return None if self.limit is None else self.observed(now) / self.limit

    def owes(self, now: int) -> bool:
        """See :meth:`QuotaCounter.owes`."""
        return super().owes(now) or self.waiting > 0 or (self.pacer.active and self.pacer.owed_ms(now) > 0)

    def owed_ms(self, now: int) -> int:
        """See :meth:`QuotaCounter.owed_ms`."""
        if not self.pacer.active:
            return super().owed_ms(now)
        owed_ms = int(self.pacer.owed_ms(now))
        return owed_ms if owed_ms > max(self.throttled_until - now, 0) + GRACE_MS else 0

    def forgettable(self, now: int) -> bool:
        """See :meth:`QuotaCounter.forgettable`. What is known about batch sizes is learnt again."""
        now = max(now, self.last_ms)
        return (
            self.rate.empty(now)
            and not self._admitted
            and not self.owes(now)
            and (not self.pacer.active or self._calm(now))
        )

    def _calm(self, now: int) -> bool:
        """Whether the episode is over at `now`. The window is empty one window after the last charge."""
        return self.pacer.calm(now, self._calm_ms, int(self.owed_until), self.last_ms + self._calm_ms // 2)

    def _rescale(self, factor: float) -> None:
        super()._rescale(factor)
        self.pacer.paid_at = self.last_ms + (self.pacer.paid_at - self.last_ms) * factor
        self.pacer.backlog_ms *= factor
        if self._gate is not None:
            self._gate.rescale(factor, self.last_ms)

    def _charge_in_episode(self, amount: float, now: int) -> int:
        limit = self.limit
        delay, paced = self._count(amount, now)
        if limit is None or self.shadow:
            return self._impose(delay, now)
        if not self._smooth:  # request time
            self.pacer.paid_at = min(self.pacer.paid_at, float(now + MAX_BUSY_DEBT_MS))
            self._learn(amount)
            return self._impose(delay, now)
        if self._gate is not None:
            # Held connections go first: the client is told when it will be next after them.
            paced += self._gate.ahead_ms(amount / limit * 1000.0)
        if paced > delay:
            delay = min(round_half_up(paced), MAX_THROTTLE_MS)
        return self._impose(delay, now)

    def hold(self, connection: object, amount: float, now: int, *, whole: bool = False) -> int:
        """See :meth:`QuotaCounter.hold`. `amount` is 0 for request time, not known before: the usual one is assumed."""
        limit, pacer, gate = self.limit, self.pacer, self._gate
        now = max(now, self.last_ms)
        self.may_hold = pacer.active
        if limit is None or self.shadow or not self.pays or (not pacer.active and (whole or not amount)):
            self.pass_held(connection)
            return 0
        if gate is None:
            gate = self._gate = Gate()
        # The expected cost, as a time of the limit: bytes / (bytes/s), or busy ms * 0.1 / percent.
        cost_ms = (amount or self._typical or 0.0) * self._scale / limit * 1000.0
        if pacer.active:
            pacer.pay_backlog(now)
        arriving = None if whole or not amount else (cast(Sender, connection), amount)
        wait_ms = gate.ask(connection, cost_ms, *self._debts(limit, now), now, arriving=arriving)
        # A share may be larger in a second: no connection waits longer before it asks again.
        return min(wait_ms, ASK_AGAIN_MS) if self.fleet else wait_ms

    def abandon(self, connection: object, size_bytes: int, now: int) -> bool:
        """See :meth:`QuotaCounter.abandon`."""
        limit, gate = self.limit, self._gate
        if limit is None or gate is None:
            return False
        now = max(now, self.last_ms)
        return gate.abandon(connection, size_bytes, *self._debts(limit, now), now)

    def _debts(self, limit: float, now: int) -> tuple[float, float]:
        """Until when the group is in debt, and its debt beyond that for large requests."""
        if not self.pacer.active:
            total, window_ms = self.rate.peek(now)
            return now - (window_ms - total / limit * 1000.0), 0.0  # the room in the window is a credit
        paid_at, backlog_ms = self.pacer.debts(now)
        if backlog_ms:
            # While the large request is in the window, Kafka's delay would apply to every request.
            total, window_ms = self.rate.peek(now)
            delay_ms = self._kafka_delay(total / (window_ms / 1000.0), limit, window_ms)
            paid_at = max(paid_at, float(now + delay_ms - LARGE_MS))
        return paid_at, backlog_ms

    def line(self, now: int) -> Line:
        """See :meth:`QuotaCounter.line`."""
        limit, gate = self.limit, self._gate
        if limit is None or self.shadow or not self.pays or not (self.pacer.active or self.waiting):
            return NO_LINE
        now = max(now, self.last_ms)
        paid_at, backlog_ms = self._debts(limit, now)
        debt_ms = max(int(self.pacer.owed_ms(now)), 0) if self.pacer.active else 0
        newcomer_ms = paid_at - now - GRACE_MS
        next_ms = 0
        if gate is not None:
            newcomer_ms += gate.before_ms(backlog_ms)
            next_ms = gate.next_ms(paid_at, backlog_ms, now + debt_ms, now)
        return Line(self.waiting, next_ms, max(round_half_up(newcomer_ms), 0), debt_ms)

    def pass_held(self, connection: object) -> None:
        """See :meth:`QuotaCounter.pass_held`."""
        if self._gate is not None:
            self._gate.leave(connection)

    def renews(self, size_bytes: int, now: int) -> bool:
        """See :meth:`QuotaCounter.renews`."""
        limit = self.limit
        if limit is None:
            return True
        if self._bounded_ms is None:
            cost, back_per_s, most = float(size_bytes), limit, float(MAX_RENEWING_BYTES)
            if self.pays:
                most = min(most, limit * MAX_RENEWING_MS / 1000.0)
        else:
            cost = (self._typical or 0.0) * self._scale / limit * 1000.0
            back_per_s, most = 1000.0, float(MAX_RENEWING_MS)
        passed, since = self._renewed
        passed = max(passed - (now - since) * back_per_s / 1000.0, 0.0) + cost
        if passed > most:
            return False
        self._renewed = (passed, now)
        return True

    @property
    def waiting(self) -> int:
        """How many connections have a request held at the gate."""
        return 0 if self._gate is None else len(self._gate)

    @property
    def paced(self) -> bool:
        """See :attr:`QuotaCounter.paced`."""
        return self._smooth and self.pacer.active

    def _learn(self, amount: float) -> None:
        typical = amount if self._typical is None else self._typical
        self._typical = typical + (amount - typical) * _LEARN

    def _count(self, amount: float, now: int) -> tuple[int, float]:
        """Record, and update the episode. Returns Kafka's delay and the pace's, in ms."""
        rate = self.rate
        pacer = self.pacer
        if pacer.active:
            empty_since = self.last_ms + self._calm_ms // 2
            if now > empty_since:
                pacer.note_idle(empty_since)
            if pacer.calm(now, self._calm_ms, int(self.owed_until), empty_since):
                pacer.active = False
        self.last_ms = now
        rate.record(amount * self._scale, now)
        limit = self.limit
        if limit is None:
            pacer.active = False
            return 0, 0.0
        observed = rate.measure(now)
        if not pacer.active:
            return (self._over(observed, limit, now) if observed > self._watched else 0), 0.0
        delay = self._exceeded(observed, limit, now) if observed > self._watched else 0
        pacer.note_rate(observed / limit, now)
        if not self._smooth:  # request time: its delay is cut to one sample, so it does not measure the debt
            return delay, pacer.take(amount * self._scale / limit * 1000.0, now)
        return delay, pacer.take(amount / limit * 1000.0, now, delay, self._slack_ms(limit, now) if delay else 0)

    def _kafka_delay(self, observed: float, limit: float, window_ms: int) -> int:
        delay = throttle_ms(observed, limit, window_ms)
        bounded = self._bounded_ms
        return delay if bounded is None or delay < bounded else bounded

    def _due(self, limit: float, min_chunk_ms: float, now: int) -> tuple[int, int]:
        """Kafka's delay at `now`, and with pacing the time until a grain's worth is allowed."""
        total, window_ms = self.rate.peek(now)
        observed = total / (window_ms / 1000.0)
        kafka = self._kafka_delay(observed, limit, window_ms) if observed > limit else 0
        if not self._smooth:
            return kafka, 0
        available_ms = window_ms - (total + self._outstanding) / limit * 1000.0
        if self.pacer.active:
            # One grain above the window is what a client at exactly its limit gets anyway (the fence-post effect).
            available_ms = min(available_ms + min_chunk_ms, self.pacer.credit_ms(now))
        if available_ms >= min_chunk_ms / 2:
            return kafka, 0
        return kafka, min(round_half_up(min_chunk_ms - available_ms), MAX_THROTTLE_MS)

    def _room(self, limit: float, min_chunk_ms: float, now: int) -> int:
        total, window_ms = self.rate.peek(now)
        room = (limit * window_ms / 1000.0 - total - self._outstanding) / self._scale
        if self.paced:
            room = min(room + min_chunk_ms * limit / 1000.0, self.pacer.credit_ms(now) * limit / 1000.0)
        return max(int(room), 0)

    def _grain_ms(self, limit: float, now: int) -> float:
        """Fetches wait until this much time's worth is allowed. One that comes when half of it is there may pass: it
        may have waited as told, and the clock may be a little behind."""
        portions = self._fetch_sizer
        if portions is None:
            return 0.0
        if self.pacer.active:
            return portions.min_chunk_ms(limit, self.pacer.waiting(now))
        return max(SHORTEST_MS, portions.heads_ms(limit))

    def _slack_ms(self, limit: float, now: int) -> float:
        """How much of Kafka's delay may become credit. For fetches, the next one's worth: each fetch that the window
        had little room for causes such a delay, and consumers would never reach their limit."""
        return max(self._grain_ms(limit, now), SLACK_MS)

    def _wait_in_turn(self, kafka: int, wait: int, min_chunk_ms: float, now: int) -> int:
        """How long a throttled fetcher waits besides Kafka's delay: the pace, and its place among the others. No
        debt."""
        pacer = self.pacer
        limit = self.limit
        if pacer.active and limit is not None:
            if kafka > 0:
                pacer.hold(now + kafka, max(min_chunk_ms, SLACK_MS))
            usual_ms = (self._typical or 0.0) / limit * 1000.0
            if self._fetch_sizer is not None:
                # Fetches before the episode were larger than those that are granted now.
                usual_ms = min(usual_ms, max(min_chunk_ms, self._fetch_sizer.batch / limit * 1000.0))
            wait = round_half_up(pacer.schedule_fetch(now, now + max(wait, kafka), usual_ms * CROWDING) - now)
        longest = self.max_throttle_ms
        return wait if longest is None else min(wait, longest)

    def _begin_if_used_up(self, now: int) -> None:
        """Fetches stop short of a violation, so for them an episode begins when less than a grain is left."""
        if self.pacer.active and self._calm(now):
            self.pacer.active = False
        if self.limit is None or self.shadow or self.pacer.active:
            return
        total, window_ms = self.rate.peek(now)
        if window_ms - total / self.limit * 1000.0 < self._grain_ms(self.limit, now) / 2:
            self.pacer.begin(now, 0)
