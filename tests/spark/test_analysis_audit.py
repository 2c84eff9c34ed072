"""The account of sequence numbers by bits says what looking at each record in order says."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from analysis.audit import instances, without_repeats, words

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "instance string, sequence bigint, start_ms bigint, end_ms bigint, pod string"
Row = tuple[str, int, int, int, str]


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA).withColumn("reason", F.lit(None).cast("string"))


def account(rows: list[Row]) -> dict[str, Any]:
    """The same, one record after the other."""
    rows = sorted(rows, key=lambda row: (row[1], row[3]))
    numbers = sorted({row[1] for row in rows})
    holes = [after - before - 1 for before, after in pairwise(numbers) if after - before > 1]
    steps = sum(after[3] < before[3] - 1000 for before, after in pairwise(rows))
    return {
        "records": len(rows),
        "duplicates": len(rows) - len(numbers),
        "missing": sum(holes),
        "gaps": len(holes),
        "clock_steps": steps,
        "renamed": len({row[4] for row in rows}) > 1,
        "first_ms": min(row[2] for row in rows),
        "last_ms": max(row[3] for row in rows),
    }


def test_audit_agrees_with_looking_at_each(spark: SparkSession, tmp_path: Path) -> None:
    """Losses, repeats, clocks set back onto the very times of earlier intervals, intervals of 1 to 30 clients."""
    dice = random.Random(7)
    rows: list[Row] = []
    for name in range(12):
        number, clock = dice.choice((1, 60, 64, 1000)), 1_000_000
        clients = dice.choice((1, 3, 30))
        mine: list[Row] = []
        for _ in range(dice.choice((1, 5, 60))):
            clock += 10_000
            if dice.random() < 0.15:
                clock -= dice.choice((10_000, 30_000, 400_000))
            pod = "q" if name % 4 == 0 and dice.random() < 0.1 else "p"
            mine += [(f"i{name}", number + one, clock - 10_000, clock, pod) for one in range(clients)]
            number += clients
        mine = [row for row in mine if dice.random() > 0.03] or mine
        rows += mine + [row for row in mine if dice.random() < 0.02]
    found = words(frame(spark, rows)).cache()
    seen = {row["instance"]: row.asDict() for row in instances(found).collect()}
    for name in {row[0] for row in rows}:
        expected = account([row for row in rows if row[0] == name])
        assert {key: seen[name][key] for key in expected} == expected, name
    assert sum(row["clock_steps"] for row in seen.values()) > 5
    repeats = sum(row["duplicates"] for row in seen.values())
    assert repeats > 5
    repeated = found.where("duplicates > 0")
    once = without_repeats(frame(spark, rows), repeated, repeated.count(), str(tmp_path / "repeats"))
    left = [tuple(row)[:5] for row in once.collect()]
    assert sorted(left) == sorted(set(rows))
    assert len(left) == len(rows) - repeats
    found.unpersist()
