"""A shared counter of fetched bytes, which reserves what admitted fetches are expected to bring."""

from typing import Final

from quota import counter, paced
from quota.counter import NOT_LIMITED, FetchGrant, LedgerSettings
from quota.entity import CounterKey, Kind
from quota.fetch_sizer import HEAD_BYTES, SHORTEST_MS, FetchSizer
from quota.paced import PacedCounter
from quota.pacing import CROWDING, FETCH_TOLERANCE_MS, PLENTY, SLACK_MS, TOLERANCE_MS
from quota.rate import MAX_THROTTLE_MS, round_half_up

_UNKNOWN_BATCH_BYTES: Final = 1_000_000
"""The least that a fetch is expected to bring, if it asks for as much, before any response has shown it: brokers send
one whole batch however little is asked for (KIP-74), and batches may have up to 1 MB (`max.message.bytes`)."""
# Used with each fetch: C numbers in compiled code (see the .pxd).
_HEAD_BYTES: Final = HEAD_BYTES
_SHORTEST_MS: Final = SHORTEST_MS
_TOLERANCE_MS: Final = TOLERANCE_MS


class FetchCounter(PacedCounter):
    """Fetched bytes. Fetches stop short of a violation, and the same bytes are not granted to several connections."""

    __slots__ = ("_admitted", "_fetch_sizer", "_outstanding", "_typical")

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        super().__init__(kind, key, settings, now, FETCH_TOLERANCE_MS)
        self._fetch_sizer = FetchSizer()
        self._admitted = 0  # fetches at the broker
        self._outstanding = 0.0  # bytes that admitted fetches are expected to bring, not yet counted
        self._typical: float | None = None  # running mean of the sizes of responses; None before the first

    def check(self, now: int) -> int:
        """See :meth:`QuotaCounter.check`. Also the wait until a useful amount is allowed."""
        if self.limit is not None and not self.shadow:
            self._chunk_begun_ms(self.limit, max(now, self.last_ms))
        return super().check(now)

    def admit(self, wanted: int, now: int, head_bytes: int = 0) -> FetchGrant:
        """Check, grant and reserve in one, for a fetch that is about to go to the broker. Its response would have
        `head_bytes` without any records. Pass the grant to :meth:`settle` when the response has come (or will never
        come: amount 0)."""
        limit = self.limit
        if limit is None or self.shadow:
            return NOT_LIMITED
        now = max(now, self.last_ms)
        pacer, sizer = self.pacer, self._fetch_sizer
        sizer.expect(head_bytes)
        # Bytes are floats here: a limit may be larger than an integer of 64 bits.
        asked, per_s = float(wanted), float(limit)
        chunk_ms = self._chunk_begun_ms(per_s, now)
        pacer.tolerate(chunk_ms)
        kafka, wait = self._delays(per_s, chunk_ms, now)
        if kafka > 0 or wait > 0:
            delay = max(self._impose(kafka, now), self._wait_in_turn(limit, kafka, wait, chunk_ms, now))
            self.throttled_until = max(self.throttled_until, now + delay)
            return FetchGrant(delay, 0)
        granted = max(self._available(per_s, chunk_ms, now), 0.0) // 1.0
        in_episode = self.may_queue
        if not in_episode:
            granted = min(granted, per_s * max(_TOLERANCE_MS, chunk_ms) / 1000.0 // 1.0)
        # Reserved in full while nothing is known, and later by experience: most consumers wait at the end of a log and
        # ask for far more than they get, and must not delay others by what they will not take. One batch comes whole,
        # whatever is granted.
        if self._typical is None:
            expected = max(min(max(granted, _UNKNOWN_BATCH_BYTES), asked), 1.0)
        else:
            expected = min(max(granted, sizer.batch + sizer.head), self._typical)
        granted = max(granted - sizer.head // 1.0, 0.0)
        paced_ms = 0.0
        if in_episode:
            granted = sizer.grant(granted, limit, pacer.credit_ms(now))
            paced_ms = expected / per_s * 1000.0
            if pacer.credit_ms(now) > PLENTY * chunk_ms:
                pacer.shorten_queue(now)
            pacer.take(paced_ms, now)
        self._admitted += 1
        self._outstanding += expected
        head_bytes = max(head_bytes, _HEAD_BYTES)
        return counter.granted(int(max(min(granted, asked), 1.0)), self, expected, paced_ms, head_bytes)

    def settle(self, grant: FetchGrant, amount: float) -> None:
        """Release what :meth:`admit` reserved and learn from the actual size, which the caller then records."""
        self._admitted -= 1
        # Exactly zero when nothing is outstanding: sums of fractions would leave a residue.
        self._outstanding = max(self._outstanding - grant.reserved, 0.0) if self._admitted else 0.0
        if grant.paced_ms and self.may_queue:
            self.pacer.give_back(grant.paced_ms)
        if amount:  # else there was no response to learn from
            self._typical = paced.mean_with(amount, self._typical)
            self._fetch_sizer.expect(grant.head_bytes)
            self._fetch_sizer.learn(grant.max_bytes, amount - grant.head_bytes)

    def forgettable(self, now: int) -> bool:
        """See :meth:`QuotaCounter.forgettable`. What is known about batch sizes is learnt again."""
        return not self._admitted and super().forgettable(now)

    def _due(self, limit: float, now: int) -> int:
        return max(self._delays(limit, self._chunk_ms(limit, now), now))

    def _delays(self, limit: float, chunk_ms: float, now: int) -> tuple[int, int]:
        """Kafka's delay at `now`, and the time until a chunk is allowed. One that comes when half of it is there may
        pass: it may have waited as announced, and the clock may be a little behind."""
        total, window_ms = self.rate.peek(now)
        kafka = self._kafka_delay(total / (window_ms / 1000.0), limit, window_ms)
        available_ms = window_ms - (total + self._outstanding) / limit * 1000.0
        if self.may_queue:
            # One chunk above the window is what a client at exactly its limit gets anyway (the fence-post effect).
            available_ms = min(available_ms + chunk_ms, self.pacer.credit_ms(now))
        if available_ms >= chunk_ms / 2:
            return kafka, 0
        return kafka, min(round_half_up(chunk_ms - available_ms), MAX_THROTTLE_MS)

    def _available(self, limit: float, chunk_ms: float, now: int) -> float:
        """Bytes that are allowed besides those that are reserved."""
        total, window_ms = self.rate.peek(now)
        available = limit * window_ms / 1000.0 - total - self._outstanding
        if self.may_queue:
            available = min(available + chunk_ms * limit / 1000.0, self.pacer.credit_ms(now) * limit / 1000.0)
        return available

    def _chunk_ms(self, limit: float, now: int) -> float:
        """Fetches wait until this much time's worth is allowed."""
        if self.may_queue:
            return self._fetch_sizer.min_chunk_ms(limit, self.pacer.waiting(now))
        return max(_SHORTEST_MS, self._fetch_sizer.heads_ms(limit))

    def _chunk_begun_ms(self, limit: float, now: int) -> float:
        """The chunk at `now`. Fetches stop short of a violation, so for them an episode begins when less than half of
        one is left in the window."""
        active = self._in_episode(self.last_ms, now)
        chunk_ms = self._chunk_ms(limit, now)
        if active:
            return chunk_ms
        total, window_ms = self.rate.peek(now)
        if window_ms - total / limit * 1000.0 >= chunk_ms / 2:
            return chunk_ms
        self._begin(0, now)
        return self._chunk_ms(limit, now)

    def _slack_ms(self, limit: float, now: int) -> float:
        """See :meth:`PacedCounter._slack_ms`. The next fetch's worth: each fetch for which the window had little left
        causes such a delay, and consumers would never reach their limit."""
        return max(self._chunk_ms(limit, now), SLACK_MS)

    def _wait_in_turn(self, limit: float, kafka: int, wait: int, chunk_ms: float, now: int) -> int:
        """How long a throttled fetcher waits besides Kafka's delay: the pace, and its place among the others. No
        debt."""
        pacer = self.pacer
        if self.may_queue:
            if kafka > 0:
                pacer.delay(now + kafka, max(chunk_ms, SLACK_MS))
            # Fetches before the episode were larger than those that are granted now.
            usual_ms = min(
                (self._typical or 0.0) / limit * 1000.0, max(chunk_ms, self._fetch_sizer.batch / limit * 1000.0)
            )
            wait = round_half_up(pacer.schedule_fetch(now, now + max(wait, kafka), usual_ms * CROWDING) - now)
        return self._capped(wait)
