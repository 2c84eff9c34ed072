"""The limits: immutable, built from quota entries, answering "which counter and which limit" in constant time."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from quota.connections import NO_CONNECTION_LIMITS, ConnectionEntry, ConnectionLimits
from quota.entity import DEFAULT, LONGEST_NAME, CounterKey, Kind, Level, Name, bounded_name

Mode = Literal["enforce", "shadow"]
Scope = Literal["instance", "fleet"]
"""Whose limit it is: each instance's own, or one that all instances of a fleet share."""

RATE_FIELD: Final[Mapping[Kind, str]] = {
    Kind.PRODUCE: "producer_byte_rate",
    Kind.FETCH: "consumer_byte_rate",
    Kind.REQUEST: "request_percentage",
    Kind.MUTATION: "controller_mutation_rate",
}
"""Kafka's name of the limit of each kind; also the field names of :class:`Entry`."""
_rates = attrgetter(*RATE_FIELD.values())


@dataclass(frozen=True, slots=True)
class CandidateLimits:
    """Limits on trial next to an entry's live ones: measured on its traffic, never applied (:mod:`quota.trial`)."""

    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None

    def __post_init__(self) -> None:
        _check_limits(_rates(self))


@dataclass(frozen=True, slots=True)
class Entry:
    """One quota entry: an entity (user and/or client-id, each a name or ``<default>``) and its limits.

    ``None`` for a limit means that this entry has none of that kind. Limits are > 0 and finite, as Kafka's
    AlterClientQuotas demands (KIP-546); anything else raises ValueError. ``shadow`` limits are measured, never applied.
    A `candidate` counts where the entry has a limit of the same kind. A `scope` of None is the table's default.
    """

    user: Name = None
    client_id: Name = None
    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None
    mode: Mode = "enforce"
    candidate: CandidateLimits | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        if self.user is None and self.client_id is None:
            raise ValueError("a quota entry names a user, a client-id, or both")
        if self.user == "" or self.client_id == "":
            raise ValueError("the user and client-id of a quota entry are names, never empty")
        _check_limits(_rates(self))

    def candidate_limit(self, kind: Kind) -> float | None:
        """The candidate for `kind`, None if there is none next to a live limit."""
        if self.candidate is None or self.limit(kind) is None:
            return None
        value: float | None = getattr(self.candidate, RATE_FIELD[kind])
        return None if value is None else _countable(value)

    def limit(self, kind: Kind) -> float | None:
        """The limit for `kind` in its own unit (bytes/s, percent, partitions/s), None where the entry has none.

        Within :data:`MIN_LIMIT` and :data:`MAX_LIMIT`; the fields keep the original values.
        """
        value: float | None = getattr(self, RATE_FIELD[kind])
        return None if value is None else _countable(value)

    @property
    def entity(self) -> tuple[Name, Name]:
        """The entity of the entry: (user, client-id). At most one entry of a table has it."""
        return self.user, self.client_id


MIN_LIMIT: Final = 1e-9
"""Lower limits count as this one: a byte in 30 years is as good as none, and no delay becomes infinite."""
MAX_LIMIT: Final = 2.0**63
"""Higher limits count as this one, which is Kafka's own "no limit" and far below where floats lose precision."""


def _countable(limit: float) -> float:
    return min(max(limit, MIN_LIMIT), MAX_LIMIT)


class Resolution(NamedTuple):
    """The limit that applies to a counter, and its origin. All None but the key: there is no limit."""

    key: CounterKey
    """The counter that a client shares; two keys may have equal tags (see :class:`CounterKey`)."""
    limit: float | None = None
    level: Level | None = None
    entry: Entry | None = None
    fleet: bool = False
    """It is a whole fleet's limit; this instance has a share of it."""


# Which sorts of levels are configured for a kind: a bit set, as Kafka's ``quotaTypesEnabled``.
_CLIENT: Final = 1
_USER: Final = 2
_USER_CLIENT: Final = 4

_PER_USER_AND_CLIENT: Final = (1, 2, 4, 5)
_OF_KEY: Final = {(True, True): _PER_USER_AND_CLIENT, (True, False): (3, 6), (False, True): (7, 8)}
"""The levels that apply to a counter: whether its key names a user, and a client-id."""


class QuotaTable:
    """All quotas at one moment. Immutable: a reload builds another one and passes it to ``Ledger.swap``.

    A null or empty client-id is a name like any other (KIP-13's intention; at a broker such clients escape every limit
    that names a client-id). `default_scope` is the scope of entries without one.
    `connections` are the connection limits, which are reloaded together with these (:mod:`quota.connections`).
    Raises ValueError when two entries have the same entity.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        default_scope: Scope = "instance",
        connections: ConnectionLimits = NO_CONNECTION_LIMITS,
    ) -> None:
        self.entries: Final = tuple(entries)
        self.connections: Final = connections
        self.default_scope: Final = default_scope
        # There may be many thousands, while traffic waits: hence comprehensions, which let other threads run in
        # between, and no object per limit, because Python's garbage collector would have to visit each.
        self._by_entity: dict[tuple[Name, Name], Entry] = {entry.entity: entry for entry in self.entries}
        if len(self._by_entity) < len(self.entries):
            (user, client_id), _ = Counter(entry.entity for entry in self.entries).most_common(1)[0]
            raise ValueError(f"two quota entries for user {user!r}, client-id {client_id!r}")
        counted = self._by_entity
        if any(name.__class__ is str and len(name) > LONGEST_NAME for entity in counted for name in entity):
            counted = {_bounded(entity): entry for entity, entry in counted.items()}
        self._limits: dict[Kind, dict[tuple[Name, Name], Entry]] = {}
        """By (bounded) entity, the entries that limit a kind."""
        self._shape: dict[Kind, int] = {}
        for kind, name in RATE_FIELD.items():
            limits = {entity: entry for entity, entry in counted.items() if getattr(entry, name) is not None}
            self._limits[kind] = limits
            self._shape[kind] = sum(
                {_CLIENT if user is None else _USER if client is None else _USER_CLIENT for user, client in limits}
            )

    def records(self, kind: Kind) -> bool:
        """Whether any quota of this kind exists; otherwise nothing of the kind is counted in windows, as in Kafka."""
        return self._shape[kind] != 0

    def resolve(self, kind: Kind, user: str, client_id: str) -> Resolution:
        """The counter of (user, client-id) for `kind` and its limit. At most twelve dictionary lookups."""
        return self.limit_of(kind, self._key(kind, bounded_name(user), bounded_name(client_id)))

    def limit_of(self, kind: Kind, key: CounterKey) -> Resolution:
        """The limit of a counter, which follows from its key alone (Kafka looks it up by metric tags)."""
        limits, levels = self._limits[kind], _OF_KEY[key.user is not None, key.client_id is not None]
        for level, entity in ladder(*key):
            found = limits.get(entity) if level in levels else None
            if found is not None:
                return Resolution(key, found.limit(kind), level, found, self.of_fleet(found))
        return Resolution(key)

    def of_fleet(self, entry: Entry | ConnectionEntry | None) -> bool:
        """Whether an entry's limits are a whole fleet's."""
        return entry is not None and (entry.scope or self.default_scope) == "fleet"

    def levels(self, kind: Kind, user: str, client_id: str) -> dict[Level, float | None]:
        """All eight levels for this client with the limits that are configured there, most specific first."""
        entries = self._limits[kind]
        found = ((level, entries.get(entity)) for level, entity in ladder(bounded_name(user), bounded_name(client_id)))
        return {level: None if entry is None else entry.limit(kind) for level, entry in found}

    def get(self, user: Name, client_id: Name) -> Entry | None:
        """The entry of exactly this entity."""
        return self._by_entity.get((user, client_id))

    def _key(self, kind: Kind, user: str, client_id: str) -> CounterKey:
        """Kafka's rule of metric tags: which of the two names takes part depends on the levels configured anywhere."""
        shape = self._shape[kind]
        if shape in (0, _CLIENT):
            return CounterKey(None, client_id)
        if shape == _USER:
            return CounterKey(user, None)
        if shape == _USER_CLIENT:
            return CounterKey(user, client_id)
        limits = self._limits[kind]
        for level, entity in ladder(user, client_id):
            if level < Level.CLIENT and entity in limits:
                return CounterKey(user, client_id if level in _PER_USER_AND_CLIENT else None)
        return CounterKey(None, client_id)


def ladder(user: str | None, client_id: str | None) -> tuple[tuple[Level, tuple[Name, Name]], ...]:
    """The eight entities that apply to a client, most specific first."""
    return (
        (Level.USER_CLIENT, (user, client_id)),
        (Level.USER_DEFAULT_CLIENT, (user, DEFAULT)),
        (Level.USER, (user, None)),
        (Level.DEFAULT_USER_CLIENT, (DEFAULT, client_id)),
        (Level.DEFAULT_USER_DEFAULT_CLIENT, (DEFAULT, DEFAULT)),
        (Level.DEFAULT_USER, (DEFAULT, None)),
        (Level.CLIENT, (None, client_id)),
        (Level.DEFAULT_CLIENT, (None, DEFAULT)),
    )


def _bounded(entity: tuple[Name, Name]) -> tuple[Name, Name]:
    user, client_id = (bounded_name(name) if isinstance(name, str) else name for name in entity)
    return user, client_id


def _check_limits(rates: tuple[float | None, ...]) -> None:
    for limit in rates:
        if limit is not None and not 0 < limit < inf:
            name = list(RATE_FIELD.values())[rates.index(limit)]
            raise ValueError(f"{name} is {limit}, a quota is a finite number above 0")
