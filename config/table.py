"""Configuration to limits: the entries of the file (and of KIP-13's static form) as one `QuotaTable`."""

from __future__ import annotations

from config.model import Config, QuotaEntry, to_entry, to_name
from config.problems import Place, Problem
from config.source import Source
from config.types import DEFAULT_WORD
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT, Default, Name
from quota.table import Entry, QuotaTable, Scope

_Key = tuple[Name, Name, Name]


def default_scope(config: Config) -> Scope:
    """The scope of entries without one."""
    return "instance" if config.fleet is None else config.fleet.default_scope


def to_table(config: Config, scope: Scope | None = None) -> QuotaTable:
    """The immutable limits of a configuration. `scope`: that of entries without one, None: as configured."""
    return QuotaTable(
        entries(config),
        default_scope=scope or default_scope(config),
        connections=ConnectionLimits(
            [one for entry in config.quotas if (one := to_connection_entry(entry)) is not None]
            + [entry for entry, _ in _static_caps(config)]
        ),
    )


def entries(config: Config) -> list[Entry]:
    """All entries for requests, those of KIP-13's static form included."""
    found = [
        entry if isinstance(entry, Entry) else to_entry(entry)
        for entry in config.quotas
        if isinstance(entry, Entry) or entry.limits_requests
    ]
    return found + [entry for entry, _ in _static_entries(config)]


def has_limits(config: Config) -> bool:
    """Whether a configuration limits anything. Each entry of the file does, as it would be invalid otherwise."""
    return bool(config.quotas or _static_entries(config) or _static_caps(config))


def to_connection_entry(entry: QuotaEntry | Entry) -> ConnectionEntry | None:
    """The connection limits of one entry of the file, None if there are none."""
    if isinstance(entry, Entry) or not entry.limits_connections:
        return None
    name = to_name(entry.user if entry.ip is None else entry.ip)
    assert name is not None
    return ConnectionEntry(
        EntityType.USER if entry.ip is None else EntityType.IP,
        name,
        None if entry.connection_creation_rate is None else float(entry.connection_creation_rate),
        entry.max_connections,
        entry.mode,
        entry.scope,
    )


def find_duplicates(config: Config, source: Source) -> list[Problem]:
    """Entities that are configured twice. Which of the two should win must not be guessed."""
    found: list[tuple[_Key, Place]] = [(_key(entry), ("quotas", index)) for index, entry in enumerate(config.quotas)]
    found += [((*entry.entity, None), place) for entry, place in _static_entries(config)]
    found += [((None, None, cap.name), place) for cap, place in _static_caps(config)]
    seen: dict[_Key, Place] = {}
    problems: list[Problem] = []
    for key, place in found:
        first = seen.setdefault(key, place)
        if first != place:
            names = "user and client-id" if key[2] is None else "ip"
            text = f"expected each {names} once; {_entity(key)} already has an entry, {_where(first, source)}"
            problems.append(source.problem(place, text, at_key=True))
    return problems


def _static_entries(config: Config) -> list[tuple[Entry, Place]]:
    """KIP-13's four keys as client-id entries, each with the place of the key that made it."""
    limits: dict[Name, dict[str, float]] = {}
    places: dict[Name, Place] = {}
    for kind, default, override in (
        ("producer", config.producer_default, config.producer_override),
        ("consumer", config.consumer_default, config.consumer_override),
    ):
        if default is not None:
            limits.setdefault(DEFAULT, {})[kind] = default
            places.setdefault(DEFAULT, (f"quota.{kind}.default",))
        for client_id, limit in override:
            name = to_name(client_id)
            limits.setdefault(name, {})[kind] = float(limit)
            places.setdefault(name, (f"quota.{kind}.override",))
    return [
        (Entry(None, name, both.get("producer"), both.get("consumer")), places[name]) for name, both in limits.items()
    ]


def _static_caps(config: Config) -> list[tuple[ConnectionEntry, Place]]:
    """Kafka's two broker settings as entries, each with the place of the key that made it."""
    most, overrides = config.max_connections_per_ip, config.max_connections_per_ip_overrides
    caps: list[tuple[str | Default, int, str]] = [] if most is None else [(DEFAULT, most, "max.connections.per.ip")]
    caps += [(address, limit, "max.connections.per.ip.overrides") for address, limit in overrides]
    return [(ConnectionEntry(EntityType.IP, name, None, limit), (key,)) for name, limit, key in caps]


def _key(entry: QuotaEntry | Entry) -> _Key:
    if isinstance(entry, Entry):
        return entry.user, entry.client_id, None
    return to_name(entry.user), to_name(entry.client_id), to_name(entry.ip)


def _entity(key: _Key) -> str:
    parts = zip(("user", "client-id", "ip"), key, strict=True)
    return ", ".join(
        f"{label} {DEFAULT_WORD if name is DEFAULT else name}" for label, name in parts if name is not None
    )


def _where(place: Place, source: Source) -> str:
    found = source.problem(place, "")
    return found.place if found.line is None else f"{found.place} at line {found.line}"
