"""How much one fetch of a paced group may bring: enough to be worth it, and no batch cut in two if that can be helped.

A broker fills a Fetch response up to exactly ``max_bytes`` and cuts the last record batch off in the middle
(``FileRecords.slice``); the client throws that part away and fetches the batch again. On average half a batch per
response is paid for and not used. Only a first batch larger than ``max_bytes`` comes whole, and alone (KIP-74). So:

- ``max_bytes`` of 1 brings exactly one batch, whatever its size. Nothing is wasted, and its size is learned.
- Small batches are fetched many at a time, so that half of one matters little, and in multiples of the learned size,
  so that batches of equal size (a saturated producer's) are not cut at all.
- Large ones are fetched one at a time.
"""

from typing import Final

LONGEST_MS: Final = 500
"""A consumer waits until at most this much time's worth of bytes is allowed. Not longer: Kafka's window of samples does
not let portions of a second each pass without a gap now and then."""
SHORTEST_MS: Final = 250
"""And for at least this much, so that few fetches are refused, ..."""
SHARED_MS: Final = 100
"""... but less if many wait, ..."""
CYCLE_MS: Final = 2000
"""... for each shall have its turn after about this time."""
MANY: Final = 32
"""A portion of this many batches loses 1/64 to a cut one on average; no need for larger ones."""
FEW: Final = 16
"""Portions of fewer batches than this (more than 1/32 lost) are not worth it: batches come one at a time, ..."""
QUICKEST_MS: Final = 20
"""... unless that would take more than 50 fetches a second, ..."""
LATE_MS: Final = 750
"""... or does not keep up with the limit, for the broker is far away: that much credit has gathered."""
PARTITION_BYTES: Final = 1_048_576
"""Consumers' default of ``max.partition.fetch.bytes``: with one busy partition, a response ends there anyway."""
PROBE_EACH: Final = 17
"""One in so many fetches of several batches brings a single one instead, to learn its size; until it is known, all but
one in so many do (most fetches may be of consumers at the end of a log). No usual number of consumers is a multiple."""
EMPTY_BYTES: Final = 160
"""Responses up to this size hold no batch (or one so small that cutting it does not matter)."""
HEAD_BYTES: Final = 64
"""What a response has besides its records, at least. (Some more counts as part of the batch: no harm done.)"""
FADE: Final = 0.9
"""Sizes of batches differ. What counts is the largest lately: each smaller one makes the memory fade by this."""
SINGLE: Final = 1
"""As ``max_bytes``: the first batch, whole and alone."""


class FetchSizer:
    """What a group has learned about the batches its consumers read, and the portions that follow from it."""

    __slots__ = ("_fetches", "batch")

    def __init__(self) -> None:
        self.batch = 0.0
        """Bytes of the largest batch lately; 0: not known."""
        self._fetches = 0

    def learn(self, max_bytes: int, amount: float) -> None:
        """A fetch that was granted `max_bytes` brought a response of `amount` bytes."""
        if max_bytes == SINGLE and amount > EMPTY_BYTES:
            self.batch = max(amount - HEAD_BYTES, self.batch * FADE)

    def min_chunk_ms(self, limit: float, waiting: int) -> float:
        """How much time's worth to wait for at `limit` bytes/s, while `waiting` other fetchers wait as well."""
        batch_ms = self.batch / limit * 1000.0
        # Many batches at a time; or one, if many would take too long.
        worth_ms = MANY * batch_ms if 0 < FEW * batch_ms <= LONGEST_MS else batch_ms
        return min(max(worth_ms, SHORTEST_MS), LONGEST_MS, max(CYCLE_MS / (1 + waiting), SHARED_MS))

    def grant(self, room: int, limit: float, credit_ms: float) -> int:
        """``max_bytes`` for a fetch, when `room` bytes are allowed, and the clock lags behind by `credit_ms`."""
        batch = self.batch
        if not batch:
            self._fetches += 1
            return SINGLE if self._fetches % PROBE_EACH else room
        if room < batch or (self._one_by_one(room, limit) and credit_ms < LATE_MS):
            return SINGLE
        self._fetches += 1
        return int(room // batch * batch) if self._fetches % PROBE_EACH else SINGLE

    def _one_by_one(self, room: float, limit: float) -> bool:
        """Whether batches are too large for a portion of `room` bytes to hold many of them."""
        batch = self.batch
        return (
            batch * FEW > min(room, PARTITION_BYTES)
            and batch * 1000.0 >= QUICKEST_MS * limit
            # Half a batch of `room` would be lost, against the head of a response for each batch (and the work).
            and batch * batch > 4 * HEAD_BYTES * room
        )
