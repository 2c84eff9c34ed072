"""One shared counter: what a group of clients used, what it may use now, and its debt."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from quota.entity import CounterKey, Kind, Level
from quota.gate import Sender
from quota.table import Entry, Resolution
from quota.trial import Trial

MutationAlgorithm = Literal["token_bucket", "windowed_burst"]
"""How partition mutations are counted: KIP-599's token bucket, or the windowed rate planned before it."""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How a ledger counts; the same for all its groups."""

    num_samples: int = 11
    """Kafka's ``quota.window.num``."""
    window_ms: int = 1000
    """Kafka's ``quota.window.size.seconds``."""
    max_throttle_ms: int | None = 30_000
    """The longest delay (None: no cap, as Kafka); the group carries the part that is cut off."""
    smooth: bool = True
    """With pacing (ADR 0004)."""
    mutation_num_samples: int = 11
    """Kafka's ``controller.quota.window.num``: partition mutations have windows of their own."""
    mutation_window_ms: int = 1000
    mutation_algorithm: MutationAlgorithm = "token_bucket"

    def __post_init__(self) -> None:
        if min(self.num_samples, self.window_ms, self.mutation_num_samples, self.mutation_window_ms) < 1:
            raise ValueError(f"a window has at least 1 sample of at least 1 ms: {self}")


class Usage:
    """Running totals, for metrics; never reset while the object lives."""

    __slots__ = ("_amount", "charges", "queued", "queued_ms", "throttle_ms", "throttled")

    def __init__(self) -> None:
        self._amount = 0.0
        self.charges = 0
        """Number of charges."""
        self.throttled = 0
        """Requests delayed because of this quota."""
        self.throttle_ms = 0
        """The sum of those delays."""
        self.queued = 0
        """Of the delayed requests, those that were queued at the gate before they were forwarded."""
        self.queued_ms = 0
        """How long they were queued there; part of `throttle_ms`."""

    @property
    def amount(self) -> float:
        """Everything charged, in the kind's unit (bytes, busy milliseconds, partitions), minus refunds. An int where it
        is whole, as bytes are: exact up to 2**53, 9 petabytes."""
        return int(self._amount) if self._amount.is_integer() else self._amount


class Line(NamedTuple):
    """The queue at a group's gate (ADR 0026), for people and metrics."""

    waiting: int = 0
    """Connections in the queue."""
    next_ms: int = 0
    """How long until the next one may pass."""
    newcomer_ms: int = 0
    """About how long a request of ordinary size that came now would wait, behind those in the queue."""
    debt_ms: int = 0
    """The group's whole debt: how long until all past usage is paid, if there is no more."""


NO_LINE: Final = Line()


class QuotaCounter:
    """What all kinds of counters share. Times are integer milliseconds that never run backwards."""

    __slots__ = (
        "applied",
        "candidate",
        "capped",
        "entry",
        "fleet",
        "key",
        "kind",
        "last_ms",
        "level",
        "limit",
        "max_throttle_ms",
        "may_queue",
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
        """The limit in force here: for a fleet's limit, this instance's share of it."""
        self.whole: float | None = None
        """The limit as its entry has it."""
        self.fleet = False
        """The limit is that of a whole fleet."""
        self.share = 1.0
        """The fraction of it that may be used here."""
        self.level: Level | None = None
        self.entry: Entry | None = None
        self.shadow = False
        self.may_queue = False
        """Requests have to ask :meth:`queue`. While this is False no whole request is queued."""
        self.max_throttle_ms = settings.max_throttle_ms
        self.last_ms = now
        self.throttled_until = 0
        self.applied = -1
        """Generation of the table that the limit is from; kept by :mod:`quota.counter_store`."""
        self.users = 0
        """How many accounts use this counter; kept by :mod:`quota.counter_store`."""
        self.usage = Usage()
        self.capped = 0
        """How many delays were cut to the cap."""
        self.shadowed: Trial | None = None
        """What the limit would have done, if it ever was a shadow entry's."""
        self.candidate: Trial | None = None
        """What the entry's candidate would have done, if it ever had one."""

    def apply_limit(self, found: Resolution) -> None:
        """Set the limit; the samples stay, so it takes effect at the next charge, as in Kafka."""
        old = self.limit
        _, self.whole, self.level, self.entry, self.fleet = found
        if not self.fleet:
            self.share = 1.0
        self.limit = None if self.whole is None else self.whole * self.share
        if old is not None and self.limit is not None and old != self.limit:
            self._rescale(old / self.limit, self.last_ms)
        self.shadow = found.entry is not None and found.entry.mode == "shadow"
        self.shadowed = _put(self.shadowed, self.limit if self.shadow else None)
        candidate = None if found.entry is None else found.entry.candidate_limit(self.kind)
        self.candidate = _put(self.candidate, None if candidate is None else candidate * self.share)

    def take_share(self, share: float, level: float, now: int) -> None:
        """Use `share` of a fleet's limit from now on. The samples move with it (:meth:`SampledRate.move`, `level` is
        how full the fleet's window is); a debt is an amount, which takes a different time to pay now."""
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

    def fullness(self, now: int) -> float:
        """How full the window is, as a fraction of the whole limit (not of the share of it)."""
        return 0.0

    def charge(self, amount: float, now: int) -> int:
        """Record `amount`, then check: the delay in milliseconds, 0 for none."""
        raise NotImplementedError

    def record(self, amount: float, now: int) -> None:
        """Record `amount` without checking."""
        raise NotImplementedError

    def refund(self, amount: float, now: int) -> None:
        """Take back a charge."""
        raise NotImplementedError

    # Without a debt that others pay for, as in a broker, no request waits here: a mute stops the connection that caused
    # it and no other. Counters that queue requests override these.

    def queue(self, connection: object, amount: float, now: int, whole: bool = False) -> int:
        """How long a request of this connection that costs `amount` has to wait before it may be forwarded, because of
        the group's debt (ADR 0026); 0: it may pass. Until then the connection has a place in the queue. `whole`: it is
        charged at once; otherwise the connection is a :class:`quota.gate.Sender`."""
        return 0

    def claim(self, connection: Sender, amount: float, now: int) -> bool:
        """Let a request pass that costs `amount` and has not arrived whole. False: the group is in debt, or others
        wait; ask :meth:`queue`."""
        return True

    def abandon(self, connection: object, size_bytes: int, now: int) -> bool:
        """The client of a queued request has gone. Whether the request, of which `size_bytes` and what follows it have
        been received, keeps a place: one that it shares with all others like it."""
        return False

    def refuse(self, connection: object, amount: float, now: int) -> int | None:
        """Throw away a queued request of `amount`, keep the connection's place: how long until its turn. None: it
        waits on, as the group is not in debt or too much was thrown away."""
        return None

    def leave_queue(self, connection: object) -> None:
        """The connection has no queued request here any more."""

    @property
    def waiting(self) -> int:
        """How many connections have a request queued for this group's debt."""
        return 0

    @property
    def paced(self) -> bool:
        """Whether smooth pacing is active (ADR 0004)."""
        return False

    def line(self, now: int) -> Line:
        """The state of the queue, without changing anything."""
        return NO_LINE

    def renews(self, size_bytes: int, now: int) -> bool:
        """Whether a request of a client that has to log in again soon may pass although it should wait: the login comes
        after it (KIP-368). It is charged like any other, so later requests pay for it. The allowance is the group's,
        whatever its connections, and is refilled at the limit's rate."""
        return False

    def check(self, now: int) -> int:
        """The delay that is due now, without recording anything."""
        return self.due(now)

    def due(self, now: int) -> int:
        """The delay that is due now, without changing anything at all (for explanations)."""
        raise NotImplementedError

    def observed(self, now: int) -> float:
        """The value that the limit applies to: the rate in the window, or the tokens left."""
        raise NotImplementedError

    def utilisation(self, now: int) -> float | None:
        """The used share of the limit, None without a limit."""
        raise NotImplementedError

    def trial_utilisation(self, trial: Trial, now: int) -> float | None:
        """The used fraction of a limit on trial."""
        return None if trial.limit is None else self.observed(now) / trial.limit

    def owes(self, now: int) -> bool:
        """Whether evicting this counter now would forgive a delay or a debt."""
        return self.throttled_until > now

    def owed_ms(self, now: int) -> int:
        """The debt beyond the delays that were announced: requests are queued for it although no mute applies."""
        return 0

    def forgettable(self, now: int) -> bool:
        """Whether a new counter would make the same decisions from `now` on, if the limit stays the same: none of the
        past charges matters any more."""
        return not self.owes(now)

    def _move(self, old: float, new: float, level: float, now: int) -> None:
        """The limit changed from `old` to `new` because a share of a fleet's moved."""
        raise NotImplementedError

    def _rescale(self, factor: float, now: int) -> None:
        """The limit changed from L to L / `factor`: a debt is an amount, which takes another time to pay now."""

    def _impose(self, delay: int, now: int) -> int:
        """Turn a delay into the one to announce: cap, shadow."""
        if self.shadowed is not None and self.shadow:
            self.shadowed.note(delay, now)
            return 0
        if delay <= 0:
            return 0
        capped = self._capped(delay)
        self.capped += capped < delay
        self.throttled_until = max(self.throttled_until, now + capped)
        return capped

    def _capped(self, delay: int) -> int:
        return delay if self.max_throttle_ms is None else min(delay, self.max_throttle_ms)


def _put(trial: Trial | None, limit: float | None) -> Trial | None:
    """The trial with this limit; created when the first one appears, as few groups ever have any."""
    if trial is None and limit is not None:
        trial = Trial()
    if trial is not None:
        trial.put_to(limit)
    return trial


class FetchGrant:
    """The decision about a fetch, passed back with the size of its response."""

    __slots__ = ("group", "head_bytes", "max_bytes", "paced_ms", "reserved", "throttle_ms")

    def __init__(self, throttle_ms: int, max_bytes: int | None) -> None:
        self.throttle_ms = throttle_ms
        """> 0: not now; answer with an empty response and mute for this long."""
        self.max_bytes = max_bytes
        """The `max_bytes` granted; None for no limit."""
        self.group: QuotaCounter | None = None
        self.reserved = self.paced_ms = 0.0
        self.head_bytes = 0
        """Bytes of the response that are no records, as far as they are known: more may be when it comes."""


NOT_LIMITED: Final = FetchGrant(0, None)


def granted(max_bytes: int, group: QuotaCounter, reserved: float, paced_ms: float, head_bytes: int) -> FetchGrant:
    """A grant that is not to wait."""
    # Not by calling the class, which in compiled code would take longer than everything else here.
    grant = FetchGrant.__new__(FetchGrant)
    grant.throttle_ms = 0
    grant.max_bytes = max_bytes
    grant.group = group
    grant.reserved = reserved
    grant.paced_ms = paced_ms
    grant.head_bytes = head_bytes
    return grant
