"""A store whose records are an Iceberg table: late and repeated records are merged as they are in files, and reports
have the same tables. The first run downloads the jar (47 MB) from Maven Central into the cache of Spark's packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from analysis.compact import CompactSettings, compact
from analysis.errors import ReportError
from analysis.runner import Asked, make
from analysis.store import EXTENSION, package, session_conf
from tests.support.iceberg_steps import DAYS, NOW_MS, OPTIONS, REPORT
from tests.support.spark_tools import record, table, write

pytestmark = [pytest.mark.long, pytest.mark.packages]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 280


def inputs(folder: Path) -> tuple[list[list[Any]], list[list[Any]]]:
    """`raw`: two clusters, one of them without a name, two days. `late`: late records of the first."""
    rows: dict[str, list[list[Any]]] = {"raw": [], "late": []}
    for instance, cluster in (("a", "east"), ("b", "")):
        of: dict[str, Any] = {"instance": instance, "cluster_id": cluster or None, "produce_bytes": 1000, "requests": 3}
        for day, name in enumerate(DAYS):
            numbers = range(4 * day + 1, 4 * day + 5)
            made = [record(n, day * 2 * 86_400 + n * 600, client_id=f"c{n % 2}", **of) for n in numbers]
            write(folder / "raw", made, f"pod-{instance}/date={name}/hour=00/a.jsonl")
            write(folder / "raw", [*made[:1], b"no record\n"], f"pod-{instance}/date={name}/hour=00/again.jsonl")
            rows["raw"] += [[name, cluster, instance, n] for n in numbers]
        late = [
            record(n, n * 60, client_id="c1", throttle_produce_count=1, throttle_produce_seconds=4.0, **of)
            for n in (101, 102)
        ]
        repeated = [record(n, n * 600, client_id=f"c{n % 2}", **of) for n in (1, 2)]
        write(folder / "late", [*late, *repeated, late[0]], f"pod-{instance}/date={DAYS[0]}/hour=01/late.jsonl")
        rows["late"] += [[DAYS[0], cluster, instance, n] for n in (101, 102)]
    return sorted(rows["raw"]), sorted(rows["late"])


def rolled(place: Path) -> list[Any]:
    """All rollups below a directory, in order."""
    return duckdb.connect().execute(f"SELECT * FROM '{place}/*/*/*.parquet' ORDER BY ALL").fetchall()


def test_iceberg_merges_late_and_repeated_records(spark: SparkSession, tmp_path: Path) -> None:
    raw, late = inputs(tmp_path)
    command = [sys.executable, "-m", "tests.support.iceberg_steps", str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        # Meanwhile a store of files, of the same records.
        for source in ("raw", "late"):
            settings = CompactSettings(str(tmp_path / source), str(tmp_path / "files"))
            compact(spark, settings, lambda _: None, now_ms=NOW_MS)
        of_files = str(tmp_path / "of-files")
        make(spark, REPORT, Asked(str(tmp_path / "files"), of_files, 60, OPTIONS, quiet=True, now_ms=NOW_MS))
        out, told_errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told_errors[-5000:]
    assert f"{DAYS[0]}: 4 files of " in out
    assert "8 records, 2 rows set aside" in out
    assert "nothing new" in out  # of the same once more
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert steps["wrong"] == 2
    assert f"--format files: {tmp_path / 'table'} is a store of format iceberg" in told_errors
    assert steps["made"] == {"records": raw, "files": 4, "commits": ["append"] * 2}
    (printed,) = steps["printed"]
    assert printed.startswith(f"{DAYS[0]}: 2 files of ")
    assert printed.endswith(", 12 records")
    # One commit for the day, with what was not there yet; no file was rewritten.
    assert steps["merged"] == {"records": sorted(raw + late), "files": 6, "commits": ["append"] * 3}
    assert {**steps["again"], "commits": []} == {**steps["merged"], "commits": []}  # its commits add nothing
    assert steps["tidied"]["commits"][-4:] == ["append"] * 3 + ["replace"]
    assert (len(steps["tidied"]["records"]), steps["tidied"]["files"]) == (20 + 3, 5)  # of `east` one, of "" still two
    assert steps["last day"] == 8
    (plan,) = steps["plans"]
    assert f"date >= '{DAYS[1]}'" in plan
    assert steps["kept"]["records"] == [one for one in raw if one[0] == DAYS[1]]
    tables = sorted(path.stem for path in (tmp_path / "of-files" / REPORT).glob("*.csv"))
    assert len(tables) > 1
    for one in tables:
        rows = [table(tmp_path / which / REPORT, one) for which in ("of-files", "of-table")]
        assert sorted(map(str, rows[0])) == sorted(map(str, rows[1])), one
    # And the same rollups, from which other reports are made.
    for one in ("minute", "hour", "day"):
        sums = [rolled(tmp_path / place / one) for place in ("files/rollups", "rollups-of-table")]
        assert len(sums[0]) >= 8
        assert sums[0] == sums[1]
    # This Spark has no Iceberg, and says how to get it.
    with pytest.raises(ReportError, match=f"add --format iceberg, .* --packages {package()}"):
        make(spark, "usage", Asked(str(tmp_path / "table"), str(tmp_path / "no"), 60, {}, quiet=True, now_ms=NOW_MS))


def test_iceberg_session_has_its_packages(tmp_path: Path) -> None:
    assert session_conf({}, [str(tmp_path), "s3a://bucket/store"], None) == {}
    wanted = {"spark.jars.packages": package(), "spark.sql.extensions": EXTENSION}
    assert session_conf({}, ["s3a://bucket/store"], "iceberg") == wanted
    hint = tmp_path / "a b/records/metadata/version-hint.text"
    hint.parent.mkdir(parents=True)
    hint.write_text("1")
    for place in (str(tmp_path / "a b"), f"{(tmp_path / 'a b').as_uri()}"):
        assert session_conf({}, [place], None) == wanted
    # What is there already is kept: other packages, or an Iceberg of another version.
    given = {"spark.jars.packages": "org:other:1", "spark.sql.extensions": "org.Other"}
    assert session_conf(given, [], "iceberg") == {name: f"{given[name]},{value}" for name, value in wanted.items()}
    newer = {"spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"}
    assert session_conf(newer, [], "iceberg")["spark.jars.packages"] == newer["spark.jars.packages"]
