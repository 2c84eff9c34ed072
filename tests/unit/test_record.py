"""The usage record: its rows, lines and types, and the page that describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quota import record
from quota.entity import Kind
from tests.support.usage_rows import NAMES, build, from_line

TEXT = Path(__file__, "../../../docs/usage-records.md").resolve().read_text()


def a_row(**values: Any) -> record.Row:
    known = {"instance": "i", "sequence": 1, "start_ms": 1000, "end_ms": 11_000, "duration_s": 10.0, "samples": 10}
    return build(known | {"kquota_version": "1", "user": "u", "client_id": "c"} | values)


def test_a_line_is_the_row_again() -> None:
    row = a_row(client_id='a "quoted"\nname ü', fetch_bytes=-1, produce_limit=2e6, produce_limit_mode="shadow")
    line = record.to_line(row)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert from_line(line) == row
    assert tuple(json.loads(line)) == NAMES


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
