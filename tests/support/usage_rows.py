"""Usage records as tests make and read them: whole, and checked against the schema."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from quota.record import FAMILIES, FIELDS, SCHEMA_VERSION, Field, Row, Type, empty

NAMES: Final = tuple(field.name for field in FIELDS)
_MODES: Final = ("enforce", "shadow")
_MAX_INT: Final[Mapping[Type, int]] = {"int": 2**31 - 1, "bigint": 2**63 - 1}


class RecordError(ValueError):
    """A line or a row that is not a usage record; the message says where and why."""


def build(values: Mapping[str, Any]) -> Row:
    """A row of this version: `values`, and 0 or null for all other fields. Raises RecordError."""
    row = empty() | dict(values)
    found = problems(row)
    if found:
        raise RecordError("; ".join(found))
    return row


def problems(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with a row of this version or an earlier one; empty if it is valid."""
    version = row.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= SCHEMA_VERSION:
        return [f"schema_version is {version!r}, this reader knows 1 to {SCHEMA_VERSION}"]
    fields = [field for field in FIELDS if field.since <= version]
    known = {field.name for field in fields}
    found = [f"{name} is no field of version {version}" for name in row if name not in known]
    for field in fields:
        if field.name not in row:
            found.append(f"{field.name} is missing")
        else:
            expected = _expected(field, row[field.name])
            if expected:
                found.append(f"{field.name} is {row[field.name]!r}, expected {expected}")
    if not found:
        found += _contradictions(row)
    return found


def from_line(line: bytes | str) -> Row:
    """The row in one line; fields that its version did not have are null."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise RecordError(f"a JSON {type(row).__name__}, expected an object")
    found = problems(row)
    if found:
        raise RecordError("; ".join(found))
    return dict.fromkeys(NAMES) | row


def _expected(field: Field, value: Any) -> str | None:
    """What was expected instead, None if the value is valid."""
    if value is None:
        return None if field.nullable else f"a {field.type}"
    if field.type == "string":
        if not isinstance(value, str):
            return "a string"
        return f"one of {', '.join(_MODES)}" if field.name.endswith("_limit_mode") and value not in _MODES else None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if field.type == "double":
        if not whole and not isinstance(value, float):
            return "a number"
        if not math.isfinite(value):
            return "a finite number"
    elif not whole or abs(value) > _MAX_INT[field.type]:
        return f"a whole number ({field.type})"
    if field.least is not None and value < field.least:
        return f"at least {field.least:g}"
    return None


def _contradictions(row: Mapping[str, Any]) -> Iterator[str]:
    if row["sequence"] < 1:
        yield f"sequence is {row['sequence']}, expected at least 1"
    if row["end_ms"] < row["start_ms"]:
        yield f"end_ms is {row['end_ms']}, before start_ms {row['start_ms']}"
    counted = sum(row[f"requests_{family}"] for family in FAMILIES)
    if counted != row["requests"]:
        yield f"requests is {row['requests']}, its families sum to {counted}"
