"""Compaction: each record once, in few files per day and cluster, whatever happens in between."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from analysis.compact import CompactSettings, compact
from analysis.days import Days
from analysis.errors import ReportError, WrongUseError
from analysis.files import write_text
from analysis.intake import UNREADABLE
from analysis.runner import Asked, make
from analysis.store import STALE_S, Store
from tests.support.spark_tools import DAY_MS, T0_MS, json_lines, not_before_4, record, table, watched, write

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = ["2025-10-20", "2025-10-21", "2025-10-22"]
NOW_MS = T0_MS + 3 * DAY_MS + 3 * 3_600_000
"""Three hours into the fourth day."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two sidecars of two clusters, three days, two hours' files each; the second one's repeat each other in part."""
    for sidecar, cluster in (("a", "east"), ("b", "west")):
        for index, (day, hour) in enumerate(itertools.product(range(3), (0, 23))):
            of = {"instance": sidecar, "cluster_id": cluster, "produce_bytes": 1000}
            first, at_s = 2 * index + 1, day * 86_400 + hour * 3600
            rows = [record(first, at_s, client_id="z", **of), record(first + 1, at_s, client_id="y", **of)]
            name = f"pod-{sidecar}/date={DAYS[day]}/hour={hour:02}/usage-{sidecar}-{first + 1}.jsonl"
            write(tmp_path / "raw", rows, name)
    again = (tmp_path / "raw/pod-b/date=2025-10-21/hour=00").iterdir()
    text = next(again).read_bytes()
    write(tmp_path / "raw", [text, b"no record\n"], "pod-b/date=2025-10-21/hour=00/again.jsonl")
    open_file = tmp_path / "raw/pod-a/date=2025-10-22/hour=23/.usage-a-99.jsonl.open"
    open_file.write_bytes(b'{"half')
    return tmp_path / "raw"


def run(spark: SparkSession, raw: Path, **more: object) -> tuple[int, list[str]]:
    printed: list[str] = []
    settings = CompactSettings(str(raw), str(raw.parent / "store"), **more)  # type: ignore[arg-type]
    return compact(spark, settings, printed.append, now_ms=NOW_MS), printed


def report(
    spark: SparkSession, name: str, source: Path, out: Path, options: dict[str, Any], *, grain_s: int = 60, **more: Any
) -> str:
    return make(spark, name, Asked(str(source), str(out), grain_s, options, quiet=True, now_ms=NOW_MS, **more))


def files(raw: Path) -> dict[str, int]:
    store = raw.parent / "store"
    return {str(p.relative_to(store)): p.stat().st_mtime_ns for p in sorted(store.glob("records/**/*.parquet"))}


def ids(raw: Path) -> list[tuple[str, int]]:
    query = f"SELECT instance, sequence FROM '{raw.parent}/store/records/*/*/*.parquet' ORDER BY ALL"
    return duckdb.connect().execute(query).fetchall()


EVERY = sorted((sidecar, number) for sidecar in "ab" for number in range(1, 13))


def test_each_record_once_by_day_and_cluster_sorted_by_client(spark: SparkSession, raw: Path) -> None:
    written, printed = run(spark, raw)
    assert written == 3
    assert re.fullmatch(
        r"2025-10-21: 5 files of [\d.]+ kB to 2 files of [\d.]+ kB, 8 records, 1 row set aside", printed[1]
    ), printed
    assert ids(raw) == EVERY
    assert sorted({name.rsplit("/", 1)[0] for name in files(raw)}) == [
        f"records/date={day}/cluster={cluster}" for day in DAYS for cluster in ("east", "west")
    ]
    (one,) = (raw.parent / "store").glob(f"records/date={DAYS[0]}/cluster=east/*.parquet")
    query = f"SELECT client_id, sequence FROM '{one}'"
    assert duckdb.connect().execute(query).fetchall() == [("y", 2), ("y", 4), ("z", 1), ("z", 3)]
    facts = duckdb.connect().execute(f"SELECT DISTINCT compression FROM parquet_metadata('{one}')").fetchall()
    assert facts == [("ZSTD",)]
    # Again: nothing is done, and nothing changes. A file that comes late is merged, and only its day is written.
    before = files(raw)
    assert run(spark, raw) == (0, [])
    assert files(raw) == before
    write(raw, [record(99, 100, instance="a", cluster_id="east")], f"pod-a/date={DAYS[0]}/hour=00/late.jsonl")
    written, printed = run(spark, raw, delete_input=True)
    assert (written, printed[0][:13]) == (1, f"{DAYS[0]}: 5")
    assert ids(raw) == sorted([*EVERY, ("a", 99)])
    after = files(raw)
    assert {one for one in after.items() if DAYS[0] not in one[0]} == {
        one for one in before.items() if DAYS[0] not in one[0]
    }
    # What was taken over is gone, what is being written is not; what comes later is merged with what was taken over.
    assert sorted(p.name for p in raw.glob(f"*/date={DAYS[0]}/**/*.jsonl")) == []
    assert len(list(raw.glob("**/.usage*.open"))) == 1
    # So are the directories that have nothing else in them, up to the day's.
    assert not list(raw.glob(f"*/date={DAYS[0]}"))
    assert len(list(raw.glob("pod-*"))) == 2
    write(raw, [record(100, 100, instance="a", cluster_id="east")], f"pod-a/date={DAYS[0]}/hour=00/later.jsonl")
    assert run(spark, raw)[0] == 1
    assert ids(raw) == sorted([*EVERY, ("a", 99), ("a", 100)])


@not_before_4
def test_input_that_gave_no_record_is_kept(spark: SparkSession, raw: Path) -> None:
    """Cut short, without a record, empty; the other files of its day and the other days are compacted."""
    day = raw / f"pod-a/date={DAYS[0]}/hour=00"
    (day / "cut 1.jsonl.gz").write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    (day / "foreign.jsonl").write_bytes(b"{}\n")
    (day / "empty.jsonl").touch()
    written, printed = run(spark, raw, delete_input=True)
    assert written == 3
    aside = f"1 row set aside, set aside entirely: 1 file, {UNREADABLE}: cut 1.jsonl.gz"
    assert printed[0].endswith(aside)
    assert ids(raw) == EVERY
    kept = {path.name for path in raw.rglob("*.*") if path.is_file()}
    assert kept == {"cut 1.jsonl.gz", "foreign.jsonl", "empty.jsonl", ".usage-a-99.jsonl.open"}
    assert run(spark, raw, delete_input=True) == (0, [])


def test_late_files_count_whatever_their_size(spark: SparkSession, tmp_path: Path) -> None:
    """Each as large as the one before, which was deleted; the rows that were set aside of all of them are kept."""
    for number in (1, 2):
        rows = [record(number, 0), f"no record {number}\n".encode()]
        write(tmp_path / "raw", rows, f"date={DAYS[0]}/{number} %41.jsonl")
        assert run(spark, tmp_path / "raw", delete_input=True)[0] == 1
    assert ids(tmp_path / "raw") == [("i1", 1), ("i1", 2)]
    aside = sorted(row["raw"] for row in json_lines(tmp_path / "store/set-aside"))  # names of files are random
    assert aside == ["no record 1", "no record 2"]
    with pytest.raises(WrongUseError, match="got a store, expected the records that sidecars wrote"):
        compact(spark, CompactSettings(str(tmp_path / "store"), str(tmp_path / "other"), delete_input=True))
    parquet = tmp_path / f"raw/date={DAYS[0]}/3.parquet"
    parquet.parent.mkdir()
    parquet.write_bytes(next((tmp_path / "store/records").rglob("*.parquet")).read_bytes())
    with pytest.raises(WrongUseError, match=r"3\.parquet: got Parquet, expected JSON lines"):
        run(spark, tmp_path / "raw", delete_input=True)
    assert parquet.exists()


@pytest.mark.parametrize("step", ["place_files", "commit", "tidy", "files moved"])
def test_aborted_compaction_loses_and_repeats_nothing(
    step: str, spark: SparkSession, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off on the first day, before or within each step; then again on a later generation, inputs deleted."""
    function = "place_files" if step == "files moved" else step
    for generation in (0, 1):
        method = getattr(Store, function)

        def broken(store: Store, *arguments: Any, method: Any = method, generation: int = generation) -> Any:
            if step == "files moved":
                method(store, *arguments)
            if step == "tidy" and arguments[1] == generation:
                return method(store, *arguments)
            raise KeyboardInterrupt

        only = Days(last=date(2025, 10, 20))
        with monkeypatch.context() as patched:
            patched.setattr(Store, function, broken)
            with pytest.raises(KeyboardInterrupt):
                run(spark, raw, days=only, delete_input=True)
        run(spark, raw, days=only, delete_input=True)
        extra = [("a", 200 + n) for n in range(generation)]
        assert ids(raw) == sorted([*(one for one in EVERY if one[1] <= 4), *extra])
        late = record(200 + generation, 50, instance="a", cluster_id="east")
        write(raw, [late], f"pod-a/date={DAYS[0]}/hour=00/late-{generation}.jsonl")
    assert not (raw.parent / "store/_compacted/lock").exists()


def test_reports_read_only_the_requested_days(spark: SparkSession, raw: Path, tmp_path: Path) -> None:
    run(spark, raw)
    days = Days(date(2025, 10, 21), date(2025, 10, 21))
    results = {}
    for name, source in (("store", tmp_path / "store"), ("raw", raw)):
        with watched(spark) as seen:  # a report that takes no rollups
            printed = report(spark, "capacity", source, tmp_path / name, {"capacity": {}}, days=days)
        assert "Used: 8 records of 2 instances" in printed
        results[name] = table(tmp_path / name / "capacity", "clusters")
        if name == "store":
            scans = [plan for plan in seen if str(tmp_path / "store/records") in plan]
            assert scans
            for plan in scans:
                (first, last) = re.findall(
                    r"PartitionFilters: \[.*?\(date#\d+ ([<>]= [\d-]+)\), \(date#\d+ ([<>]= [\d-]+)\)", plan
                )[0]
                assert {first, last} == {">= 2025-10-21", "<= 2025-10-21"}, plan
        else:
            assert not any("date=2025-10-20" in plan for plan in seen)
    assert results["store"] == results["raw"]
    with pytest.raises(WrongUseError, match="no files of these days"):
        report(spark, "usage", raw, tmp_path / "no", {}, days=Days(date(2026, 1, 1)))


def test_reports_take_rollups_where_they_suffice(spark: SparkSession, raw: Path, tmp_path: Path) -> None:
    """Of minutes, hours and days; also of days that were written again. What they say is what the records say."""
    run(spark, raw)
    of = {"instance": "a", "cluster_id": "east", "client_id": "y", "requests": 5, "client_library": "librdkafka"}
    held = {"produce_bytes": 4000, "throttle_produce_count": 2, "throttle_produce_seconds": 30.0}
    write(raw, [record(13, 86_400 + 40, **of, **held)], "pod-a/date=2025-10-21/hour=00/late.jsonl")
    assert run(spark, raw)[0] == 1
    options: dict[str, dict[str, Any]] = {"usage": {}, "slo": {"target": 0.99}, "forecast": {"horizon_days": 7}}
    store = raw.parent / "store"

    def figures(name: str, out: str, **more: Any) -> tuple[dict[str, list[str]], str, list[str]]:
        """The rows of all tables, what is printed, and which directories of the store were read."""
        with watched(spark) as seen:
            printed = report(spark, name, store, tmp_path / out, options[name], **more)
        tables = [path.stem for path in (tmp_path / out / name).glob("*.csv")]
        assert len(tables) > 2
        read = re.findall(r"Location: \w+ ?\[([^\]]*)\]", "\n".join(seen))
        places = {one.strip() for part in read for one in part.split(",") if "/store/" in one}
        found = {one: sorted(map(str, table(tmp_path / out / name, one))) for one in tables}
        return found, printed.rsplit("\n", 1)[0], sorted(places)

    rolled = {name: figures(name, "rolled") for name in options}
    for name, (_, _, read) in rolled.items():
        assert any("/store/rollups/" in one for one in read), name
        # Of limits in force at the end, records of the last hour.
        assert any("/store/records" in one for one in read) == (name == "forecast"), read
    assert "'time_delayed_seconds': '10.0'" in rolled["slo"][0]["clients"][0]
    day = Days(date(2025, 10, 21), date(2025, 10, 21))
    _, printed, read = figures("slo", "one-day", days=day)
    assert "Used: 9 records of 2 instances" in printed
    assert read
    assert all("/date=2025-10-21/" in one for one in read)
    # A grain that minutes do not make up is taken from records.
    report(spark, "usage", store, tmp_path / "fine", {}, grain_s=10)
    assert len(table(tmp_path / "fine/usage", "clients")) == 4
    # And so is all of a store that an earlier version made.
    for state in (store / "_compacted").glob("*.json"):
        values = json.loads(state.read_text())
        del values["rollups"]
        write_text(spark, str(state), json.dumps(values))  # with its checksum next to it
    for name, (tables, printed, _) in rolled.items():
        of_records = figures(name, "of-records")
        assert (tables, printed) == of_records[:2]
        assert not any("/rollups/" in one for one in of_records[2])


def test_only_days_that_are_over_and_only_as_many_as_are_kept(spark: SparkSession, raw: Path) -> None:
    assert run(spark, raw, settle_h=4)[0] == 2  # the third day ended three hours ago
    written, printed = run(spark, raw, keep_days=2)
    assert (written, printed[-1]) == (1, "2025-10-20: deleted, older than 2 days")
    assert ids(raw) == [one for one in EVERY if one[1] > 4]
    assert run(spark, raw, keep_days=2) == (0, [])


def test_compacts_one_at_a_time(spark: SparkSession, raw: Path) -> None:
    lock = raw.parent / "store/_compacted/lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("on elsewhere\n")
    with pytest.raises(ReportError, match=r"another compaction is running \(on elsewhere, last seen \d+ s ago\)"):
        run(spark, raw)
    with pytest.raises(ReportError, match="store: this store has no records yet"):
        make(spark, "usage", Asked(str(raw.parent / "store"), str(raw.parent / "out"), 60, {}, quiet=True))
    long_ago = lock.stat().st_mtime - STALE_S - 10
    os.utime(lock, (long_ago, long_ago))
    assert run(spark, raw, days=Days(last=date(2025, 10, 20)))[0] == 1
    state = next(lock.parent.glob("*.json"))
    assert json.loads(state.read_text())["records"] == 8
