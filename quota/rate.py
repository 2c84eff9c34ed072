"""Kafka's sampled rate: a sum over a ring of short samples, divided by the time that these samples cover.

The algorithm is that of ``Rate``, ``SampledStat`` and ``WindowedSum`` in Kafka 3.8 and later (a ring of N + 1 slots,
samples expire by their last event). Samples are aligned to the first event, not to wall-clock seconds, and samples
without events do not exist. All times are integer milliseconds, as in Kafka.
"""

from math import floor
from typing import Final

MAX_THROTTLE_MS: Final = 2**31 - 1
"""The largest delay that the protocol's int32 field can carry. Kafka wraps around beyond it; we clamp."""

_NEVER: Final = -(2**62)
_LITTLE: Final = 0.1
"""An amount that is at most this fraction of the total is added to the existing samples, in their proportions."""


class Sample:
    """What one stretch of time saw: a sum, the time that it covers from, and its last event."""

    __slots__ = ("last", "start", "sum")

    def __init__(self, start: int) -> None:
        self.start = start
        self.last = start
        self.sum = 0.0


class SampledRate:
    """Amount per second over the last `num_samples` samples of `window_ms` each (KIP-13).

    With the defaults of Kafka (11 samples of 1 s) the divisor is between 10.0 and 11.999 s.
    """

    __slots__ = (
        "_current",
        "_min_ms",
        "_oldest_start",
        "_place",
        "_purge_at",
        "_ring",
        "_sample_ms",
        "_slots",
        "reach_ms",
        "window_ms",
    )

    window_ms: int
    """The divisor of the last :meth:`measure`, in milliseconds."""

    def __init__(self, num_samples: int = 11, window_ms: int = 1000) -> None:
        self._sample_ms = window_ms
        self._slots = num_samples + 1
        self._min_ms = (num_samples - 1) * window_ms
        self.reach_ms = num_samples * window_ms
        """After this time without events every sample has expired."""
        self._ring: list[Sample] = []
        self._place = -1
        self._current = Sample(_NEVER)
        """The sample in the ring at `_place`; before the first event, one that has ended."""
        # Two facts that only change when a sample starts or expires, so that measure() need not visit every slot.
        self._oldest_start = 0
        self._purge_at = 2**62  # no sample expires before this time
        self.window_ms = max(self._min_ms, 1)

    def record(self, value: float, now: int) -> None:
        """Add `value` (negative to take back) to the sample that `now` falls into, starting one if it has ended."""
        current = self._current
        if now - current.start >= self._sample_ms:
            current = self._advance(now)
        current.sum += value
        current.last = now

    def measure(self, now: int) -> float:
        """The rate at `now`, after resetting expired samples; leaves the divisor in :attr:`window_ms`."""
        if now >= self._purge_at:
            self._purge(now)
        total = 0.0
        for sample in self._ring:  # slot order, like Kafka, so that sums of fractions round the same way
            total += sample.sum
        self.window_ms = window = self._window(now - self._oldest_start) if self._place >= 0 else max(self._min_ms, 1)
        return total / (window / 1000.0)

    def empty(self, now: int) -> bool:
        """Whether every sample has expired at `now`: from then on it is the same as a new rate."""
        return self._place < 0 or now - self._current.last >= self.reach_ms

    def peek(self, now: int) -> tuple[float, int]:
        """(sum, window in ms) as measure() at `now` would see them, without changing anything."""
        if self._place < 0:
            return 0.0, max(self._min_ms, 1)
        if now < self._purge_at:
            total = 0.0
            for sample in self._ring:
                total += sample.sum
            return total, self._window(now - self._oldest_start)
        horizon = now - self.reach_ms
        total = 0.0
        oldest = now  # an expired sample counts as one that starts now
        for sample in self._ring:
            if sample.last > horizon:
                total += sample.sum
                oldest = min(oldest, sample.start)
        return total, self._window(now - oldest)

    def move(self, old: float, new: float, level: float, now: int) -> None:
        """The limit changed from `old` to `new` per second because a share of a larger one moved; past usage moves too.

        A part given away takes its share of the past with it: all samples shrink by new / old, and the rate relative to
        the limit stays. A part gained is as full as the larger limit's window (`level`, 0 to 1): with 10 s in a window,
        (new - old) * level * 10 s are added, as if used evenly.
        """
        if new <= old:
            self._scale(new / old)
            return
        amount = (new - old) * level * max(self._min_ms, self._sample_ms) / 1000.0
        if amount <= 0:
            return
        total, _ = self.peek(now)
        if total > 0 and amount <= total * _LITTLE:
            self._scale(1.0 + amount / total)
        else:
            self._fill(amount, now)

    def _scale(self, factor: float) -> None:
        for sample in self._ring:
            sample.sum *= factor

    def _fill(self, amount: float, now: int) -> None:
        """Add `amount` evenly over all samples, creating missing ones."""
        sample_ms, count = self._sample_ms, self._slots - 1
        horizon = now - self.reach_ms
        kept = [sample for sample in self._ring if sample.last > horizon]
        newest = self._current.start if kept else now
        newest += (now - newest) // sample_ms * sample_ms
        first = newest - (count - 1) * sample_ms
        ring = [Sample(first + place * sample_ms) for place in range(count)]
        for sample in ring:
            sample.last = min(sample.start + sample_ms - 1, now)
            sample.sum = amount / count
        for old in kept:
            sample = ring[min(max((old.start - first) // sample_ms, 0), count - 1)]
            sample.sum += old.sum
            sample.last = max(sample.last, min(old.last, now))
        self._ring, self._place, self._current = ring, count - 1, ring[count - 1]
        self._refresh()

    @property
    def last(self) -> int:
        """The time of the last event; long ago before the first."""
        return self._current.last

    @property
    def samples(self) -> list[tuple[int, int, float]]:
        """Start, last event and sum of each slot in use (an expired slot stays in use, with a sum of zero)."""
        return [(sample.start, sample.last, sample.sum) for sample in self._ring]

    def _window(self, elapsed: int) -> int:
        """Elapsed time, topped up by whole samples to num_samples - 1 of them; at least 1 ms."""
        if elapsed < self._min_ms:
            elapsed = self._min_ms + elapsed % self._sample_ms
        return elapsed or 1

    def _advance(self, now: int) -> Sample:
        """The next sample of the ring, which begins now."""
        place = self._place = (self._place + 1) % self._slots
        if place == len(self._ring):
            self._ring.append(Sample(now))
        current = self._current = self._ring[place]
        self._reset(current, now)
        self._refresh()
        return current

    def _purge(self, now: int) -> None:
        """Reset, in place, every sample whose last event is num_samples windows ago or more."""
        horizon = now - self.reach_ms
        for sample in self._ring:
            if sample.last <= horizon:
                self._reset(sample, now)
        self._refresh()

    def _reset(self, sample: Sample, now: int) -> None:
        sample.sum = 0.0
        sample.start = sample.last = now

    def _refresh(self) -> None:
        oldest = last = 2**62
        for sample in self._ring:
            oldest = min(oldest, sample.start)
            last = min(last, sample.last)
        self._oldest_start = oldest
        # The current sample's last event only moves forward, so this is early at worst, never late.
        self._purge_at = last + self.reach_ms


def round_half_up(value: float) -> int:
    """Java's ``Math.round``: halves go up."""
    whole = floor(value)
    return whole + 1 if value - whole >= 0.5 else whole


def throttle_ms(observed: float, bound: float, window_ms: int) -> int:
    """How long to wait for `observed` to come down to `bound` if the window went on growing (``QuotaUtils``).

    Rounds half up; clamped to what an int32 holds; negative while `observed` is below the bound.
    """
    delay = (observed - bound) / bound * window_ms
    return MAX_THROTTLE_MS if delay >= MAX_THROTTLE_MS else round_half_up(delay)
