"""All shared counters: lookup, creation, eviction where it changes nothing, and a bound on their number (ADR 0010)."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from quota.accounts import STEP, TRIES, Meter
from quota.counter import LedgerSettings, QuotaCounter
from quota.entity import DEFAULT, CounterKey, Kind, Name
from quota.mutation import BucketCounter
from quota.paced import BusyCounter, PacedCounter
from quota.reservation import FetchCounter
from quota.table import QuotaTable, Resolution
from quota.window import KafkaCounter

EXPIRE_AFTER_MS: Final = 3_600_000
"""Kafka removes a sensor after an hour without records."""
OVERFLOW: Final = "<overflow>"
"""Replaces the names in the key of an overflow counter."""
PAUSE_MS: Final = 20
"""After a search without result, new clients do not search again for this time."""

Entity = tuple[Name, Name]
Sorts = dict[Kind, Callable[[Kind, CounterKey, LedgerSettings, int], QuotaCounter]]
AS_KAFKA: Final[Sorts] = {**dict.fromkeys(Kind, KafkaCounter), Kind.MUTATION: BucketCounter}
PACED: Final[Sorts] = {
    Kind.PRODUCE: PacedCounter,
    Kind.FETCH: FetchCounter,
    Kind.REQUEST: BusyCounter,
    Kind.MUTATION: BucketCounter,
}


class CounterStore:
    """The counters of one ledger. Up to `most` of each kind, besides those of entries that name all their clients.

    A counter is *used* by the accounts that resolve to it. An unused one makes way for a new one as soon as evicting
    it changes nothing (:meth:`QuotaCounter.forgettable`). While there is none, new clients share one *overflow* counter
    per entry, under that entry's limit.
    """

    def __init__(self, settings: LedgerSettings, most: int, table: QuotaTable) -> None:
        self._settings = settings
        self.table = table
        """The limits in force."""
        self._applied = 0
        self._most = most
        self._by_kind: dict[Kind, dict[CounterKey, QuotaCounter]] = {kind: {} for kind in Kind}
        self._unused: OrderedDict[tuple[Kind, CounterKey], None] = OrderedDict()
        """Counters that lost their last user, oldest first; some may be in use again."""
        self._look_from = 0
        self._overflow: dict[tuple[Kind, Entity], QuotaCounter] = {}
        self.overflowed: Final[dict[Kind, int]] = dict.fromkeys(Kind, 0)
        """How often a client got an overflow counter because the table was full."""
        self.on_forget: Final[list[Callable[[QuotaCounter], None]]] = []
        """Called with each evicted counter, so that periodic readers miss no totals."""
        self.on_overflow: Callable[[Kind], None] | None = None
        """Called each time that a client gets an overflow counter."""
        self.on_fleet: Callable[[QuotaCounter], None] | None = None
        """Called with each counter that gets a fleet's limit, before it is used under it."""

    def count(self, kind: Kind) -> int:
        """How many counters of a kind there are, overflow counters aside."""
        return len(self._by_kind[kind])

    def of_kind(self, kind: Kind) -> Iterator[QuotaCounter]:
        """All counters of a kind, overflow counters included; the set may change during the iteration."""
        groups = self._by_kind[kind]
        for key in list(groups):
            group = self.get(kind, key)
            if group is not None:
                yield group
        yield from [group for (its_kind, _), group in self._overflow.items() if its_kind is kind]

    def get(self, kind: Kind, key: CounterKey) -> QuotaCounter | None:
        """A client's own counter, if it has one."""
        group = self._by_kind[kind].get(key)
        if group is not None and group.applied != self._applied:
            self._apply(group, self.table.limit_of(kind, key))
        return group

    def attach(self, meter: Meter, kind: Kind, user: str, client_id: str, now: int) -> None:
        """Attach an account's meter to the counter that the table gives for it."""
        found = self.table.resolve(kind, user, client_id)
        group = self._find(kind, found, now) if self.table.records(kind) else None
        if group is not None:
            group.users += 1
        self.leave(meter)
        meter.group = group

    def leave(self, meter: Meter) -> None:
        """An account no longer uses its counter."""
        group, meter.group = meter.group, None
        if group is None:
            return
        group.users -= 1
        if group.users == 0 and self._by_kind[group.kind].get(group.key) is group:
            self._unused[group.kind, group.key] = None

    def swap(self, table: QuotaTable) -> None:
        """Put other limits in force; the samples stay. Each counter gets its limit on its next use, so that a reload
        takes no longer when there are many."""
        self.table = table
        self._applied += 1
        for (kind, entity), group in list(self._overflow.items()):
            entry = table.get(*entity)
            limit = None if entry is None else entry.limit(kind)
            if limit is None:
                self._say(self._overflow.pop((kind, entity)))
            else:
                self._apply(group, Resolution(group.key, limit, group.level, entry, table.of_fleet(entry)))

    def sweep(self, now: int) -> Iterator[tuple[int, bool]]:
        """Evict counters unused for an hour, step by step. Yields how many in this step, and whether accounts have to
        be resolved again, because a counter in use was evicted, or separate counters fit again."""
        horizon = now - EXPIRE_AFTER_MS
        for kind, groups in self._by_kind.items():
            keys = list(groups)
            for start in range(0, len(keys), STEP):
                forgotten, was_used = 0, False
                for key in keys[start : start + STEP]:
                    group = self.get(kind, key)
                    if group is not None and group.last_ms <= horizon and group.forgettable(now):
                        self._forget(group)
                        forgotten += 1
                        was_used = was_used or group.users > 0
                yield forgotten, was_used
        available = False
        for (kind, entity), group in list(self._overflow.items()):
            if group.users == 0 and group.forgettable(now):
                self._say(self._overflow.pop((kind, entity)))
            elif group.users:
                self._evict(now)
                available = available or len(self._by_kind[kind]) < self._most
        yield 0, available

    def _find(self, kind: Kind, found: Resolution, now: int) -> QuotaCounter | None:
        groups = self._by_kind[kind]
        group = self.get(kind, found.key)
        if group is not None:
            return group
        if len(groups) >= self._most and (found.entry is None or DEFAULT in found.entry.entity):
            self._evict(now)
            if len(groups) >= self._most:
                return self._overflow_of(kind, found, now)
        group = groups[found.key] = self._new(kind, found, now)
        return group

    def _new(self, kind: Kind, found: Resolution, now: int) -> QuotaCounter:
        sorts = PACED if self._settings.smooth else AS_KAFKA
        group = sorts[kind](kind, found.key, self._settings, now)
        self._apply(group, found)
        return group

    def _apply(self, group: QuotaCounter, found: Resolution) -> None:
        group.apply_limit(found)
        group.applied = self._applied
        if found.fleet and self.on_fleet is not None:
            self.on_fleet(group)

    def _overflow_of(self, kind: Kind, found: Resolution, now: int) -> QuotaCounter | None:
        """The counter shared by all clients that do not fit under one entry; None without a limit."""
        if found.entry is None:
            return None
        self.overflowed[kind] += 1
        if self.on_overflow is not None:
            self.on_overflow(kind)
        entity = found.entry.entity
        group = self._overflow.get((kind, entity))
        if group is None:
            shared = found._replace(key=CounterKey(*[OVERFLOW if name is DEFAULT else name for name in entity]))
            group = self._overflow[kind, entity] = self._new(kind, shared, now)
        return group

    def _evict(self, now: int) -> None:
        """Examine a few unused counters and evict those that may be. Each new client adds one at most, so that a few
        per new client keep up with any number of them."""
        if now < self._look_from:
            return
        count = len(self._unused)
        for _ in range(min(TRIES, len(self._unused))):
            (kind, key), _none = self._unused.popitem(last=False)
            group = self.get(kind, key)
            if group is None or group.users:
                continue
            if group.forgettable(now):
                self._forget(group)
            else:
                self._unused[kind, key] = None
        if len(self._unused) == count:
            self._look_from = now + PAUSE_MS  # most likely there is none

    def _forget(self, group: QuotaCounter) -> None:
        del self._by_kind[group.kind][group.key]
        self._unused.pop((group.kind, group.key), None)
        self._say(group)

    def _say(self, forgotten: QuotaCounter) -> None:
        for listener in self.on_forget:
            listener(forgotten)
