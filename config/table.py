"""Configuration to limits: the entries of the file (and of KIP-13's static form) as one `QuotaTable`."""

from __future__ import annotations

from config.model import Config, QuotaEntry
from config.problems import Place, Problem
from config.source import Source
from config.types import DEFAULT_WORD
from quota.entity import DEFAULT, Default
from quota.table import Entry, QuotaTable


def to_table(config: Config) -> QuotaTable:
    """The immutable limits that a configuration stands for."""
    return QuotaTable(entries(config), empty_client_id=config.empty_client_id)


def entries(config: Config) -> list[Entry]:
    """All entries, those of KIP-13's static form included."""
    return [to_entry(entry) for entry in config.quotas] + [entry for entry, _ in _static_entries(config)]


def to_entry(entry: QuotaEntry) -> Entry:
    """One entry of the file as the ledger's table wants it."""
    return Entry(
        user=_name(entry.user),
        client_id=_name(entry.client_id),
        producer_byte_rate=_as_float(entry.producer_byte_rate),
        consumer_byte_rate=_as_float(entry.consumer_byte_rate),
        request_percentage=entry.request_percentage,
        controller_mutation_rate=entry.controller_mutation_rate,
        mode=entry.mode,
    )


def find_duplicates(config: Config, source: Source) -> list[Problem]:
    """Entities that are configured twice. Which of the two would win is nothing to guess at."""
    seen: dict[tuple[str | Default | None, str | Default | None], Place] = {}
    problems: list[Problem] = []
    for index, entry in enumerate(config.quotas):
        key = (_name(entry.user), _name(entry.client_id))
        place: Place = ("quotas", index)
        first = seen.setdefault(key, place)
        if first != place:
            text = (
                f"expected each user and client-id once; {_entity(entry)} has an entry already, {_where(first, source)}"
            )
            problems.append(source.problem(place, text))
    for static, place in _static_entries(config):
        first = seen.get((static.user, static.client_id), place)
        if first != place:
            text = f"sets a limit of a client-id that has an entry already, {_where(first, source)}"
            problems.append(source.problem(place, text, at_key=True))
    return problems


def _static_entries(config: Config) -> list[tuple[Entry, Place]]:
    """KIP-13's four keys as client-id entries, each with the place of the key that made it."""
    limits: dict[str | Default, dict[str, int]] = {}
    places: dict[str | Default, Place] = {}
    for kind, default, override in (
        ("producer", config.producer_default, config.producer_override),
        ("consumer", config.consumer_default, config.consumer_override),
    ):
        if default is not None:
            limits.setdefault(DEFAULT, {})[kind] = default
            places.setdefault(DEFAULT, (f"quota.{kind}.default",))
        for client_id, limit in override:
            key = DEFAULT if client_id == DEFAULT_WORD else client_id
            limits.setdefault(key, {})[kind] = limit
            places.setdefault(key, (f"quota.{kind}.override",))
    return [
        (Entry(None, key, _as_float(both.get("producer")), _as_float(both.get("consumer"))), places[key])
        for key, both in limits.items()
    ]


def _name(name: str | None) -> str | Default | None:
    return DEFAULT if name == DEFAULT_WORD else name


def _as_float(limit: float | None) -> float | None:
    return None if limit is None else float(limit)


def _entity(entry: QuotaEntry) -> str:
    parts = [("user", entry.user), ("client-id", entry.client_id)]
    return ", ".join(f"{label} {name}" for label, name in parts if name is not None)


def _where(place: Place, source: Source) -> str:
    found = source.problem(place, "")
    return found.place if found.line is None else f"{found.place} at line {found.line}"
