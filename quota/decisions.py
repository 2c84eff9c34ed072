"""The last throttles of each counter, to explain delays: a few per counter, of the counters throttled last.

While nothing is throttled, nothing is kept and no time is spent.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quota.counter import QuotaCounter
from quota.entity import CounterKey, Identity, Kind
from quota.window import KafkaCounter

MAX_EACH: Final = 8
MAX_COUNTERS: Final = 1000
"""Beyond it, the counters throttled longest ago are evicted: clients invent names."""


class Why(StrEnum):
    """The cause of a delay."""

    OVER = "over"
    """Usage exceeds the limit: Kafka's formula."""
    OWED = "owed"
    """The rest of an earlier delay that `max_mute` had cut."""
    QUEUED = "held"
    """The request was queued before it was forwarded, because of its group's debt (ADR 0026)."""
    PACED = "paced"
    """Within the limit again, but paced (ADR 0004)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One throttle."""

    at_ms: float
    """On the ledger's clock: when the delay began; for a queued request (`Why.QUEUED`), when it ended."""
    kind: Kind
    identity: Identity
    """The client whose request caused it; the counter may be shared by others."""
    api_key: int | None
    amount: float | None
    """What this request was charged (bytes, busy ms, partitions); None if it was delayed before it was charged."""
    delay_ms: int
    limit: float | None
    observed: float
    """The rate (or tokens left) when the delay was recorded, at the response."""
    why: Why


class Decisions:
    """The latest decisions by counter, bounded."""

    def __init__(self) -> None:
        self._by_counter: OrderedDict[tuple[Kind, CounterKey], deque[Decision]] = OrderedDict()

    def note(
        self,
        group: QuotaCounter,
        identity: Identity,
        delay_ms: int,
        at_ms: float,
        api_key: int | None,
        amount: float | None,
        queued: bool = False,
    ) -> None:
        """Record a throttle of `group` on `identity`; `queued`: before the request was forwarded."""
        now = int(at_ms)
        used = group.utilisation(now)
        if queued:
            why = Why.QUEUED
        elif used is not None and used > 1.0:
            why = Why.OVER
        else:
            owed = isinstance(group, KafkaCounter) and group.owed_until >= now + delay_ms
            why = Why.OWED if owed else Why.PACED
        place = (group.kind, group.key)
        ring = self._by_counter.get(place)
        if ring is None:
            ring = self._by_counter[place] = deque(maxlen=MAX_EACH)
            if len(self._by_counter) > MAX_COUNTERS:
                self._by_counter.popitem(last=False)
        else:
            self._by_counter.move_to_end(place)
        observed = group.observed(now)
        ring.append(Decision(at_ms, group.kind, identity, api_key, amount, delay_ms, group.limit, observed, why))

    def of(self, kind: Kind, key: CounterKey) -> list[Decision]:
        """The last decisions of one counter, newest first."""
        return list(reversed(self._by_counter.get((kind, key), ())))

    def since(self, at_ms: float) -> Iterator[tuple[tuple[Kind, CounterKey], list[Decision]]]:
        """Each counter with its decisions after `at_ms`, oldest first; the counter throttled last comes first."""
        for place, ring in reversed(self._by_counter.items()):
            if ring[-1].at_ms <= at_ms:
                break
            yield place, [one for one in ring if one.at_ms > at_ms]

    def latest(self, most: int) -> list[Decision]:
        """The newest decisions of all counters, newest first."""
        found: list[Decision] = []
        for ring in reversed(self._by_counter.values()):  # the counter throttled last first
            if len(found) >= most and ring[-1].at_ms < found[most - 1].at_ms:
                break
            found = sorted((*found, *ring), key=lambda one: one.at_ms, reverse=True)[:most]
        return found
