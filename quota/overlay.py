"""Limits set by an administrator at run time, laid over the entries of the configuration file.

The overlay wins for each entity and key that it names. A limit that the file sets and an administrator removed is
there as None: otherwise the file would bring it back at the next start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from quota.admin import Changes, Entity, Quotas, enforced, entity_of_entry, names_of
from quota.table import Entry

Overlay = Mapping[Entity, Mapping[str, float | None]]
"""entity -> key -> value; None: there is no such limit, whatever the file says."""


def altered(overlay: Overlay, entries: Iterable[Entry], changes: Changes) -> dict[Entity, dict[str, float | None]]:
    """The overlay after `changes` (which were validated), over a file with these entries."""
    in_file: Quotas = enforced(entries)
    result = {entity: dict(limits) for entity, limits in overlay.items()}
    for entity, wanted in changes.items():
        limits = result.setdefault(entity, {})
        for key, value in wanted.items():
            if value is not None or key in in_file.get(entity, {}):
                limits[key] = value
            else:
                limits.pop(key, None)
        if not limits:
            del result[entity]
    return result


def merged(entries: Iterable[Entry], overlay: Overlay) -> list[Entry]:
    """The entries in force.

    An entity that the file keeps in shadow mode, and for which the overlay sets a limit, is enforced with the limits of
    the overlay alone: an entry has one mode, and what an administrator sets shall work.
    """
    rest = dict(overlay)
    result = []
    for entry in entries:
        limits = rest.pop(entity_of_entry(entry), None)
        if limits is not None:
            changed = _laid_over(entry, limits)
            if changed is None:
                continue
            entry = changed
        result.append(entry)
    for entity, limits in rest.items():
        found = _laid_over(Entry(*names_of(entity)), limits)
        if found is not None:
            result.append(found)
    return result


def _laid_over(entry: Entry, limits: Mapping[str, float | None]) -> Entry | None:
    if entry.mode == "shadow":
        if all(limit is None for limit in limits.values()):
            return entry  # a removal is of a limit in force, and this is none
        entry = Entry(entry.user, entry.client_id)
    found = replace(entry, **limits)  # type: ignore[arg-type]  # keys are the names of Entry's limits
    return found if enforced([found]) else None
