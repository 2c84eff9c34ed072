"""The last throttles of each counter, for people who ask "why": a few per counter, of the counters throttled last.

Nothing is kept, and nothing costs time, while nobody is throttled.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quota.counter import QuotaCounter
from quota.entity import CounterKey, Identity, Kind

MAX_EACH: Final = 8
MAX_COUNTERS: Final = 1000
"""Of the counters beyond, those throttled longest ago are forgotten: names are invented by clients."""


class Why(StrEnum):
    """What a delay is made of."""

    OVER = "over"
    """More was used than the limit allows: Kafka's formula."""
    OWED = "owed"
    """The rest of an earlier delay that `max_mute` had cut."""
    HELD = "held"
    """The request waited before it was forwarded, because its group owed for earlier ones (ADR 0026)."""
    PACED = "paced"
    """Within the limit again, held to its pace (ADR 0004)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One throttle that was imposed."""

    at_ms: float
    """On the ledger's clock: when the delay began; of a request that was held (`Why.HELD`), when it ended."""
    kind: Kind
    identity: Identity
    """Whose request brought it about; the counter may be shared by others."""
    api_key: int | None
    amount: float | None
    """What this request was charged (bytes, busy ms, partitions); None where it was delayed before it used anything."""
    delay_ms: int
    limit: float | None
    observed: float
    """The rate (or tokens left) when the delay was counted, at the response."""
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
        held: bool = False,
    ) -> None:
        """Remember a throttle that `group` has imposed on `identity`; `held`: before the request was forwarded."""
        now = int(at_ms)
        used = group.utilisation(now)
        if held:
            why = Why.HELD
        elif used is not None and used > 1.0:
            why = Why.OVER
        else:
            why = Why.OWED if group.owed_until >= now + delay_ms else Why.PACED
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
        """Each counter with what is remembered of its decisions after `at_ms`, oldest first; the last counter first."""
        for place, ring in reversed(self._by_counter.items()):
            if ring[-1].at_ms <= at_ms:
                break
            yield place, [one for one in ring if one.at_ms > at_ms]

    def latest(self, most: int) -> list[Decision]:
        """The newest decisions of all counters, newest first."""
        found: list[Decision] = []
        for ring in reversed(self._by_counter.values()):  # the counter throttled last comes first
            if len(found) >= most and ring[-1].at_ms < found[most - 1].at_ms:
                break
            found = sorted((*found, *ring), key=lambda one: one.at_ms, reverse=True)[:most]
        return found
