"""What counts as achieved, from a staircase of (time, amount so far).

Kafka's empty window lets a window's worth pass at once, and a request that is let through is paid for afterwards. So

    t0        the first of it
    begin     the first step at or after t0 + the window (11 samples of 1 s by default): the first burst is over
    end       the last step of the run
    achieved  (amount from the step at `begin` on, without the step at `end`) / (limit * (end - begin))

Requests that are let through at the same moment (one of each connection) are one step, but the broker does not do them
at the same moment, and on a slow machine they are seen one after another. `at_once` is what they amount to: `end` is
then the first of the last steps that have at least so much together, and none of these is counted.

From a step to a step, with one of the two counted: 20 MB every 40 s at 0.5 MB/s are 1.00, wherever the 130 s of a run
begin and end in between. Requests that were let through in the first window and take longer to be paid for than that
give nothing afterwards: then `begin` is when they have been paid. Where fewer than half of the seconds after the first
window lie between two steps, all that came after the first window is counted over all of the time after it.

A token bucket (KIP-599) keeps tokens that are unspent after the first window, a window's worth at most. With `saves`
these do not count: they may be spent at any time.

`burst` is by how many windows' worth the amount was ahead of the limit at most. A request of more than a window's
worth is ahead by itself; a second one at the same time shows that it was not held back for the first one's debt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Staircase = Sequence[tuple[float, float]]
MIN_SHARE = 0.5


@dataclass(frozen=True)
class Achieved:
    """Of one row."""

    achieved: float
    """In limits, after the first window."""
    seconds: float
    """Over so long."""
    burst: float
    """In windows."""
    total: float
    """Bytes, percent-seconds, partitions, from the first one on."""
    overall: float
    """(total - a window's worth) / (limit * whole time): the first window included."""


def steps(staircase: Staircase) -> list[tuple[float, float]]:
    """Only where it rises: (time, how much of it)."""
    found, before = [], 0.0
    for at, amount in staircase:
        if amount > before:
            found.append((at, amount - before))
            before = amount
    return found


def compute_most(staircase: Staircase, limit: float, from_s: float, span_s: float, one: float) -> float:
    """The most that came within any `span_s` after `from_s`, without `one` request, in limits."""
    rises = [(at, amount) for at, amount in steps(staircase) if at >= from_s]
    most = amount = 0.0
    first = 0
    for at, more in rises:
        amount += more
        while rises[first][0] <= at - span_s:
            amount -= rises[first][1]
            first += 1
        most = max(most, amount)
    return max(most - one, 0.0) / (limit * span_s)


def compute_achieved(
    staircase: Staircase, limit: float, window_s: float, until_s: float, at_once: float = 0.0, *, saves: bool = False
) -> Achieved:
    """`until_s`: when the run was over; times are of one clock. `at_once`: what is let through at the same moment."""
    rises = steps(staircase)
    if not rises:
        return Achieved(0.0, 0.0, 0.0, 0.0, 0.0)
    start = rises[0][0]
    total = sum(amount for _, amount in rises)
    so_far = burst = 0.0
    for at, amount in rises:
        so_far += amount
        burst = max(burst, so_far - limit * (at - start))
    later = [(at, amount) for at, amount in rises if at >= start + window_s]
    begin, end = start + window_s, until_s
    counted = sum(amount for _, amount in later)
    spent = total - counted
    last, ended = len(later) - 1, sum(amount for _, amount in later[-1:])
    while last > 0 and ended < at_once:
        last -= 1
        ended += later[last][1]
    if last > 0 and later[last][0] - later[0][0] >= MIN_SHARE * (until_s - begin):
        begin, end = later[0][0], later[last][0]
        counted -= ended
    if saves:
        saved = min(max(2.0 * limit * window_s - spent, 0.0), limit * window_s)
        counted = max(counted - saved, 0.0)
    seconds = max(end - begin, 1e-9)
    whole = max(until_s - start, 1e-9)
    return Achieved(
        counted / (limit * seconds),
        seconds,
        burst / (limit * window_s),
        total,
        max(total - limit * window_s, 0.0) / (limit * whole),
    )
