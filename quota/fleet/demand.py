"""An instance's demand for a group: what it uses, or more while its clients are throttled."""

from collections import deque
from math import inf
from typing import Final

SAMPLE_MS: Final = 500
"""Interval between samples of usage."""
HEADROOM: Final = 1.05
"""An instance that has enough asks for a little more than it used."""
_REMEMBERED: Final = 6
"""Samples: three seconds."""
_STICKS: Final = 4
"""Samples for which throttled clients count as waiting: throttles of large requests come one at a time."""
_STEPS: Final = ((2, 1.5), (4, 3.0))
"""(samples, factor): short for this many samples, it asks for this many times its share. Beyond: for everything."""


class DemandEstimate:
    """The demand for one group, as a fraction of the limit."""

    __slots__ = ("_samples", "_short_for", "_sticks", "demand")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_REMEMBERED)
        self._short_for = 0
        self._sticks = 0
        self.demand = 0.0

    def sample(self, usage: float, short: bool, share: float, fair: float) -> float:
        """Half a second has passed: `usage` is its rate over the limit; `short`: this limit throttled its clients.

        `share` is what may be used now and `fair` what each instance gets if all ask for as much. An instance whose
        clients are throttled asks for 1.5 times the greater of these, after a second for 3 times, after two for
        everything: a short wait hardly affects others, a long one takes the fair share, whatever the others used
        before.
        """
        self._samples.append(usage)
        self._sticks = _STICKS if short else max(self._sticks - 1, 0)
        if self._sticks:
            self._short_for += 1
            factor = next((factor for most, factor in _STEPS if self._short_for <= most), inf)
            wanted = max(share, fair, usage) * factor
        else:
            self._short_for = 0
            wanted = HEADROOM * sum(self._samples) / len(self._samples)
        self.demand = min(wanted, 1.0)
        return self.demand
