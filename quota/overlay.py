"""Limits set by an administrator at run time, which override those of the configuration file.

The overlay wins for each entity and key that it names. A limit that the file sets and an administrator removed is there
as None: otherwise the file would bring it back at the next start.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from quota.admin import (
    CONNECTION_RATE,
    IP,
    AdminError,
    Changes,
    Entity,
    Quotas,
    canonical,
    check_entity,
    check_value,
    enforced,
    entity_of_entry,
    entity_text,
    names_of,
)
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT, Kind
from quota.table import Entry, QuotaTable

Overlay = Mapping[Entity, Mapping[str, float | None]]
"""entity -> key -> value; None: there is no such limit, whatever the file says. Addresses in their canonical form."""


def altered(overlay: Overlay, in_file: QuotaTable, changes: Changes) -> dict[Entity, dict[str, float | None]]:
    """The overlay after `changes` (already validated), over a file with these limits."""
    set_by_file = dict(enforced(in_file))
    result = {entity: dict(limits) for entity, limits in overlay.items()}
    for named, wanted in changes.items():
        entity = canonical(named)
        limits = result.setdefault(entity, {})
        for key, value in wanted.items():
            if value is not None or key in set_by_file.get(entity, {}):
                limits[key] = value
            else:
                limits.pop(key, None)
        if not limits:
            del result[entity]
    return result


def laid_over(table: QuotaTable, overlay: Overlay) -> QuotaTable:
    """The limits in force.

    An entity that the file has in shadow mode, and for which the overlay sets a limit, is enforced with the overlay's
    limits alone: an entry has one mode, and what an administrator sets must take effect.
    """
    if not overlay:
        return table
    addresses = {entity: limits for entity, limits in overlay.items() if entity[0][0] == IP}
    clients = {entity: limits for entity, limits in overlay.items() if entity not in addresses}
    return QuotaTable(
        _entries(table.entries, clients),
        default_scope=table.default_scope,
        connections=ConnectionLimits(_connections(table.connections.entries, addresses))
        if addresses
        else table.connections,
    )


def _entries(entries: Iterable[Entry], overlay: Overlay) -> Iterator[Entry]:
    rest = dict(overlay)
    for entry in entries:
        limits = rest.pop(entity_of_entry(entry), None)
        changed = entry if limits is None else _changed(entry, limits)
        if changed is not None:
            yield changed
    for entity, limits in rest.items():
        changed = _changed(Entry(*names_of(entity)), limits)
        if changed is not None:
            yield changed


def _changed(entry: Entry, limits: Mapping[str, float | None]) -> Entry | None:
    if entry.mode == "shadow":
        if all(limit is None for limit in limits.values()):
            return entry  # removals are of limits in force, which this is not
        entry = Entry(*entry.entity, scope=entry.scope)
    found = replace(entry, **limits)  # type: ignore[arg-type]  # keys are the names of Entry's limits
    return found if any(found.limit(kind) is not None for kind in Kind) else None


def _connections(entries: Iterable[ConnectionEntry], overlay: Overlay) -> Iterator[ConnectionEntry]:
    rates = {DEFAULT if name is None else name: limits[CONNECTION_RATE] for ((_, name),), limits in overlay.items()}
    for entry in entries:
        if entry.entity_type is not EntityType.IP or entry.name not in rates:
            yield entry
            continue
        rate = rates.pop(entry.name)
        if entry.mode == "enforce":
            changed = replace(entry, connection_creation_rate=rate)
            if changed != ConnectionEntry(*entry.entity, scope=entry.scope):
                yield changed
        else:
            yield entry if rate is None else ConnectionEntry(*entry.entity, rate, scope=entry.scope)
    for name, rate in rates.items():
        if rate is not None:
            yield ConnectionEntry(EntityType.IP, name, rate)


# ---- the cluster's own quotas ---------------------------------------------------------------------------------------

UNLIMITED: Final = 2.0**63
"""Replaces infinity and NaN, which a broker stores for some quotas and then never enforces."""


def from_cluster(base: QuotaTable, quotas: Quotas) -> tuple[QuotaTable, list[str]]:
    """The limits that correspond to a cluster's client quotas, and which of those cannot be enforced, for people.

    `base` has the configuration's connection limits; for an address, its own rate wins over the cluster's.
    """
    usable: dict[Entity, dict[str, float | None]] = {}
    unusable: list[str] = []
    for named, values in quotas.items():
        entity = canonical(named)
        for key, value in values.items():
            limit = UNLIMITED if math.isnan(value) or math.isinf(value) else value
            try:
                check_entity(entity)
                check_value(entity, key, math.ceil(limit))  # older brokers accept fractions
            except AdminError as error:
                unusable.append(f"{entity_text(named)}, {key}={value:g}: {error}")
            else:
                usable.setdefault(entity, {})[key] = limit
    for entry in base.connections.entries:
        entity, own = entity_of_entry(entry), entry.connection_creation_rate
        if entity[0][0] == IP and entity in usable and (own is not None or entry.mode == "shadow"):
            rate = usable.pop(entity)[CONNECTION_RATE]
            if own is None:  # an entry has one mode
                text = f"{CONNECTION_RATE}={rate:g}: the configuration has this ip in mode shadow"
                unusable.append(f"{entity_text(entity)}, {text}")
    return laid_over(QuotaTable(default_scope=base.default_scope, connections=base.connections), usable), unusable
