"""The split of one limit: max-min fair shares, weighted by each instance's demand alone.

All amounts are fractions of the limit, so that instances whose configurations differ for a moment (a rollout) still
agree on the split.
"""

from collections.abc import Collection
from typing import Final

RESERVE: Final = 0.01
"""The part of each limit reserved for floors: every instance always has an equal part of it."""
CAPACITY: Final = 1.0 - RESERVE
"""The part that grants are made of."""


def floor_share(instances: int) -> float:
    """What each of this many known instances may use without asking: 1 % / instances, so all floors add up to 1 %."""
    return RESERVE / max(instances, 1)


def grant_of(mine: float, others: Collection[float], capacity: float = CAPACITY) -> float:
    """The grant of the instance with demand `mine` next to `others`. The grants add up to exactly the capacity.

    Progressive filling: the smallest demands are met in full, the rest is divided equally among the others. Of 0.1, 0.5
    and 0.9 with capacity 1.0: 0.1 is met, (1.0 - 0.1) / 2 = 0.45 is the level. When all demands fit, each instance gets
    an equal part of what is left, too.
    """
    left = capacity
    demands = sorted([mine, *others])
    for met, demand in enumerate(demands):
        waiting = len(demands) - met
        if demand * waiting > left:
            return min(mine, left / waiting)
        left -= demand
    return mine + max(left, 0.0) / len(demands)
