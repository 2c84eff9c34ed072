"""Smooth pacing of a group that is at its limit: our addition to Kafka's formula, see docs/adr/0004-smooth-pacing.md.

Kafka's window lets ten seconds' worth of bytes pass at once, holds the client until that burst leaves the window some
eleven seconds later, and then lets the same burst pass again. The pacer breaks that echo: from the moment a group
violates its quota (an *episode*) every byte also costs time on a clock that runs at the limit's rate, and a client
waits for the later of the two. It never shortens a delay of Kafka's.
"""

from collections import deque
from typing import Final

TOLERANCE_MS: Final = 1000
"""How far the pacing clock may lag behind real time: what a client was late by (round trips, a pause) up to this much
is made up for, so that the achieved rate is the limit and not a little less. Anything beyond is lost, not saved up."""
FETCH_TOLERANCE_MS: Final = 2000
"""The same for fetches: they come in portions of up to half a second, and answers from far away take a while."""
SLACK_MS: Final = 100
"""The same for time that a client spent waiting for a delay of Kafka's: little of it may become credit, for that credit
would be a burst, and the burst would come back from the window eleven seconds later."""
LONGEST_QUEUE_MS: Final = 30_000
"""Refused fetchers queue no further ahead than this: most likely those in front have gone away."""
CROWDING: Final = 0.6
"""Refused fetchers come back at intervals of this share of what one usually takes. At intervals of all of it, a few of
them with nothing to read would be enough to waste what the limit allows; some come too early now, and come again."""
PLENTY: Final = 1.5
"""Credit worth this many portions means that nobody wanted it."""
MAX_COUNTED: Final = 32
"""Waiting fetchers are counted up to this many."""
LARGE_MS: Final = 10_000
"""A charge worth more than this (Kafka's window, as it is by default) is paid apart, so that the rest of its group need
not wait for all of it: see :attr:`Pacer.backlog_ms`."""
CALM_SHARE: Final = 0.9
"""Below this share of the limit a group counts as calm; two whole windows of calm end the episode."""


class Pacer:
    """The pacing clock of one group: the virtual time at which everything charged so far is paid for (GCRA's TAT)."""

    __slots__ = (
        "_apart_ms",
        "_calm_since",
        "_held_until",
        "_tolerance_ms",
        "_turn",
        "_turns",
        "active",
        "backlog_ms",
        "paid_at",
    )

    def __init__(self, tolerance_ms: int = TOLERANCE_MS, apart_ms: float = LARGE_MS) -> None:
        self.active = False
        self.paid_at = 0.0
        self.backlog_ms = 0.0
        """What is owed beyond `paid_at`, for charges larger than `apart_ms`. It is paid by half of the limit while
        others use the other half, because each of their charges pays as much of it, and by all of it while none does.
        In all the group owes `paid_at - now + backlog_ms`, and no byte is charged for twice or not at all."""
        self._apart_ms = apart_ms
        self._tolerance_ms = tolerance_ms
        self._turn = 0.0
        self._turns: deque[float] | None = None  # the latest ones; made when needed, few groups ever do
        self._held_until = 0  # by a delay of Kafka's
        self._calm_since: int | None = None

    def begin(self, now: int, kafka_delay_ms: int) -> None:
        """Start an episode with the clock at the end of Kafka's delay: no credit is left from before."""
        self.active = True
        self.paid_at = now + min(float(kafka_delay_ms), self._apart_ms)
        self.backlog_ms = max(kafka_delay_ms - self._apart_ms, 0.0)
        self._held_until = now + kafka_delay_ms
        self._turn = 0.0
        self._turns = None
        self._calm_since = None

    def take(self, cost_ms: float, now: int, kafka_delay_ms: int = 0, slack_ms: float = SLACK_MS) -> float:
        """Charge bytes worth `cost_ms` of the limit; returns the milliseconds until they are paid for (<= 0: none)."""
        self.pay_backlog(now)
        large = cost_ms > self._apart_ms
        if large:
            self.backlog_ms += cost_ms - self._apart_ms
            cost_ms = self._apart_ms
        elif self.backlog_ms:
            share_ms = min(cost_ms, self.backlog_ms)
            self.backlog_ms -= share_ms
            cost_ms += share_ms
        self.paid_at = max(self.paid_at, now - self._tolerance_ms) + cost_ms
        if kafka_delay_ms > 0:
            self.hold(now + kafka_delay_ms, slack_ms)
        return self.owed_ms(now) if large else self.paid_at - now

    def hold(self, until: int, slack_ms: float = SLACK_MS) -> None:
        """A delay of Kafka's keeps the group waiting until then, of which `slack_ms` may become credit. What a large
        charge has brought about beyond `apart_ms` is in the backlog already."""
        self.paid_at = max(self.paid_at, until - slack_ms - self.backlog_ms)
        self._held_until = max(self._held_until, until)

    def owed_ms(self, now: int) -> float:
        """How long until all that was charged is paid, if nothing more is; negative while there is credit."""
        return self.paid_at - now + self.backlog_ms

    def pay_backlog(self, now: int) -> None:
        """Time that no charge has used since `paid_at` pays for the backlog."""
        if self.backlog_ms and now > self.paid_at:
            self.paid_at, self.backlog_ms = self.debts(now)

    def debts(self, now: int) -> tuple[float, float]:
        """`paid_at` and `backlog_ms` as :meth:`pay_backlog` leaves them at `now`."""
        paid_ms = min(max(now - self.paid_at, 0.0), self.backlog_ms)
        return self.paid_at + paid_ms, self.backlog_ms - paid_ms

    def credit_ms(self, now: int) -> float:
        """How much time's worth may pass at once now; negative while something is still unpaid."""
        return min(now - self.paid_at, self._tolerance_ms)

    def give_back(self, cost_ms: float) -> None:
        """Undo part of a :meth:`take`."""
        from_backlog_ms = min(max(cost_ms - self._apart_ms, 0.0), self.backlog_ms)
        self.backlog_ms -= from_backlog_ms
        self.paid_at -= cost_ms - from_backlog_ms

    def turn(self, now: int, earliest: float, spacing_ms: float) -> float:
        """When the next of several waiting fetchers shall ask again: after those that wait already, each of which is
        expected to use `spacing_ms` worth. So they come one by one, in order, not all at the same moment."""
        self._turn = max(self._turn + spacing_ms, earliest) if self._turn > now else earliest
        if self._turn > earliest + LONGEST_QUEUE_MS:
            self._turn = earliest
        if self._turns is None:
            self._turns = deque(maxlen=MAX_COUNTED)
        self._turns.append(self._turn)
        return self._turn

    def shorten_queue(self, now: int) -> None:
        """There is credit that nobody took: those in front of the queue have nothing to read."""
        self._turn = min(self._turn, float(now))

    def waiting(self, now: int) -> int:
        """About how many refused fetchers still wait for their turn; counted no further than `MAX_COUNTED`."""
        turns = self._turns
        if not turns:
            return 0
        while turns and turns[0] <= now:
            turns.popleft()
        return len(turns)

    def note_idle(self, empty_since: int) -> None:
        """Nothing was charged for so long that the window has been empty since `empty_since`."""
        if self._calm_since is None:
            self._calm_since = empty_since

    def note_rate(self, share: float, now: int) -> None:
        """The group's rate is `share` of its limit at `now`."""
        if share >= CALM_SHARE:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    def calm(self, now: int, calm_ms: int, owed_until: int, empty_since: int) -> bool:
        """Whether the group was calm for `calm_ms`, which ends the episode. Being silent because Kafka's delay (or what
        is left of a capped one, until `owed_until`) demands it is not calm. The window is empty since `empty_since`, if
        that has come."""
        since = self._calm_since
        if since is None:
            since = empty_since  # not calm for `calm_ms` before it has come
        return self.owed_ms(now) <= 0 and now - max(since, self._held_until, owed_until) >= calm_ms
