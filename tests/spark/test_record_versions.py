"""Usage records of version 1, from sidecars that held no requests, 2, which knew no fleets, and 3: all are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analysis.runner import Asked, make
from quota import record
from quota.entity import Kind
from quota.record import Row
from quota.table import Entry
from tests.support.spark_tools import DAY_MS, T0_MS, floats, table, write
from tests.support.spark_tools import record as new_record
from tests.unit.test_export_rows import Watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINCE_2 = {f"throttle_{kind}_held_{what}" for kind in Kind for what in ("count", "seconds")}
SINCE_3 = {f"{kind}_fleet_{what}" for kind in Kind for what in ("limit", "share")}


def old_record(sequence: int, start_s: float, **values: Any) -> Row:
    """A record as a sidecar of version 1 wrote it."""
    row = new_record(sequence, start_s, instance="old", **values) | {"schema_version": 1}
    return {name: value for name, value in row.items() if name not in SINCE_2 | SINCE_3}


def test_new_fields_are_at_the_end_and_may_be_null() -> None:
    new = [field for field in record.FIELDS if field.since > 1]
    assert {field.name for field in new if field.since == 2} == SINCE_2
    assert {field.name for field in new if field.since == 3} == SINCE_3
    assert [field.since for field in new] == sorted(field.since for field in new)
    assert record.FIELDS[-len(new) :] == tuple(new)
    assert all(field.nullable for field in new)


def test_exports_the_share_of_a_fleet_limit() -> None:
    watched = Watched(Entry(None, "c", producer_byte_rate=1000.0, scope="fleet"))
    watched.charge("c", Kind.PRODUCE, 10)
    group = watched.ledger.account("u", "c").meters[Kind.PRODUCE].group
    assert group is not None
    group.take_share(0.25, 0.0, 1000)
    watched.tick()
    (row,) = watched.close()
    assert (row["produce_limit"], row["produce_fleet_limit"], row["produce_fleet_share"]) == (250.0, 1000.0, 0.25)
    assert (row["fetch_fleet_limit"], row["fetch_fleet_share"]) == (None, None)


def test_exports_held_requests() -> None:
    watched = Watched()
    account = watched.ledger.account("u", "c")
    watched.charge("c", Kind.PRODUCE, 10)
    watched.ledger.note_throttle(account, Kind.PRODUCE, 1000)
    watched.ledger.note_throttle(account, Kind.PRODUCE, 4200, queued=True)
    watched.ledger.note_throttle(account, Kind.REQUEST, 300, queued=True)
    watched.tick()
    (row,) = watched.close()
    assert row["schema_version"] == 3
    assert (row["throttle_produce_count"], row["throttle_produce_seconds"]) == (2, 5.2)
    assert (row["throttle_produce_held_count"], row["throttle_produce_held_seconds"]) == (1, 4.2)
    assert (row["throttle_request_held_count"], row["throttle_request_held_seconds"]) == (1, 0.3)
    assert (row["throttle_fetch_held_count"], row["throttle_fetch_held_seconds"]) == (0, 0.0)
    watched.ledger.note_throttle(account, Kind.PRODUCE, 500, queued=True)
    watched.tick()
    (row,) = watched.close()
    assert (row["throttle_produce_held_count"], row["throttle_produce_held_seconds"]) == (1, 0.5)


@pytest.mark.parametrize("parquet", [False, True], ids=["json", "parquet"])
def test_the_report_on_throttling_reads_both(spark: SparkSession, tmp_path: Path, parquet: bool) -> None:
    old = [old_record(1, 0, client_id="old", requests=4, throttle_produce_count=2, throttle_produce_seconds=4.0)]
    held = {"produce": (2, 2.0), "produce_held": (1, 1.5), "request": (1, 1.0), "request_held": (1, 1.0)}
    throttles = {f"throttle_{cause}_count": count for cause, (count, _) in held.items()}
    throttles |= {f"throttle_{cause}_seconds": seconds for cause, (_, seconds) in held.items()}
    new = [new_record(number, 10 * number, client_id="new", requests=4, **throttles) for number in (1, 2)]
    place = write(tmp_path / "in", old, "old.jsonl")
    write(place, new, "new.jsonl")
    if parquet:
        for name, rows in (("old", old), ("new", new)):
            types = ", ".join(part for part in record.spark_ddl().split(", ") if part.split()[0] in rows[0])
            frame = spark.read.schema(types).json(str(place / f"{name}.jsonl"))
            frame.coalesce(1).write.parquet(str(tmp_path / "columns" / name))
        place = tmp_path / "columns"
    now_ms = T0_MS + 30 * DAY_MS
    printed = make(spark, "throttling", Asked(str(place), str(tmp_path / "out"), 60, {}, quiet=True, now_ms=now_ms))
    clients = {row["client_id"]: row for row in table(tmp_path / "out" / "throttling", "clients")}
    assert floats(clients["old"], "delayed_seconds", "held_seconds") == [4, 0]
    assert floats(clients["new"], "delayed_seconds", "held_seconds") == [6, 5]
    causes = {row["cause"]: row for row in table(tmp_path / "out" / "throttling", "causes")}
    assert floats(causes["produce"], "delayed_seconds", "held_seconds") == [8, 3]
    assert floats(causes["request"], "delayed_seconds", "held_seconds") == [2, 2]
    assert "5 s (50 %) was queueing in kquota" in printed
