"""What goes into a report: rows that are no records are set aside and counted, whatever they are."""

from __future__ import annotations

import gzip
import html
import json
import math
import random
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from analysis.days import Days
from analysis.errors import ReportError, WrongUseError
from analysis.files import unreadable_file
from analysis.intake import UNREADABLE, checked_lines, read
from analysis.runner import Asked, make
from quota.record import SCHEMA_VERSION, spark_ddl, to_line
from tests.support.spark_tools import DAY_MS, T0_MS, json_lines, not_before_4, record, table, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NOW_MS = T0_MS + DAY_MS


def test_bad_rows_are_counted_and_the_good_ones_used(spark: SparkSession, tmp_path: Path) -> None:
    good = [record(number, number * 10, produce_bytes=1000) for number in (1, 2, 3, 7)]  # 4, 5, 6: one gap of three
    set_back = record(8, 30, produce_bytes=1000)  # ends at 40 s, the one before it at 80 s
    renamed = record(1, 0, instance="i2", produce_bytes=1000), record(2, 10, instance="i2", pod="other")
    bad = {
        "not_a_record": [to_line(good[0])[:200] + b"\n", b"\xff\xfe binary \x00\n", b"[1, 2]\n", b"<html>\n"],
        "foreign": [b'{"level": "info", "message": "hello"}\n', b"{}\n"],
        "unknown_version": [
            to_line(good[0] | {"schema_version": SCHEMA_VERSION + 1}),
            to_line(good[0] | {"schema_version": SCHEMA_VERSION + 1, "requests": "of another type by then"}),
            to_line(good[0] | {"schema_version": 0}),
        ],
        "wrong_value": [
            to_line(good[0] | {"user": None}),
            to_line(good[0] | {"produce_bytes": -1}),
            to_line(good[0] | {"end_ms": T0_MS - 1}),
            to_line(good[0] | {"requests": 5}),  # its families sum to 0
            to_line(good[0] | {"produce_bytes": 2**63 - 1}),
            to_line(good[0] | {"requests": 4, "requests_produce": 2**63 - 1, "requests_fetch": 5}),
            to_line(good[0] | {"request_seconds": 123.25}).replace(b"123.25", b"1e999"),
        ],
        "clock_off": [
            to_line(record(20, 0, instance="i3") | {"start_ms": 0, "end_ms": 10_000}),
            to_line(record(22, 0, instance="i3") | {"start_ms": 0}),
            to_line(record(21, 0, instance="i3") | {"end_ms": NOW_MS + 2 * DAY_MS}),
        ],
    }
    write(tmp_path / "in", [*good, set_back, *renamed, to_line(good[2]), to_line(good[2])])
    write(tmp_path / "in", [row for rows in bad.values() for row in rows], "some/where/else.txt")
    write(tmp_path / "in", [to_line(record(9, 90))[:-40]], "cut-off.jsonl")  # no newline at its end
    printed = make(
        spark, "usage", Asked(str(tmp_path / "in"), str(tmp_path / "out"), 60, {}, quiet=True, now_ms=NOW_MS)
    )
    out = tmp_path / "out" / "usage"
    aside = json_lines(out / "set-aside")
    counts = {name: sum(row["reason"] == name for row in aside) for name in bad}
    assert counts == {name: len(rows) for name, rows in bad.items()} | {"not_a_record": 5}
    assert {row["file"].rsplit("/", 1)[1] for row in aside} == {"else.txt", "cut-off.jsonl"}
    foreign = {row["raw"].encode() + b"\n" for row in aside if row["reason"] == "foreign"}
    assert foreign == set(bad["foreign"])
    for text in (
        "Used: 7 records of 2 instances, of 29 rows read.",
        "Set aside: 2 rows, with an id (instance, sequence) that was already read.",
        "Missing: 3 records, in 1 gap of instances' sequence numbers.",
        "Clocks: set back 1 time;",
        "Pods: 1 instance changed the pod's name",
    ):
        assert text in printed
        assert text in html.unescape((out / "report.html").read_text())
    (client,) = table(out, "clients")
    assert client["produce_bytes"] == "6000"  # the repeats and the bad ones are not in it
    assert not (out / "_staging").exists()


@not_before_4
def test_files_that_cannot_be_read_are_set_aside_whole(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short, of another format, with other types, empty, deleted once listed; a directory that is named like a file
    is one."""
    lines = "\n".join(json.dumps(record(number, number * 10, produce_bytes=7)) for number in range(1, 5))
    zipped = gzip.compress(lines.encode() + random.Random(3).randbytes(100_000).hex().encode())
    json_in, parquet_in = tmp_path / "json", tmp_path / "parquet"
    (json_in / "b.jsonl").mkdir(parents=True)
    (json_in / "b.jsonl" / "a.jsonl").write_text(lines)
    (json_in / "empty.jsonl").touch()
    (json_in / "empty.d.jsonl").mkdir()
    (json_in / "cut short é.jsonl.gz").write_bytes(zipped[: len(zipped) // 2])
    (json_in / "none.jsonl.gz").write_bytes(b"this is no gzip")
    # With the types of usage records: Spark would take columns that are null in all of them for text.
    ours = spark.read.schema(spark_ddl()).json(str(json_in / "b.jsonl"))
    ours.repartition(1).write.parquet(str(parquet_in / "ours.parquet"))
    spark.range(1).select("id", F.lit(1).alias("user")).repartition(1).write.parquet(str(parquet_in / "types"))
    (parquet_in / "empty.d.parquet").mkdir()
    whole = next((parquet_in / "ours.parquet").glob("*.parquet")).read_bytes()
    for name, content in {
        "ours.parquet/cut.parquet": whole[: len(whole) // 2],
        "damaged.parquet": whole[:8] + bytes(len(whole) // 2) + whole[8 + len(whole) // 2 :],
        "short.parquet": b"PAR",
        "README.txt": b"Records of 2025.\n",
        "late.jsonl": lines.encode(),
        "empty.parquet": b"",
    }.items():
        (parquet_in / name).write_bytes(content)
    gone = write(tmp_path / "gone", [lines.encode()], "a.jsonl") / "gone.jsonl"
    gone.write_text(lines)

    def listed(rows: DataFrame, *more: Any) -> DataFrame:
        if rows.inputFiles() and "/gone/" in rows.inputFiles()[0]:
            gone.unlink(missing_ok=True)
        return checked_lines(rows, *more)

    monkeypatch.setattr("analysis.intake.checked_lines", listed)
    bad = {
        gone.parent: {"gone.jsonl"},
        json_in: {"cut%20short%20é.jsonl.gz", "none.jsonl.gz"},
        parquet_in: {"cut.parquet", "damaged.parquet", "short.parquet", "README.txt", "late.jsonl"},
    }
    for place, expected in bad.items():
        if place == parquet_in:  # named by Spark
            expected |= {path.name for path in (parquet_in / "types").glob("*.parquet")}
        printed = make(spark, "usage", Asked(str(place), str(tmp_path / "out"), 60, {}, quiet=True, now_ms=NOW_MS))
        assert "Used: 4 records of 1 instance" in printed
        assert f"Set aside entirely: {len(expected)} file{'s' * (len(expected) > 1)}, {UNREADABLE}: " in printed
        assert ("JSON lines next to Parquet are not read" in printed) == (place == parquet_in)
        assert place != json_in or "cut short é.jsonl.gz" in printed
        aside = [row for row in json_lines(tmp_path / "out" / "usage" / "set-aside") if row["reason"] != "foreign"]
        assert {row["reason"] for row in aside} == {"unreadable_file"}
        assert {row["file"].rsplit("/", 1)[1] for row in aside} == expected
        (client,) = table(tmp_path / "out" / "usage", "clients")
        assert client["produce_bytes"] == "28"
    assert capfd.readouterr().err == ""  # no stack traces of Java
    # Nor is a file of the report's own one of the input.
    assert unreadable_file(Exception("Encountered error while reading file file:/out/_staging/a.parquet.")) is None


def test_distinguishes_no_files_from_no_records(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="no files there"):
        read(spark, str(tmp_path / "nothing*"), (), str(tmp_path / "s"))
    write(tmp_path / "in", [b"{}\n", b"\n"])
    with pytest.raises(ReportError, match=r"no usable record in 1 rows \(1 foreign\)"):
        read(spark, str(tmp_path / "in"), (), str(tmp_path / "s"))
    write(tmp_path / "in", [record(1, 0), record(2, 86_400)], "records.jsonl")
    after = Days(date(2027, 1, 1), date.max)
    with pytest.raises(ReportError, match="no records of these days; it has those of 2025-10-20 to 2025-10-21"):
        read(spark, str(tmp_path / "in/*.jsonl"), (), str(tmp_path / "s"), days=after)
    with pytest.raises(WrongUseError, match="no files of these days: it has those of 2025-10-20 to 2025-10-20"):
        read(spark, str(tmp_path / "in"), (), str(tmp_path / "s"), days=after)


@not_before_4
def test_reads_parquet_in_place_of_json(spark: SparkSession, tmp_path: Path) -> None:
    """The same records give the same figures; a foreign Parquet file is set aside row by row."""
    lines = "\n".join(json.dumps(record(number, number * 10, produce_bytes=7)) for number in (1, 2, 2, 4))
    (tmp_path / "a.jsonl").write_text(lines)
    ours = spark.read.json(str(tmp_path / "a.jsonl"))
    ours.withColumns({"sequence": F.lit(9), "duration_s": F.lit(math.nan)}).limit(1).unionByName(ours).write.parquet(
        str(tmp_path / "in" / "ours")
    )
    spark.range(3).write.parquet(str(tmp_path / "in" / "foreign"))
    with pytest.raises(ReportError, match=r"no usable record in 3 rows \(3 foreign\)"):
        read(spark, str(tmp_path / "in" / "foreign"), ["produce_bytes"], str(tmp_path / "s"), now_ms=NOW_MS)
    intake = read(spark, str(tmp_path / "in"), ["produce_bytes"], str(tmp_path / "s"), now_ms=NOW_MS)
    quality = intake.quality
    assert (quality.read, quality.used, quality.missing, quality.gaps) == (8, 3, 1, 1)
    aside = {name: count for name, count in quality.aside.items() if count}
    assert aside == {"foreign": 3, "wrong_value": 1, "duplicate": 1}
    assert intake.records.count() == 3
