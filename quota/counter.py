"""One shared counter: what a group of clients used, what it may use now, and what it still owes."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from quota.entity import CounterKey, Kind, Level
from quota.rate import MAX_THROTTLE_MS
from quota.table import Entry, Limit
from quota.trial import Trial

MutationAlgorithm = Literal["token_bucket", "windowed_burst"]
"""How partition mutations are counted: KIP-599's token bucket, or the windowed rate that it planned before."""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How a ledger counts; the same for all its groups."""

    num_samples: int = 11
    window_ms: int = 1000
    max_throttle_ms: int | None = 30_000
    smooth: bool = True
    mutation_num_samples: int = 11
    """Kafka's ``controller.quota.window.num``: partition mutations have windows of their own."""
    mutation_window_ms: int = 1000
    mutation_algorithm: MutationAlgorithm = "token_bucket"


class Usage:
    """Running totals, for metrics; never reset while the object lives."""

    __slots__ = ("amount", "charges", "held", "held_ms", "throttle_ms", "throttled")

    def __init__(self) -> None:
        self.amount: float = 0
        """Everything charged, in the kind's unit (bytes, busy milliseconds, partitions); refunds are taken off."""
        self.charges = 0
        """How many charges that were."""
        self.throttled = 0
        """Requests delayed because of this quota."""
        self.throttle_ms = 0
        """The sum of those delays."""
        self.held = 0
        """Of the delayed requests, those that waited at the gate before they were forwarded."""
        self.held_ms = 0
        """How long they waited there; part of `throttle_ms`."""


class Line(NamedTuple):
    """Who waits before their requests are forwarded (ADR 0026), for people and metrics."""

    waiting: int = 0
    """Connections."""
    next_ms: int = 0
    """How long until the next of them may pass."""
    newcomer_ms: int = 0
    """About how long a request of ordinary size that came now would wait, behind those that are before it."""
    debt_ms: int = 0
    """What the group owes in all: so long until everything that was used is paid, if nothing more is."""


NO_LINE: Final = Line()


class QuotaCounter:
    """What every kind of counter has. Times are integer milliseconds that never run backwards."""

    __slots__ = (
        "applied",
        "candidate",
        "capped",
        "carries",
        "entry",
        "fleet",
        "key",
        "kind",
        "last_ms",
        "level",
        "limit",
        "max_throttle_ms",
        "may_hold",
        "owed_until",
        "pays",
        "shadow",
        "shadowed",
        "share",
        "throttled_until",
        "usage",
        "users",
        "whole",
    )

    def __init__(self, kind: Kind, key: CounterKey, settings: LedgerSettings, now: int) -> None:
        self.kind = kind
        self.key = key
        self.limit: float | None = None
        """In force here: of a limit of a whole fleet this instance's share."""
        self.whole: float | None = None
        """The limit as its entry has it."""
        self.fleet = False
        """It is one of a whole fleet."""
        self.share = 1.0
        """The part of it that may be used here."""
        self.level: Level | None = None
        self.entry: Entry | None = None
        self.shadow = False
        self.pays = settings.smooth
        """The group pays what it owes before more of it is forwarded (ADR 0026). Else exactly as a broker: a mute holds
        the connection that brought it about and no other."""
        self.may_hold = False
        """Requests have to ask :meth:`hold`. While this is False no whole request has to wait."""
        self.max_throttle_ms = settings.max_throttle_ms
        self.carries = True
        """Whether the part of a delay beyond the cap has to be carried, because the counter itself would forget it."""
        self.last_ms = now
        self.owed_until = 0
        """Where the uncapped delay would have ended: the next delay ends there at the earliest (DESIGN: max_mute)."""
        self.throttled_until = 0
        self.applied = -1
        """Of which table the limit is; kept by :mod:`quota.counter_store`."""
        self.users = 0
        """How many accounts are led to this counter; kept by :mod:`quota.counter_store`."""
        self.usage = Usage()
        self.capped = 0
        """How many delays were cut to the longest one allowed."""
        self.shadowed: Trial | None = None
        """What the limit would have done, if it was ever one of a shadow entry."""
        self.candidate: Trial | None = None
        """What the entry's candidate would have done, if it ever had one."""

    def apply_limit(self, limit: Limit) -> None:
        """Take over a limit; whatever was counted stays, so it takes effect at the next charge, as in Kafka."""
        old = self.limit
        self.whole, self.level, self.entry, self.fleet = limit
        if not self.fleet:
            self.share = 1.0
        self.limit = None if self.whole is None else self.whole * self.share
        if old is not None and self.limit is not None and old != self.limit:
            self._rescale(old / self.limit)
        self.shadow = limit.entry is not None and limit.entry.mode == "shadow"
        self.shadowed = _put(self.shadowed, self.limit if self.shadow else None)
        candidate = None if limit.entry is None else limit.entry.candidate_limit(self.kind)
        self.candidate = _put(self.candidate, None if candidate is None else candidate * self.share)

    def take_share(self, share: float, level: float, now: int) -> None:
        """Use `share` of a fleet's limit from now on. What was counted moves with it (:meth:`SampledRate.move`, `level`
        is how full the fleet's window is); what is owed is an amount, and takes another time."""
        old, whole, before = self.limit, self.whole, self.share
        if not self.fleet or old is None or whole is None or share == before:
            return
        self.share = share
        self.limit = new = whole * share
        if self.shadowed is not None and self.shadow:
            self.shadowed.limit = new
        if self.candidate is not None and self.candidate.limit is not None:
            self.candidate.limit *= share / before
        self._move(old, new, level, now)

    def fullness(self, _now: int) -> float:
        """How much lies in the window, over what the whole limit (not the share of it) would let lie there."""
        return 0.0

    def charge(self, amount: float, now: int) -> int:
        """Count `amount`, then check: the delay in milliseconds, 0 for none."""
        raise NotImplementedError

    def record(self, amount: float, now: int) -> None:
        """Count `amount` without asking for a delay."""
        raise NotImplementedError

    def refund(self, amount: float, now: int) -> None:
        """Take back what was charged."""
        raise NotImplementedError

    def hold(self, _connection: object, _amount: float, now: int, *, whole: bool = False) -> int:
        """How long a request of this connection that costs `amount` has to wait before it may be forwarded, because of
        what the group owes (ADR 0026); 0: it may pass. Until then the connection has a place in the queue. `whole`: it
        is charged at once."""
        return self.due(now) if self.pays else 0

    def pass_held(self, connection: object) -> None:
        """The connection has no request that waits here any more, or never will again."""

    @property
    def waiting(self) -> int:
        """How many connections have a request that waits because of what this group owes."""
        return 0

    def line(self, _now: int) -> Line:
        """How those that wait stand. Looking changes nothing."""
        return NO_LINE

    def renews(self, _size_bytes: int, _now: int) -> bool:
        """Whether a request of a client that has to log in again soon may pass although it ought to wait: the login
        lies behind it (KIP-368). It is charged like any other, so what passes is paid by those that come later; the
        allowance is the group's, whatever its connections, and comes back at the rate of the limit."""
        return False

    def check(self, now: int) -> int:
        """The delay that is due now, counting nothing."""
        return self.due(now)

    def due(self, now: int) -> int:
        """The delay that is due now, changing nothing at all (for explanations)."""
        raise NotImplementedError

    def allowance(self, now: int) -> int | None:
        """How much may be used now without a delay; None for no limit."""
        raise NotImplementedError

    def observed(self, now: int) -> float:
        """What the limit is compared with: the rate in the window, or the tokens left."""
        raise NotImplementedError

    def utilisation(self, now: int) -> float | None:
        """The used share of the limit, None without a limit."""
        raise NotImplementedError

    def trial_utilisation(self, trial: Trial, now: int) -> float | None:
        """The share of a limit on trial that is used."""
        return None if trial.limit is None else self.observed(now) / trial.limit

    def owes(self, now: int) -> bool:
        """Whether forgetting this group now would forgive a delay or a debt."""
        return max(self.owed_until, self.throttled_until) > now

    def owed_ms(self, now: int) -> int:
        """What is owed beyond the delays that were told: requests wait for it although no mute holds them."""
        return max(self.owed_until - now, 0)

    def forgettable(self, now: int) -> bool:
        """Whether a counter made anew would decide everything from `now` on as this one, if the limit stays as it is:
        nothing that was counted is in force any more."""
        return not self.owes(now)

    def _move(self, old: float, new: float, _level: float, now: int) -> None:
        self.owed_until = now + int(max(self.owed_until - now, 0) * old / new)

    def _rescale(self, factor: float) -> None:
        """What is owed is an amount: under another limit it takes another time."""
        self.owed_until = self.last_ms + int(max(self.owed_until - self.last_ms, 0) * factor)

    def _impose(self, delay: int, now: int) -> int:
        """Turn a delay into the one to tell the client: carry, cap, shadow."""
        if self.shadowed is not None and self.shadow:
            self.shadowed.note(delay, now)
            return 0
        delay = max(delay, self.owed_until - now)
        if delay <= 0:
            return 0
        delay = self._capped(delay, now, count=True)
        self.throttled_until = max(self.throttled_until, now + delay)
        return delay

    def _capped(self, delay: int, now: int, *, count: bool) -> int:
        longest = self.max_throttle_ms
        if longest is None or delay <= longest:
            return min(delay, MAX_THROTTLE_MS)
        if count:
            self.capped += 1
            if self.carries:
                self.owed_until = now + delay
        return longest


def _put(trial: Trial | None, limit: float | None) -> Trial | None:
    """The trial with this limit; made when there is one for the first time, few groups ever have any."""
    if trial is None and limit is not None:
        trial = Trial()
    if trial is not None:
        trial.put_to(limit)
    return trial


class FetchAdmission:
    """The answer to "may this fetch go to the broker", to be handed back with the size of its response."""

    __slots__ = ("group", "max_bytes", "paced_ms", "reserved", "throttle_ms")

    def __init__(
        self,
        throttle_ms: int,
        max_bytes: int | None,
        group: QuotaCounter | None = None,
        reserved: float = 0.0,
        paced_ms: float = 0.0,
    ) -> None:
        self.throttle_ms = throttle_ms
        """> 0: not now; answer with an empty response and mute for this long."""
        self.max_bytes = max_bytes
        """The most it may ask for; None for no limit."""
        self.group = group
        self.reserved = reserved
        self.paced_ms = paced_ms


NOT_LIMITED: Final = FetchAdmission(0, None)


class Hold(NamedTuple):
    """The answer to "may this request be forwarded"."""

    wait_ms: int
    """> 0: not now; ask again after this time."""
    group: QuotaCounter | None
    """Where the connection waits."""


NO_HOLD: Final = Hold(0, None)
