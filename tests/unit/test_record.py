"""The usage record: its rows, lines and types, and the page that describes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quota import record
from quota.entity import Kind
from tests.support.usage_rows import NAMES, RecordError, build, from_line, problems

TEXT = Path(__file__, "../../../docs/usage-records.md").resolve().read_text()


def a_row(**values: Any) -> record.Row:
    known = {"instance": "i", "sequence": 1, "start_ms": 1000, "end_ms": 11_000, "duration_s": 10.0, "samples": 10}
    return build(known | {"kquota_version": "1", "user": "u", "client_id": "c"} | values)


def test_a_line_is_the_row_again() -> None:
    row = a_row(client_id='a "quoted"\nname ü', produce_bytes=5, produce_limit=2e6, produce_limit_mode="shadow")
    line = record.to_line(row)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert from_line(line) == row
    assert tuple(json.loads(line)) == NAMES


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"colour": "red"}, "colour is no field"),
        ({"produce_bytes": 1.5}, "produce_bytes is 1.5, expected a whole number (bigint)"),
        ({"produce_bytes": -1}, "produce_bytes is -1, expected at least 0"),
        ({"produce_bytes": True}, "expected a whole number"),
        ({"samples": 2**31}, "expected a whole number (int)"),
        ({"user": None}, "user is None, expected a string"),
        ({"pod": 3}, "pod is 3, expected a string"),
        ({"duration_s": float("nan")}, "expected a finite number"),
        ({"duration_s": "10"}, "expected a number"),
        ({"fetch_limit_mode": "strict"}, "expected one of enforce, shadow"),
        ({"sequence": 0}, "sequence is 0, expected at least 1"),
        ({"end_ms": 999}, "end_ms is 999, before start_ms 1000"),
        ({"requests": 3, "requests_fetch": 2}, "requests is 3, its families sum to 2"),
        ({"schema_version": 4}, "schema_version is 4, this reader knows 1 to 3"),
        ({"schema_version": 0}, "schema_version is 0, this reader knows 1 to 3"),
        ({"schema_version": True}, "schema_version is True, this reader knows 1 to 3"),
        ({"schema_version": 1}, "throttle_produce_held_count is no field of version 1"),
        ({"schema_version": 2}, "produce_fleet_limit is no field of version 2"),
        ({"throttle_fetch_held_count": -1}, "throttle_fetch_held_count is -1, expected at least 0"),
    ],
)
def test_a_wrong_row_is_refused_with_its_field(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecordError, match=re.escape(complaint)):
        a_row(**values)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"17", b"{}", record.to_line(a_row())[:-9], b"\xff\xfe"])
def test_refuses_invalid_records(line: bytes) -> None:
    with pytest.raises(RecordError):
        from_line(line)


def test_a_missing_field_is_named() -> None:
    row = a_row()
    del row["mutes"]
    assert problems(row) == ["mutes is missing"]


def test_amounts_that_can_be_given_back_may_be_negative() -> None:
    a_row(fetch_bytes=-1, request_seconds=-0.5, mutations=-3.0)


def test_types_for_spark_and_duckdb_name_every_field_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert [part.split(" ")[0] for part in record.spark_ddl().split(", ")] == list(NAMES)
    assert list(record.duckdb_columns()) == list(NAMES)
    assert set(record.UNITS) == {str(kind) for kind in Kind}


def test_page_lists_every_record_field() -> None:
    documented = {}
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        name, type_, unit, null, meaning = cells
        (mark, kinds) = ("<cause>", record.CAUSES) if "<cause>" in name else ("<kind>", tuple(record.UNITS))
        for kind in kinds if mark in name else [""]:
            real_unit = record.UNITS[kind] if unit == "the kind's" else unit
            documented[name.strip("`").replace(mark, kind)] = (
                type_,
                real_unit,
                null == "yes",
                meaning.replace(mark, kind),
            )
    assert documented == {f.name: (f.type, f.unit, f.nullable, f.meaning) for f in record.FIELDS}
