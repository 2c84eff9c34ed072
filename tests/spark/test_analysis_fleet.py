"""The generated fleet: right records, the same ones for the same seed, losses and repeats as many as it says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812

from analysis.audit import instances, words
from analysis.errors import ReportError
from analysis.fleet import GeneratedFleet, main, records, write
from quota.record import FIELDS, problems

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SMALL = GeneratedFleet(sidecars=6, days=2, interval_s=1200, apps=4, lost=0.03, repeated=0.03, parts=2)


def test_rows_are_records_and_follow_from_the_seed(spark: SparkSession) -> None:
    rows = records(spark, SMALL, 0, tasks=1)
    assert rows.columns == [field.name for field in FIELDS]
    for row in rows.limit(400).collect():
        assert problems(row.asDict()) == []
    of_all = F.sum(F.xxhash64(*rows.columns).cast("decimal(38,0)"))
    once, more_tasks, other = (
        frame.agg(F.count("*").alias("n"), of_all.alias("sum")).collect()[0]
        for frame in (
            rows,
            records(spark, SMALL, 0, tasks=3),
            records(spark, replace(SMALL, seed=2), 0),
        )
    )
    assert once == more_tasks
    assert once != other


def test_sequences_have_the_holes_and_repeats_that_were_made(spark: SparkSession) -> None:
    """2 days of 72 intervals, 3 sidecars in a part: 432 intervals, 3 % of which, 13, are lost, and 13 are repeated.
    What is missing at an instance's very beginning or end cannot be known.
    """
    rows = records(spark, SMALL, 1).cache()
    intervals = rows.groupBy("pod", "end_ms").agg(
        F.count("*").alias("rows"), F.count_distinct("sequence").alias("kept")
    )
    told = instances(words(rows.withColumn("reason", F.lit(None).cast("string")))).agg(
        F.sum("missing").alias("missing"), F.sum("duplicates").alias("duplicates")
    )
    (account,) = told.collect()
    (found,) = intervals.agg(F.count("*").alias("n"), F.sum(F.col("rows") - F.col("kept")).alias("repeats")).collect()
    assert account["duplicates"] == found["repeats"] > 0
    assert 3 <= 3 * 144 - found["n"] <= 30
    # Each interval of a pod has the records of all its clients, and a lost one lacks as many numbers.
    sizes = {row["pod"]: row["kept"] for row in intervals.groupBy("pod").agg(F.max("kept").alias("kept")).collect()}
    there = {row["pod"]: row["n"] for row in intervals.groupBy("pod").agg(F.count("*").alias("n")).collect()}
    most = sum((144 - there[pod]) * clients for pod, clients in sizes.items())
    assert 0 < account["missing"] <= most
    rows.unpersist()


def test_a_part_that_was_broken_off_is_written_again_and_a_whole_one_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "00", tmp_path / "01"
    write(spark, SMALL, str(tmp_path), quiet=True)
    rows = spark.read.parquet(str(cut)).count()
    before = {file: file.stat().st_mtime_ns for file in whole.iterdir()}
    (cut / "_SUCCESS").unlink()
    for file in cut.glob("*.parquet"):
        file.unlink()
    write(spark, SMALL, str(tmp_path), quiet=True)
    assert spark.read.parquet(str(cut)).count() == rows > 0
    assert {file: file.stat().st_mtime_ns for file in whole.iterdir()} == before
    with pytest.raises(
        ReportError, match=r"another fleet: GeneratedFleet\(.*seed=1.*; this is GeneratedFleet\(.*seed=2"
    ):
        write(spark, replace(SMALL, seed=2), str(tmp_path), quiet=True)


def test_an_interval_that_half_a_day_is_no_multiple_of_is_refused() -> None:
    assert main(["--output", "x", "--interval", "7"]) == 2
