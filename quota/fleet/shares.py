"""Connects a ledger to its fleet: reports groups to the fleet, and applies the shares of each limit to the groups."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from quota.connections import ConnectionEntry, EntityType
from quota.counter import QuotaCounter
from quota.entity import CounterKey, Kind
from quota.fleet.core import STEP, Fleet, FleetStatus, Outgoing
from quota.fleet.demand import SAMPLE_MS
from quota.fleet.record import group_hash
from quota.fleet.split import CAPACITY
from quota.ledger import Ledger
from quota.steps import Steps, whole

SOON_MS: Final = 1000
"""While an instance has less than its fair share, the longest throttle of one response: more is about to come,
and a connection muted for minutes would not notice. The debt beyond it is paid all the same (ADR 0026)."""
_BUSY_TO_PERCENT: Final = 0.1
"""1 ms of busy time per second is 0.1 percent of one thread."""
_LITTLE: Final = 1e-3
"""A share that grows by less than this fraction of itself is not changed. A smaller one always applies."""


@dataclass(slots=True)
class _Local:
    """One group at the last step."""

    group: QuotaCounter
    hash: int
    amount: float
    throttled: int


@dataclass(slots=True)
class _Rate:
    """One address or user with a connection rate."""

    entry: ConnectionEntry
    hash: int
    share: float
    made: int = 0
    refused: bool = False


class Shares:
    """Sets the limits of one ledger that are a whole fleet's to this instance's share of them.

    Call :meth:`step` with the time and what was read of the topic a few times per second, and publish what it returns.
    """

    def __init__(self, ledger: Ledger, fleet: Fleet, now: float) -> None:
        self.fleet: Final = fleet
        self._ledger = ledger
        self._now = now
        self._sampled = now
        self._locals: dict[int, _Local] = {}
        """By the hash of the group."""
        self._rates: dict[tuple[EntityType, str], _Rate] = {}
        self._active: dict[int, _Local] = {}
        self._floor = 0.0
        self._lost = False
        ledger.counters.on_fleet = self._found
        ledger.counters.on_forget.append(self._forgotten)
        ledger.connections.shares = self
        ledger.fleet = self

    @property
    def count(self) -> int:
        """The number of groups here whose limit is the fleet's."""
        return len(self._locals) + len(self._rates)

    def steps(self, now: float) -> Steps[list[Outgoing]]:
        """Report the groups, take part in the split, apply the shares, in steps of about a millisecond: the ledger may
        be used between two, but nothing be read."""
        self._now = now
        if now >= self._sampled + SAMPLE_MS:
            yield from self._sample(now)
        found = yield from self.fleet.steps(now)
        yield from self._apply(now)
        return found

    def leave(self, now: float) -> list[Outgoing]:
        """Leave the fleet."""
        found = self.fleet.leave(now)
        self._lost = not self._lost  # all shares change
        whole(self._apply(now))
        return found

    def active(self) -> Iterator[QuotaCounter]:
        """Groups in use here."""
        return (local.group for local in list(self._active.values()))

    def standing(self, group: QuotaCounter) -> FleetStatus | None:
        """The state of a group in the fleet; None for one whose limit is this instance's own."""
        local = self._locals.get(id(group))
        return None if local is None or not group.fleet else self.fleet.standing(local.hash, self._now)

    def standing_of_rate(self, entity_type: EntityType, name: str) -> FleetStatus | None:
        """The state of the connection rate of an address or a user."""
        rate = self._rates.get((entity_type, name))
        return None if rate is None else self.fleet.standing(rate.hash, self._now)

    def rates(self) -> Iterator[tuple[EntityType, str, FleetStatus]]:
        """Addresses and users whose connection rate is the fleet's and is in use here."""
        return (
            (entity_type, name, self.fleet.standing(one.hash, self._now))
            for (entity_type, name), one in self._rates.items()
        )

    # ---- connections ------------------------------------------------------------------------------------------------

    def share(self, entry: ConnectionEntry, name: str) -> float:
        """The fraction of the entry's rate that this instance may use for a name; 1 where the limit is its own. One
        connection per window is always allowed: less cannot be split."""
        if not self._ledger.table.of_fleet(entry):
            return 1.0
        limit = entry.connection_creation_rate
        if not limit:
            return 1.0
        # Whoever only asks adds no name to the fleet: `attempted` does.
        rate = self._rates.get((entry.entity_type, name))
        share = self.fleet.share(_rate_hash(entry, name)) if rate is None else rate.share
        settings = self._ledger.settings
        once = 1000.0 / max((settings.num_samples - 1) * settings.window_ms, 1)
        return max(share, min(once / limit, 1.0))

    def attempted(self, entry: ConnectionEntry, name: str, refused: bool) -> None:
        """A connection was created under the entry's rate, or refused."""
        if not self._ledger.table.of_fleet(entry):
            return
        rate = self._rates.get((entry.entity_type, name))
        if rate is None:
            number = _rate_hash(entry, name)
            self.fleet.join(number, self._now)
            rate = self._rates[entry.entity_type, name] = _Rate(entry, number, self.fleet.share(number))
        rate.entry = entry
        rate.made += 1
        rate.refused |= refused

    # ---- groups -----------------------------------------------------------------------------------------------------

    def _found(self, group: QuotaCounter) -> None:
        local = self._locals.get(id(group))
        if local is None:
            number, usage = group_hash(group.kind, group.key), group.usage
            local = self._locals[id(group)] = _Local(group, number, usage.amount, usage.throttled)
            self.fleet.join(number, self._now)
        self._give(local, self._now, again=True)

    def _forgotten(self, group: QuotaCounter) -> None:
        local = self._locals.pop(id(group), None)
        self._active.pop(id(group), None)
        if local is not None:
            self.fleet.part(local.hash)

    def _sample(self, now: float) -> Steps[None]:
        elapsed_s = max(now - self._sampled, 1.0) / 1000.0
        self._sampled = now
        fleet = self.fleet
        for number, (key, local) in enumerate(list(self._locals.items()), 1):
            if number % STEP == 0:
                yield
            group = local.group
            if key not in self._locals:
                continue
            usage = group.usage
            if not group.fleet:
                self._forgotten(group)
                continue
            quiet = usage.amount == local.amount and usage.throttled == local.throttled
            if quiet and key not in self._active and not group.waiting:
                continue
            trial = group.shadowed if group.shadow else None
            until_ms = group.throttled_until if trial is None else trial.until_ms
            short = usage.throttled != local.throttled or until_ms > now or group.waiting > 0
            rate = max(usage.amount - local.amount, 0.0) / elapsed_s
            if group.kind is Kind.REQUEST:
                rate *= _BUSY_TO_PERCENT
            local.amount, local.throttled = usage.amount, usage.throttled
            whole = group.whole
            if whole:
                fleet.sample(local.hash, rate, rate / whole, group.fullness(int(now)), short, now)
                self._active[key] = local
        for place, connections in list(self._rates.items()):
            self._sample_rate(place, connections, elapsed_s, now)
        for number, (key, local) in enumerate(list(self._active.items()), 1):
            if number % STEP == 0:
                yield
            if not fleet.active(local.hash):
                self._active.pop(key, None)

    def _sample_rate(self, place: tuple[EntityType, str], rate: _Rate, elapsed_s: float, now: float) -> None:
        gate, limit = self._ledger.connections, rate.entry.connection_creation_rate
        made, refused = rate.made, rate.refused
        rate.made, rate.refused = 0, False
        observed = gate.observed(*place, now)
        if limit and (made or observed or self.fleet.active(rate.hash)):
            per_s = made / elapsed_s
            self.fleet.sample(rate.hash, per_s, per_s / limit, observed / limit, refused, now)
        elif not self.fleet.active(rate.hash):
            self.fleet.part(rate.hash)
            del self._rates[place]

    def _apply(self, now: float) -> Steps[None]:
        """Apply the shares of groups in use; of all groups when the floor has moved, or the fleet was lost or found."""
        fleet = self.fleet
        floor, lost = fleet.floor, fleet.lost
        everywhere = floor != self._floor or lost != self._lost
        self._floor, self._lost = floor, lost
        for number, local in enumerate(list((self._locals if everywhere else self._active).values()), 1):
            self._give(local, now)
            if number % STEP == 0:
                yield
        for (entity_type, name), rate in self._rates.items():
            share, limit = fleet.share(rate.hash), rate.entry.connection_creation_rate
            if limit and _moved(share, rate.share):
                level = fleet.level(rate.hash, now)
                self._ledger.connections.move(entity_type, name, rate.share * limit, share * limit, level, now)
                rate.share = share

    def _give(self, local: _Local, now: float, *, again: bool = False) -> None:
        fleet, group = self.fleet, local.group
        share = fleet.share(local.hash)
        if not again and not _moved(share, group.share):
            return  # nearly always
        if _moved(share, group.share):
            group.take_share(share, fleet.level(local.hash, now), int(now))
        settled = self._ledger.settings.max_throttle_ms
        wants_more = share < 0.9 * CAPACITY / fleet.instances(local.hash, now)
        group.max_throttle_ms = SOON_MS if wants_more and (settled is None or settled > SOON_MS) else settled


def _rate_hash(entry: ConnectionEntry, name: str) -> int:
    return group_hash(f"connection by {entry.entity_type}", CounterKey(name, None))


def _moved(share: float, before: float) -> bool:
    return share < before or share > before * (1 + _LITTLE)
