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


class SampledRate:
    """Amount per second over the last `num_samples` samples of `window_ms` each (KIP-13).

    With the defaults of Kafka (11 samples of 1 s) the divisor is between 10.0 and 11.999 s.
    """

    __slots__ = (
        "_current",
        "_current_start",
        "_expire_ms",
        "_lasts",
        "_min_ms",
        "_oldest_start",
        "_purge_at",
        "_sample_ms",
        "_slots",
        "_starts",
        "_sums",
        "window_ms",
    )

    window_ms: int
    """The divisor of the last :meth:`measure`, in milliseconds."""

    def __init__(self, num_samples: int = 11, window_ms: int = 1000) -> None:
        self._sample_ms = window_ms
        self._slots = num_samples + 1
        self._min_ms = (num_samples - 1) * window_ms
        self._expire_ms = num_samples * window_ms
        self._sums: list[float] = []
        self._starts: list[int] = []
        self._lasts: list[int] = []
        self._current = -1
        self._current_start = _NEVER
        # Two facts that only change when a sample starts or expires, so that measure() need not visit every slot.
        self._oldest_start = 0
        self._purge_at = 2**62  # no sample expires before this time
        self.window_ms = max(self._min_ms, 1)

    def record(self, value: float, now: int) -> None:
        """Add `value` (negative to take back) to the sample that `now` falls into, starting one if it has ended."""
        if now - self._current_start >= self._sample_ms:
            self._advance(now)
        current = self._current
        self._sums[current] += value
        self._lasts[current] = now

    def measure(self, now: int) -> float:
        """The rate at `now`, after resetting expired samples; leaves the divisor in :attr:`window_ms`."""
        if now >= self._purge_at:
            self._purge(now)
        total = 0.0
        for value in self._sums:  # slot order, like Kafka, so that sums of fractions round the same way
            total += value
        self.window_ms = window = self._window(now - self._oldest_start) if self._sums else max(self._min_ms, 1)
        return total / (window / 1000.0)

    def empty(self, now: int) -> bool:
        """Whether every sample has expired at `now`: from then on it is the same as a new rate."""
        return self._current < 0 or now - self._lasts[self._current] >= self._expire_ms

    def peek(self, now: int) -> tuple[float, int]:
        """(sum, window in ms) as measure() at `now` would see them, without changing anything."""
        if not self._sums:
            return 0.0, max(self._min_ms, 1)
        if now < self._purge_at:
            total = 0.0
            for value in self._sums:
                total += value
            return total, self._window(now - self._oldest_start)
        horizon = now - self._expire_ms
        total = 0.0
        oldest = now  # an expired sample counts as one that starts now
        for value, start, last in zip(self._sums, self._starts, self._lasts, strict=True):
            if last > horizon:
                total += value
                oldest = min(oldest, start)
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
        for slot in range(len(self._sums)):
            self._sums[slot] *= factor

    def _fill(self, amount: float, now: int) -> None:
        """Add `amount` evenly over all samples, creating missing ones."""
        sample_ms, count = self._sample_ms, self._slots - 1
        horizon = now - self._expire_ms
        kept = [one for one in zip(self._starts, self._lasts, self._sums, strict=True) if one[1] > horizon]
        newest = self._current_start if kept else now
        newest += (now - newest) // sample_ms * sample_ms
        first = newest - (count - 1) * sample_ms
        starts = [first + place * sample_ms for place in range(count)]
        lasts = [min(start + sample_ms - 1, now) for start in starts]
        sums = [amount / count] * count
        for start, last, value in kept:
            place = min(max((start - first) // sample_ms, 0), count - 1)
            sums[place] += value
            lasts[place] = max(lasts[place], min(last, now))
        self._starts, self._lasts, self._sums = starts, lasts, sums
        self._current = count - 1
        self._refresh()

    @property
    def reach_ms(self) -> int:
        """After this time without events every sample has expired."""
        return self._expire_ms

    @property
    def live_samples(self) -> int:
        """How many slots are in use (an expired slot stays in use, with a sum of zero)."""
        return len(self._sums)

    def _window(self, elapsed: int) -> int:
        """Elapsed time, topped up by whole samples to num_samples - 1 of them; at least 1 ms."""
        if elapsed < self._min_ms:
            elapsed = self._min_ms + elapsed % self._sample_ms
        return elapsed or 1

    def _advance(self, now: int) -> None:
        self._current = (self._current + 1) % self._slots
        if self._current == len(self._sums):
            self._sums.append(0.0)
            self._starts.append(now)
            self._lasts.append(now)
        else:
            self._reset(self._current, now)
        self._refresh()

    def _purge(self, now: int) -> None:
        """Reset, in place, every sample whose last event is num_samples windows ago or more."""
        horizon = now - self._expire_ms
        for slot, last in enumerate(self._lasts):
            if last <= horizon:
                self._reset(slot, now)
        self._refresh()

    def _reset(self, slot: int, now: int) -> None:
        self._sums[slot] = 0.0
        self._starts[slot] = now
        self._lasts[slot] = now

    def _refresh(self) -> None:
        self._current_start = self._starts[self._current]
        self._oldest_start = min(self._starts)
        # The current sample's last event only moves forward, so this is early at worst, never late.
        self._purge_at = min(self._lasts) + self._expire_ms


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
