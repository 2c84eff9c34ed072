"""Windows with spread bursts: the algorithm that KIP-599 planned for partition mutations before its token bucket."""

from math import fsum


class WindowedBurst:
    """The S = `num_samples` latest windows of `window_ms` each; stands in for :class:`quota.bucket.TokenBucket`.

    With Q the limit per second and W the window's length in seconds, the average R = sum / (S * W) is compared with Q:
    admitted iff R <= Q, else the delay is (R - Q) / Q * S * W. A charge fills the earlier windows first, the oldest
    before the younger ones and each up to Q * W, and only the rest goes to the current one. So a burst leaves the
    average window by window, Q * W at a time, where one large sample would hold it up for S * W.

    In the bucket's terms: tokens = S * W * Q - sum, and R <= Q is tokens >= 0. So the formulas are the same; the
    difference is how tokens come back: here in steps of a window, in a bucket evenly. And a debt beyond S * W * Q is
    forgotten together with the window that holds it, after S * W, where a bucket waits until it is paid.

    All S windows exist from the beginning, empty; they are aligned to the first access. The windows keep amounts, not
    tokens: when the limit changes, past usage stays and is compared with the new limit.
    """

    __slots__ = ("_amounts", "_current", "_origin_ms", "_window_ms")

    def __init__(self, num_samples: int, window_ms: int) -> None:
        self._window_ms = window_ms
        self._amounts = [0.0] * num_samples
        """Oldest first; the last one is the current window."""
        self._origin_ms: int | None = None
        self._current = 0
        """Number of the current window, counted from the first access."""

    def burst(self, rate: float) -> float:
        """The most that may be used at once at this rate: S * W * Q."""
        return len(self._amounts) * self._window_ms / 1000.0 * rate

    def measure(self, rate: float, now: int) -> float:
        """Drop old windows and return what is left of S * W * Q at `now`, negative when overdrawn."""
        self._amounts = self._kept(now)
        if self._origin_ms is None:
            self._origin_ms = now
        self._current = (now - self._origin_ms) // self._window_ms
        return self.burst(rate) - fsum(self._amounts)

    def peek(self, rate: float, now: int) -> float:
        """What is left at `now`, without changing anything."""
        return self.burst(rate) - fsum(self._kept(now))

    def take(self, amount: float, rate: float, now: int) -> float:
        """Record `amount` (negative refunds, never below empty windows) and return what is left."""
        self.measure(rate, now)
        amounts = self._amounts
        if amount >= 0:
            full = rate * self._window_ms / 1000.0
            for place in range(len(amounts) - 1):
                here = min(max(full - amounts[place], 0.0), amount)
                amounts[place] += here
                amount -= here
            amounts[-1] += amount
        else:
            for place in range(len(amounts) - 1, -1, -1):  # newest first, the reverse of filling
                here = min(amounts[place], -amount)
                amounts[place] -= here
                amount += here
        return self.burst(rate) - fsum(amounts)

    def move(self, old: float, new: float, level: float, now: int) -> None:
        """See :meth:`TokenBucket.move`: a part given away takes its share of past usage with it, except a debt; a part
        gained is as full as the larger limit's windows are."""
        left = self.measure(old, now)
        if new > old:
            gained = self.burst(new - old) * level / len(self._amounts)
            self._amounts = [amount + gained for amount in self._amounts]
        elif left > 0:
            self._amounts = [amount * new / old for amount in self._amounts]

    def fill(self, now: int) -> None:
        """Forget everything: for a counter that is used while no limit applies to it."""
        self.measure(0.0, now)
        self._amounts = [0.0] * len(self._amounts)

    def _kept(self, now: int) -> list[float]:
        """The windows as of `now`."""
        if self._origin_ms is None:
            return self._amounts
        gone = min((now - self._origin_ms) // self._window_ms - self._current, len(self._amounts))
        return self._amounts[gone:] + [0.0] * gone if gone > 0 else self._amounts
