"""Smooth pacing of a group that is at its limit: our addition to Kafka's formula, see docs/adr/0004-smooth-pacing.md.

Kafka's window lets ten seconds' worth of bytes pass at once, delays the client until that burst leaves the window some
eleven seconds later, and then lets the same burst pass again. The pacer breaks that echo: from the moment a group
violates its quota (an *episode*) every byte also costs time on a clock that runs at the limit's rate, and a client
waits for the later of the two. It never shortens Kafka's delay.
"""

from collections import deque
from math import inf
from typing import Final

TOLERANCE_MS: Final = 1000
"""How far the pacing clock may lag behind real time: up to this much, a client may catch up on its lateness (round
trips, a pause), so that the achieved rate is the limit and not a little less. Anything beyond is lost, not saved up."""
FETCH_TOLERANCE_MS: Final = 2000
"""The same for fetches: they bring up to half a second's worth, and answers from far away take a while."""
SLACK_MS: Final = 100
"""The same for time spent waiting for a delay of Kafka's: little of it may become credit, as that would be a burst,
which would come back from the window eleven seconds later."""
LONGEST_QUEUE_MS: Final = 30_000
"""Throttled fetchers queue no further ahead than this: most likely those in front have gone away."""
CROWDING: Final = 0.6
"""Throttled fetchers come back at intervals of this fraction of what one usually takes. At intervals of all of it, a
few that have nothing to read would waste much of the limit; so some come too early, and come again."""
PLENTY: Final = 1.5
"""Credit worth this many fetches means that it was not wanted."""
MAX_COUNTED: Final = 32
"""Waiting fetchers are counted up to this many."""
LARGE_MS: Final = 10_000
"""A charge worth more than this (Kafka's default window) is paid separately, so that the rest of its group need not
wait for all of it: see :attr:`Pacer.backlog_ms`."""
CALM_SHARE: Final = 0.9
"""Below this fraction of the limit a group counts as calm; two whole windows of calm end the episode."""
# Used with each fetch: a C number in compiled code (see the .pxd).
_FETCH_TOLERANCE_MS: Final = FETCH_TOLERANCE_MS


class Pacer:
    """The pacing clock of one group: the virtual time at which everything charged so far is paid (GCRA's TAT)."""

    __slots__ = (
        "_apart_ms",
        "_calm_since",
        "_delayed_until",
        "_largest_ms",
        "_last_scheduled",
        "_most_ms",
        "_scheduled",
        "_tolerance_ms",
        "backlog_ms",
        "paid_at",
    )

    def __init__(self, tolerance_ms: int = TOLERANCE_MS, apart_ms: float = LARGE_MS, most_ms: float = inf) -> None:
        self.paid_at = 0.0
        self.backlog_ms = 0.0
        """The debt beyond `paid_at`, for charges larger than `apart_ms`. It is paid by half of the limit while other
        requests use the other half, because each of their charges pays as much of it, and by all of it while there are
        none. In total the group owes `paid_at - now + backlog_ms`, and no byte is charged twice or not at all."""
        self._apart_ms = apart_ms
        self._largest_ms = 0.0  # of the charges in `backlog_ms`
        self._most_ms = most_ms
        """A charge leaves no larger debt than this before `paid_at`."""
        self._tolerance_ms = tolerance_ms
        self._last_scheduled = 0.0
        self._scheduled: deque[float] | None = None  # the latest ones; created on demand, as few groups need them
        self._delayed_until = 0.0  # by Kafka's delay
        self._calm_since: int | None = None

    def tolerate(self, portion_ms: float) -> None:
        """Fetches bring this much time's worth: one that comes late may still catch up."""
        tolerance_ms = int(portion_ms + 1000.0)
        self._tolerance_ms = max(_FETCH_TOLERANCE_MS, tolerance_ms)

    def begin(self, now: int, kafka_delay_ms: float) -> None:
        """Start an episode with the clock at the end of Kafka's delay: no earlier credit is left."""
        kafka_delay_ms = min(kafka_delay_ms, self._most_ms)
        self.paid_at = now + min(kafka_delay_ms, self._apart_ms)
        self.backlog_ms = self._largest_ms = max(kafka_delay_ms - self._apart_ms, 0.0)
        self._delayed_until = now + kafka_delay_ms
        self._last_scheduled = 0.0
        self._scheduled = None
        self._calm_since = None

    def take(self, cost_ms: float, now: int, kafka_delay_ms: int = 0, slack_ms: float = SLACK_MS) -> float:
        """Charge bytes worth `cost_ms` of the limit; returns the milliseconds until they are paid (<= 0: none)."""
        self.pay_backlog(now)
        large = cost_ms > self._apart_ms
        if large:
            self._largest_ms = max(self._largest_ms if self.backlog_ms else 0.0, cost_ms - self._apart_ms)
            self.backlog_ms += cost_ms - self._apart_ms
            cost_ms = self._apart_ms
        elif self.backlog_ms:
            share_ms = min(cost_ms, self.backlog_ms)
            self.backlog_ms -= share_ms
            cost_ms += share_ms
        self.paid_at = min(max(self.paid_at, now - self._tolerance_ms) + cost_ms, now + self._most_ms)
        if kafka_delay_ms > 0:
            self.delay(now + kafka_delay_ms, slack_ms)
        return self.owed_ms(now) if large else self.paid_at - now

    def delay(self, until: int, slack_ms: float = SLACK_MS) -> None:
        """Kafka's delay stops the group until then, of which `slack_ms` may become credit. What a large charge costs
        beyond `apart_ms` is in the backlog already."""
        self.paid_at = max(self.paid_at, until - slack_ms - self.backlog_ms)
        self._delayed_until = max(self._delayed_until, until)

    def owed_ms(self, now: int) -> float:
        """How long until all charges are paid, if there are no more; negative while there is credit."""
        return self.paid_at - now + self.backlog_ms

    def pay_backlog(self, now: int) -> None:
        """Time since `paid_at` that no charge has used pays for the backlog."""
        if self.backlog_ms and now > self.paid_at:
            self.paid_at, self.backlog_ms = self.debts(now)

    def debts(self, now: int) -> tuple[float, float]:
        """`paid_at` and `backlog_ms` as :meth:`pay_backlog` leaves them at `now`."""
        paid_ms = min(max(now - self.paid_at, 0.0), self.backlog_ms)
        return self.paid_at + paid_ms, self.backlog_ms - paid_ms

    def credit_ms(self, now: int) -> float:
        """How much time's worth may pass at once now; negative while something is unpaid. Only one large charge may be:
        fetches pass before their size is known, and if all are large, none would pay the backlog of the others."""
        credit_ms = min(now - self.paid_at, self._tolerance_ms)
        return credit_ms - max(self.debts(now)[1] - self._largest_ms, 0.0) if self.backlog_ms else credit_ms

    def give_back(self, cost_ms: float) -> None:
        """Undo part of a :meth:`take`."""
        from_backlog_ms = min(max(cost_ms - self._apart_ms, 0.0), self.backlog_ms)
        self.backlog_ms -= from_backlog_ms
        self.paid_at -= cost_ms - from_backlog_ms

    def schedule_fetch(self, now: int, earliest: float, spacing_ms: float) -> float:
        """When the next of several waiting fetchers should ask again: after those that wait already, each of which is
        expected to use `spacing_ms` worth. So they come one by one, in order, not all at the same moment."""
        self._last_scheduled = (
            max(self._last_scheduled + spacing_ms, earliest) if self._last_scheduled > now else earliest
        )
        if self._last_scheduled > earliest + LONGEST_QUEUE_MS:
            self._last_scheduled = earliest
        if self._scheduled is None:
            self._scheduled = deque(maxlen=MAX_COUNTED)
        self._scheduled.append(self._last_scheduled)
        return self._last_scheduled

    def shorten_queue(self, now: int) -> None:
        """There is credit that was not used: the fetchers in front have nothing to read."""
        self._last_scheduled = min(self._last_scheduled, float(now))

    def waiting(self, now: int) -> int:
        """About how many throttled fetchers still wait; counted no further than `MAX_COUNTED`."""
        scheduled = self._scheduled
        if not scheduled:
            return 0
        while scheduled and scheduled[0] <= now:
            scheduled.popleft()
        return len(scheduled)

    def note_rate(self, share: float, now: int) -> None:
        """The group's rate is `share` of its limit at `now`."""
        if share >= CALM_SHARE:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    def calm(self, now: int, empty_since: int, window_ms: int) -> bool:
        """Whether all is paid and the group was calm for two windows, which ends the episode. Silence that Kafka's
        delay demands does not count as calm. The window is empty since `empty_since`, if that has passed."""
        if self._calm_since is None and now > empty_since:
            self._calm_since = empty_since
        since = now if self._calm_since is None else self._calm_since
        return self.owed_ms(now) <= 0 and now - max(since, self._delayed_until) >= 2 * window_ms

    def rescale(self, factor: float, now: int) -> None:
        """The limit has changed from L to L / `factor`: debt and credit are amounts. A lower limit does not increase a
        credit."""
        if factor < 1 or self.paid_at > now:
            self.paid_at = now - min(now - self.paid_at, self._tolerance_ms) * factor
        self.backlog_ms *= factor
        self._largest_ms *= factor
