"""All shared counters: found, made, forgotten when that changes nothing, and bounded whatever clients do (ADR 0010)."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from quota.accounts import STEP, Meter
from quota.counter import LedgerSettings, QuotaCounter
from quota.entity import DEFAULT, CounterKey, Kind, Name
from quota.mutation import BucketCounter
from quota.table import Limit, QuotaTable, Resolution
from quota.window import WindowCounter

EXPIRE_AFTER_MS: Final = 3_600_000
"""Kafka forgets a sensor that nothing was recorded on for an hour."""
OVERFLOW: Final = "<overflow>"
"""Stands in the key of an overflow counter for the names of those who share it."""
TRIES: Final = 8
"""Unused counters looked at to find one that may be forgotten."""

PAUSE_MS: Final = 20
"""When they found none, newcomers of the next moments do not look again."""

Entity = tuple[Name, Name]


class CounterStore:
    """The groups of one ledger. Up to `most` of each kind, besides those of entries that name everybody they are about.

    A counter is *used* by the accounts that were led to it. One that nobody uses makes room for a new one as soon as
    forgetting it changes nothing (:meth:`QuotaCounter.forgettable`). While there is none, newcomers share one
    *overflow* counter per entry, under that entry's limit.
    """

    def __init__(self, settings: LedgerSettings, most: int, table: QuotaTable) -> None:
        self._settings = settings
        self._table = table
        self._applied = 0
        self._most = most
        self._by_kind: dict[Kind, dict[CounterKey, QuotaCounter]] = {kind: {} for kind in Kind}
        self._unused: OrderedDict[tuple[Kind, CounterKey], None] = OrderedDict()
        """Counters that lost their last user, oldest first; some may have found a new one since."""
        self._look_from = 0
        self._overflow: dict[tuple[Kind, Entity], QuotaCounter] = {}
        self.overflowed: Final[dict[Kind, int]] = dict.fromkeys(Kind, 0)
        """How often a client was led to an overflow counter for want of room."""
        self.on_forget: Final[list[Callable[[QuotaCounter], None]]] = []
        """Called with each counter that is forgotten, for those who look at totals only now and then."""
        self.on_overflow: Callable[[Kind], None] | None = None
        """Called each time that a client is led to an overflow counter."""
        self.on_fleet: Callable[[QuotaCounter], None] | None = None
        """Called with each counter that gets a limit of a whole fleet, before it is used under it."""

    def count(self, kind: Kind) -> int:
        """How many counters of a kind there are, overflow counters aside."""
        return len(self._by_kind[kind])

    def of_kind(self, kind: Kind) -> Iterator[QuotaCounter]:
        """All counters of a kind, overflow counters included; between two steps counters may come and go."""
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
            self._apply(group, self._table.limit_of(kind, key))
        return group

    def lead(self, meter: Meter, kind: Kind, user: str, client_id: str, now: int) -> None:
        """Put the meter of an account on the counter that the table leads it to."""
        resolution = self._table.resolve(kind, user, client_id)
        group = self._find(kind, resolution, now) if resolution.recorded else None
        if group is not None:
            group.users += 1
        self.leave(meter)
        meter.group = group

    def leave(self, meter: Meter) -> None:
        """An account uses its counter no more."""
        group, meter.group = meter.group, None
        if group is None:
            return
        group.users -= 1
        if group.users == 0 and self._by_kind[group.kind].get(group.key) is group:
            self._unused[group.kind, group.key] = None

    def swap(self, table: QuotaTable) -> None:
        """Put other limits in force; what was counted stays. Each counter gets its limit when it is next looked at, so
        that a reload takes no longer when there are many."""
        self._table = table
        self._applied += 1
        for (kind, entity), group in list(self._overflow.items()):
            entry = table.get(*entity)
            limit = None if entry is None else entry.limit(kind)
            if limit is None:
                self._drop_overflow(kind, entity)
            else:
                self._apply(group, Limit(limit, group.level, entry, table.of_fleet(entry)))

    def sweep(self, now: int) -> Iterator[tuple[int, bool]]:
        """Forget what was unused for an hour, step by step: how many in this step, and whether accounts have to be led
        to their counters anew, because one was forgotten that an account uses, or there is room for own ones again."""
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
        room = False
        for (kind, entity), group in list(self._overflow.items()):
            if group.users == 0 and group.forgettable(now):
                self._drop_overflow(kind, entity)
            elif group.users:
                self._make_room(now)
                room = room or len(self._by_kind[kind]) < self._most
        yield 0, room

    def _find(self, kind: Kind, resolution: Resolution, now: int) -> QuotaCounter | None:
        groups = self._by_kind[kind]
        key = resolution.key
        group = self.get(kind, key)
        if group is not None:
            return group
        limit = Limit(resolution.limit, resolution.level, resolution.entry, self._table.of_fleet(resolution.entry))
        if len(groups) >= self._most and (limit.entry is None or DEFAULT in limit.entry.entity):
            self._make_room(now)
            if len(groups) >= self._most:
                return self._overflow_of(kind, limit, now)
        group = groups[key] = self._new(kind, key, limit, now)
        return group

    def _new(self, kind: Kind, key: CounterKey, limit: Limit, now: int) -> QuotaCounter:
        sort = BucketCounter if kind is Kind.MUTATION else WindowCounter
        group = sort(kind, key, self._settings, now)
        self._apply(group, limit)
        return group

    def _apply(self, group: QuotaCounter, limit: Limit) -> None:
        group.apply_limit(limit)
        group.applied = self._applied
        if limit.fleet and self.on_fleet is not None:
            self.on_fleet(group)

    def _overflow_of(self, kind: Kind, limit: Limit, now: int) -> QuotaCounter | None:
        """The counter of all those for whom there is no room under one entry; None where nothing limits them."""
        if limit.entry is None:
            return None
        self.overflowed[kind] += 1
        if self.on_overflow is not None:
            self.on_overflow(kind)
        entity = limit.entry.entity
        group = self._overflow.get((kind, entity))
        if group is None:
            user, client_id = (OVERFLOW if name is DEFAULT else name for name in entity)
            assert not isinstance(user, type(DEFAULT))
            assert not isinstance(client_id, type(DEFAULT))
            group = self._overflow[kind, entity] = self._new(kind, CounterKey(user, client_id), limit, now)
        return group

    def _make_room(self, now: int) -> None:
        """Look at a few unused counters and forget those that may be. Each newcomer brings one of them at most, so a
        few looks per newcomer keep up with any number of newcomers."""
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

    def _drop_overflow(self, kind: Kind, entity: Entity) -> None:
        self._say(self._overflow.pop((kind, entity)))

    def _say(self, forgotten: QuotaCounter) -> None:
        for listener in self.on_forget:
            listener(forgotten)
