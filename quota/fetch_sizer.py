"""How much one fetch of a paced group may bring: enough to be worthwhile, without cutting batches if possible.

A broker fills a Fetch response up to exactly ``max_bytes`` and cuts the last record batch in the middle
(``FileRecords.slice``); the client discards that part and fetches the batch again. On average half a batch per response
is charged and wasted. Only a first batch larger than ``max_bytes`` comes whole, and alone (KIP-74). So:

- ``max_bytes`` of 1 brings exactly one batch, whatever its size. Nothing is wasted, and the size is learnt.
- Small batches are fetched many at a time, so that half of one matters little, and in multiples of the learnt size, so
  that batches of equal size (a saturated producer's) are not cut at all.
- Large ones are fetched one at a time.
- A response names each partition, with or without records: 37 to 42 bytes each. A client without a fetch session asks
  for all its partitions each time. The more bytes that takes, the fewer and larger the fetches are.
"""

from typing import Final

LONGEST_MS: Final = 500
"""A consumer waits until at most this much time's worth of bytes is allowed. Not longer: with a second's worth each,
Kafka's window of samples would leave a gap now and then."""
SHORTEST_MS: Final = 250
"""And for at least this much, so that few fetches are refused, ..."""
SHARED_MS: Final = 100
"""... but less if many wait, ..."""
CYCLE_MS: Final = 2000
"""... so that each is served after about this time."""
MANY: Final = 32
"""A fetch of this many batches loses 1/64 to a cut one on average; larger ones are not needed."""
FEW: Final = 16
"""Below this many batches (more than 1/32 lost) batches are fetched one at a time, ..."""
QUICKEST_MS: Final = 20
"""... unless that would take more than 50 fetches a second, ..."""
LATE_MS: Final = 750
"""... or falls behind the limit, because the broker is far away: this much credit has accumulated."""
PARTITION_BYTES: Final = 1_048_576
"""Consumers' default of ``max.partition.fetch.bytes``: with one busy partition, a response is limited to it anyway."""
PROBE_EACH: Final = 17
"""One in this many fetches of several batches brings a single one instead, to learn its size; while it is unknown, all
but one in this many do (most may be fetches at the end of a log). No usual number of consumers is a multiple."""
EMPTY_BYTES: Final = 160
"""Responses up to this size contain no batch (or one so small that cutting it does not matter)."""
HEAD_BYTES: Final = 64
"""The minimum size of a response without its records."""
_HEADS: Final = 8
"""A consumer waits until a fetch may be this many times as large as a response without records, ..."""
_LONGEST_FOR_HEADS_MS: Final = 5_000
"""... but no longer than this, half of Kafka's default window: larger fetches would exceed the limit for minutes."""
WORK_BYTES: Final = 64
"""What a fetch costs besides the head of its response, as bytes."""
_HEAD_FADE: Final = 0.95
"""The largest recent size of a response without records counts for the whole group, as its fetchers share one clock:
one that is content with less would take what another waits for."""
_FADE: Final = 0.9
"""Sizes of batches differ. The largest recent one counts: each smaller one lets the estimate decay by this."""
_SINGLE: Final = 1
"""As ``max_bytes``: the first batch, whole and alone."""
# Used with each fetch: C numbers in compiled code, as others above (see the .pxd).
_HEAD_BYTES: Final = HEAD_BYTES
_LEAST_RECORDS_BYTES: Final = EMPTY_BYTES - HEAD_BYTES


class FetchSizer:
    """What a group has learnt about the batches its consumers read, and the fetch sizes that follow from it."""

    __slots__ = ("_fetches", "batch", "head")

    def __init__(self) -> None:
        self.batch = 0.0
        """Bytes of the largest recent batch; 0: unknown."""
        self.head = 0.0
        """Bytes of the largest recent response without its records."""
        self._fetches = 0

    def expect(self, head_bytes: int) -> None:
        """A fetch asks, or is answered, whose response has `head_bytes` without its records."""
        self.head = max(float(max(head_bytes, _HEAD_BYTES)), self.head * _HEAD_FADE)

    def learn(self, max_bytes: int | None, records_bytes: float) -> None:
        """A fetch that was granted `max_bytes` got a response with `records_bytes` besides its head."""
        if max_bytes == _SINGLE and records_bytes > _LEAST_RECORDS_BYTES:
            self.batch = max(records_bytes, self.batch * _FADE)

    def heads_ms(self, limit: float) -> float:
        """How much time's worth keeps the heads of responses a small part of them."""
        return min(_HEADS * self.head / limit * 1000.0, _LONGEST_FOR_HEADS_MS)

    def min_chunk_ms(self, limit: float, waiting: int) -> float:
        """How much time's worth to wait for at `limit` bytes/s, while `waiting` other fetchers wait as well."""
        batch_ms = self.batch / limit * 1000.0
        # Many batches at a time; or one, if many would take too long.
        worth_ms = MANY * batch_ms if 0 < FEW * batch_ms <= LONGEST_MS else batch_ms
        return max(
            min(max(worth_ms, SHORTEST_MS), LONGEST_MS, max(CYCLE_MS / (1 + waiting), SHARED_MS)), self.heads_ms(limit)
        )

    def grant(self, available: float, limit: float, credit_ms: float) -> float:
        """``max_bytes`` for a fetch of up to `available` bytes of records; the clock lags behind by `credit_ms`."""
        batch = self.batch
        if not batch:
            self._fetches += 1
            # Usually one in `PROBE_EACH` brings more than a single batch; where heads are large, one brings a single.
            return available if (self._fetches % PROBE_EACH == 0) != (_HEADS * self.head > available) else _SINGLE
        if available < batch or (self._one_by_one(available, limit) and credit_ms < LATE_MS):
            return _SINGLE
        self._fetches += 1
        return available // batch * batch // 1.0 if self._fetches % PROBE_EACH else _SINGLE

    def _one_by_one(self, available: float, limit: float) -> bool:
        """Whether batches are too large for `available` bytes to contain many of them."""
        batch = self.batch
        return (
            batch * FEW > min(available, PARTITION_BYTES)
            and batch * 1000.0 >= QUICKEST_MS * limit
            # Half a batch and a head are wasted of `available`, or a response's head (and the work) for each batch.
            and batch * (batch + 2 * self.head) > 2 * (self.head + WORK_BYTES) * available
        )
