"""The token bucket of partition mutations (KIP-599; Kafka's ``TokenBucket``)."""

from typing import NamedTuple

from quota.rate import MAX_THROTTLE_MS, round_half_up


class Mutation(NamedTuple):
    """The result of one charge of partition mutations."""

    accepted: bool
    """False only in strict mode: the topic is refused with THROTTLING_QUOTA_EXCEEDED and nothing was charged."""
    throttle_ms: int


class TokenBucket:
    """Tokens of one counter: refilled at the limit's rate, capped at the burst, with no limit to the debt below zero.

    `burst_s` is the burst in seconds of the rate (Kafka: number of samples times sample length). A bucket starts full.
    The rate is passed with each call: when a quota changes, the tokens stay and the new burst caps them at the next
    access. Doubles as in Kafka, so that even a residue of -1.7e-16 tokens counts as a violation in both.
    """

    __slots__ = ("_burst_s", "_last_ms", "tokens")

    def __init__(self, burst_s: float) -> None:
        self._burst_s = burst_s
        self._last_ms: int | None = None
        self.tokens = float("inf")  # full at any rate: the first access caps it at the burst

    def burst(self, rate: float) -> float:
        """The most tokens the bucket holds at this rate."""
        return self._burst_s * rate

    def measure(self, rate: float, now: int) -> float:
        """Refill and return the tokens at `now`."""
        self.tokens = self.peek(rate, now)
        self._last_ms = now
        return self.tokens

    def peek(self, rate: float, now: int) -> float:
        """The tokens at `now`, without changing anything."""
        gained = 0.0 if self._last_ms is None else rate * ((now - self._last_ms) / 1000.0)
        return min(self._burst_s * rate, self.tokens + gained)

    def take(self, amount: float, rate: float, now: int) -> float:
        """Refill, subtract `amount` (negative refunds, up to the burst), return the tokens left."""
        self.tokens = min(self._burst_s * rate, self.measure(rate, now) - amount)
        return self.tokens

    def move(self, old: float, new: float, level: float, now: int) -> None:
        """The rate changed because a share of a larger one moved. A part given away takes its tokens with it; a part
        gained brings what is left in the larger bucket, of which `level` (0 to 1) is used. A debt stays."""
        tokens = self.measure(old, now)
        if new > old:
            self.tokens = tokens + self._burst_s * (new - old) * (1.0 - level)
        elif tokens > 0:
            self.tokens = tokens * new / old

    def fill(self, now: int) -> None:
        """Forget every debt: for a bucket that is used while no limit applies to it."""
        self.tokens = float("inf")
        self._last_ms = now


def bucket_throttle_ms(tokens: float, rate: float) -> int:
    """How long until a debt is paid; 0 without one. Rounds half up, clamped to int32."""
    if tokens >= 0:
        return 0
    delay = -tokens / rate * 1000.0
    return MAX_THROTTLE_MS if delay >= MAX_THROTTLE_MS else round_half_up(delay)
