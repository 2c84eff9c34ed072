"""The overlay file: limits that an administrator set at run time (:mod:`quota.overlay`), as readable YAML.

    quotas:
    - {user: alice, producer_byte_rate: 2000000}
    - {client-id: <default>, consumer_byte_rate: null}    # the main file's limit was removed
    - {user: {name: <default>}, request_percentage: 50}   # a user whose name is <default>

The sidecar writes it; this module defines its format, `proxy.app` does the writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from config.load import validate
from config.model import LIMIT_NAMES, Config
from config.problems import MAX_FILE_BYTES, MAX_VALUES, ConfigError, Place, Problem, first_of, refused
from config.source import dump, number, parse
from config.table import to_table
from config.types import DEFAULT_WORD, Section, Value, wrong
from config.units import as_written
from proxy.net.files import read_file
from quota.admin import (
    CLIENT_ID,
    CONNECTION_RATE,
    IP,
    USER,
    AdminError,
    Entity,
    canonical,
    check_entity,
    check_value,
    entity_text,
)
from quota.entity import DEFAULT, Default
from quota.overlay import Overlay, laid_over
from quota.table import QuotaTable

_HEADER: Final = """\
# Written by kquota: client quotas that were set through it with AlterClientQuotas (kafka-configs). Each limit wins over
# that of the configuration file; null: the limit was removed. May be edited by hand: a change is in force within a
# second or two; a file with a mistake in it is refused, and what was in force stays. With the next alteration the
# sidecar rewrites the whole file, so comments are lost.
"""
_LIMITS: Final = (*LIMIT_NAMES, CONNECTION_RATE)
_ROWS_AT_ONCE: Final = 100


def _name(value: Any) -> str | Default:
    if isinstance(value, dict) and value.keys() == {"name"} and isinstance(value["name"], str) and value["name"]:
        return str(value["name"])
    if value == DEFAULT_WORD:
        return DEFAULT
    if isinstance(value, str) and value:
        return value
    raise wrong("a non-empty name (in quotes if it looks like a number), <default>, or {name: …}")


def _limit(value: Any) -> float | None:
    if value is None:
        return None
    if (found := number(value)) is not None:
        return float(found)
    raise wrong("a finite number, or null for a removed limit")


_Limit = Annotated[float | None, Value(_limit, {})]


class _OverlayEntry(Section):
    """Limits of one entity."""

    user: Annotated[Any, Value(_name, {})] = None
    client_id: Annotated[Any, Value(_name, {})] = Field(default=None, alias="client-id")
    producer_byte_rate: _Limit = None
    consumer_byte_rate: _Limit = None
    request_percentage: _Limit = None
    controller_mutation_rate: _Limit = None
    ip: Annotated[Any, Value(_name, {})] = None
    connection_creation_rate: _Limit = None


class _OverlayFile(Section):
    """The overlay."""

    quotas: list[_OverlayEntry] = Field(default_factory=list)


def load_overlay(path: str | Path) -> Overlay:
    """The overlay in a file; empty when there is none yet. Raises ConfigError."""
    try:
        data = read_file(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise refused(str(path), f"cannot be read: {error.strerror or error}") from error
    return parse_overlay(str(path), data)


def parse_overlay(file: str, data: bytes) -> Overlay:
    """The overlay in a file. Raises ConfigError with every problem found."""
    source = parse(file, data)
    if source.values is None and not source.problems:  # nothing but comments
        return {}
    overlay: dict[Entity, dict[str, float | None]] = {}
    problems: list[Problem] = []
    for index, entry in enumerate(validate(_OverlayFile, source).quotas):
        place: Place = ("quotas", index)
        names = ((CLIENT_ID, entry.client_id), (IP, entry.ip), (USER, entry.user))
        entity = canonical(tuple((kind, None if name is DEFAULT else name) for kind, name in names if name is not None))
        limits = {name: getattr(entry, name) for name in _LIMITS if name in entry.model_fields_set}
        if not limits:
            problems.append(source.problem(place, f"expected at least one limit: {', '.join(_LIMITS)}"))
        try:
            check_entity(entity)
        except AdminError as error:
            problems.append(source.problem(place, error.message))
            continue
        if entity in overlay:
            problems.append(source.problem(place, f"expected each entity once, {entity_text(entity)} already exists"))
        for name, value in limits.items():
            try:
                check_value(entity, name, 1.0 if value is None else value)
            except AdminError as error:
                problems.append(source.problem((*place, name), error.message))
        overlay[entity] = limits
    if problems:
        raise ConfigError(first_of(problems))
    return overlay


def overlay_bytes(overlay: Overlay) -> bytes:
    """The content of the file for an overlay. Raises ValueError for one that could not be read again."""
    rows = [
        {kind: _written_name(name) for kind, name in sorted(entity, reverse=True)}
        | {key: as_written(value) for key, value in limits.items()}
        for entity, limits in overlay.items()
    ]
    if not rows:
        return (_HEADER + "quotas: []\n").encode()
    values = 3 + sum(1 + sum(2 + 2 * isinstance(value, dict) for value in row.values()) for row in rows)
    if values > MAX_VALUES:
        raise ValueError(f"would have more than {MAX_VALUES} values (keys, values, lists and mappings)")
    # libyaml holds the GIL until it is done: in small parts it does not block the event loop for long
    parts = (rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE))
    body = "".join(map(dump, parts))
    data = (_HEADER + "quotas:\n" + body).encode()
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"would become larger than {MAX_FILE_BYTES} bytes")
    return data


def table_in_force(config: Config) -> QuotaTable:
    """The limits of a configuration with its overlay, if there is one. Raises ConfigError."""
    overlay = config.quota_settings.overlay
    return to_table(config) if overlay is None else laid_over(to_table(config), load_overlay(overlay))


def _written_name(name: str | None) -> Any:
    if name is None:
        return DEFAULT_WORD
    return {"name": name} if name == DEFAULT_WORD else name
