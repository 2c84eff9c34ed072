"""Usage records as tests make and read them: whole, and checked against the schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from quota.record import FAMILIES, FIELDS, SCHEMA_VERSION, Field, Row, Type, empty

NAMES: Final = tuple(field.name for field in FIELDS)
_MODES: Final = ("enforce", "shadow")
_MAX_INT: Final[Mapping[Type, int]] = {"int": 2**31 - 1, "bigint": 2**63 - 1}


def build(values: Mapping[str, Any]) -> Row:
    """A row: `values`, and 0 or null for all other fields."""
    return _checked(empty() | dict(values))


def from_line(line: bytes | str) -> Row:
    """The row in one line."""
    return _checked(json.loads(line))


def _checked(row: Row) -> Row:
    assert row.keys() == set(NAMES), sorted(row.keys() ^ set(NAMES))
    wrong = {field.name: row[field.name] for field in FIELDS if not _fits(field, row[field.name])}
    assert not wrong, wrong
    assert row["schema_version"] == SCHEMA_VERSION
    assert row["sequence"] >= 1
    assert row["start_ms"] <= row["end_ms"]
    assert row["requests"] == sum(row[f"requests_{family}"] for family in FAMILIES)
    return row


def _fits(field: Field, value: Any) -> bool:
    if value is None:
        return field.nullable
    if field.type == "string":
        return isinstance(value, str) and (not field.name.endswith("_limit_mode") or value in _MODES)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if field.type == "double":
        fits = (whole or isinstance(value, float)) and math.isfinite(value)
    else:
        fits = whole and abs(value) <= _MAX_INT[field.type]
    return fits and (field.least is None or value >= field.least)
