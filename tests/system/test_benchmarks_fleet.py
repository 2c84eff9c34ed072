"""The benchmark of the reports: what it counts, and what its tables say."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from benchmarks.report.analysis import BEGIN, END, markdown
from benchmarks.suites.analysis import DOCUMENT, files, link, main, measured
from benchmarks.suites.analysis_month import fill, write_day
from benchmarks.suites.analysis_queries import differences
from quota.record import problems

if TYPE_CHECKING:
    from pathlib import Path


def test_memory_and_cpu_time_of_what_a_command_starts_are_counted() -> None:
    inner = "import time; held = bytearray(60_000_000); sum(range(10_000_000)); time.sleep(1)"
    outer = (
        "import os, subprocess, sys, time\n"
        f"inner = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
        "os.waitid(os.P_PID, inner.pid, os.WEXITED | os.WNOWAIT)\n"  # it has ended and is still there
        "time.sleep(1)\n"
    )
    told = measured([sys.executable, "-c", outer])
    assert told["seconds"] >= 2
    assert told["peak_bytes"] > 60_000_000
    assert told["cpu_s"] > 0.05


def test_a_failure_says_what_was_said() -> None:
    with pytest.raises(RuntimeError, match="ended with 3: it is broken"):
        measured([sys.executable, "-c", "import sys; print('it is broken'); sys.exit(3)"])


def test_sizes_are_files_part_by_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("00", "01"):
        (tmp_path / part).mkdir()
        for number in (1, 0):
            (tmp_path / part / f"part-0000{number}-x.parquet").write_bytes(b"")
    assert [file.parent.name + file.name[9] for file in files(tmp_path, 3)] == ["000", "001", "010"]
    assert len(list(link(files(tmp_path, 3), tmp_path / "in").iterdir())) == 3
    (tmp_path / "_fleet.txt").write_text("Fleet()")
    assert main(["--fleet", str(tmp_path), "--sizes", "5", "--output", str(tmp_path)]) == 2
    assert "has 4 files, expected at least 5" in capsys.readouterr().err


def test_results_that_differ_are_told() -> None:
    assert list(differences([["a", 1, 0.1 + 0.2]], [["a", 1, 0.3]])) == []
    assert list(differences([["a", 1, 0.3001]], [["a", 1, 0.3]])) == ["['a', 1, 0.3001] is not ['a', 1, 0.3]"]
    assert list(differences([], [["a"]])) == ["0 rows, 1 rows"]


def test_the_tables() -> None:
    def run(rows: int, seconds: float, cpu_s: float) -> dict[str, object]:
        told = {"job": "usage", "rows": rows, "seconds": seconds, "cpu_s": cpu_s, "peak_bytes": 1_500_000_000}
        return told | {"shuffled_bytes": rows * 100, "spilled_bytes": 0, "read_bytes": 2_500_000_000, "others_cpu_s": 3}

    def engine(seconds: float) -> dict[str, object]:
        whole = {"seconds": seconds + 1, "cpu_s": seconds, "peak_bytes": 500_000_000}
        return {"whole": whole, "queries": {"usage": {"seconds": seconds, "cpu_s": 9.0, "rows": 7}}}

    text = markdown(
        {
            "started": "2026-01-02T03:04:05+00:00",
            "machine": {"cpu_model": "X", "cores": 2, "memory_gib": 8, "load_1min": 0.5},
            "memory": "4g",
            "fleet": "Fleet()",
            "runs": [run(1_000_000, 20, 40), run(4_000_000, 40, 80)],
            "queries": [{"rows": 4_000_000, "spark": engine(10), "duckdb": engine(2)}],
            "errors": ["python -m it ended with 1: Traceback:\n  File\nIOError: no space\n", "4 files: 1 is not 2"],
        }
    )
    assert text.endswith("- python -m it ended with 1: Traceback: … IOError: no space\n- 4 files: 1 is not 2\n")
    assert "| usage | 4.0 M | 40 s | 80 s | 20.0 s | 2.5 GB | 400 MB | 0 MB | 1.5 GB | 4.0x | 2.0x | 3 s |" in text
    # Each of 996 million further rows at 40 s / 3 million of them, beyond the 80 s: 13 360 s.
    assert "| usage | 13.3 µs | 223 min | 100.0 GB | 0.0 GB | 7 min |" in text
    assert "| usage | 4.0 M | 7 | 10.0 s | 2.0 s | 9.0 s | 5.0x |" in text
    page = DOCUMENT.read_text()
    assert page.index(BEGIN) < page.index(END)


@pytest.mark.parametrize("interval_s", [10, 300])
def test_the_files_of_a_day_are_those_of_the_exporter(tmp_path: Path, interval_s: int) -> None:
    """One in five minutes, by its hour; whole records, in order; and the same names and about the same sizes empty."""
    written = write_day(tmp_path / "full", 1, 1, interval_s)
    found = sorted((tmp_path / "full").rglob("*.jsonl"))
    assert written.files == len(found) == 288
    assert written.bytes == sum(path.stat().st_size for path in found)
    for path in found:
        with path.open() as file:
            first = json.loads(file.readline())
        assert problems(first) == []
        middle = datetime.fromtimestamp((first["start_ms"] + first["end_ms"]) / 2000, UTC)
        assert path.parent.parent.name == f"date={middle:%Y-%m-%d}" == "date=2025-10-21"
        assert path.parent.name == f"hour={middle:%H}"
        assert path.name == f"usage-{first['instance']}-{first['sequence']:012d}.jsonl"
    columns = "columns = {instance: 'VARCHAR', sequence: 'BIGINT'}, format = 'newline_delimited'"
    rows = f"read_json('{tmp_path}/full/**/*.jsonl', {columns})"
    query = f"SELECT list(sequence ORDER BY sequence) FROM {rows} GROUP BY instance"
    numbers = [one for (one,) in duckdb.connect().execute(query).fetchall()]
    assert sum(map(len, numbers)) == written.records
    assert all(one == list(range(one[0], one[0] + len(one))) for one in numbers)
    empty = write_day(tmp_path / "empty", 1, 1, interval_s, empty=True)
    assert [path.name for path in sorted((tmp_path / "empty").rglob("*.jsonl"))] == [path.name for path in found]
    assert empty.bytes == pytest.approx(written.bytes, rel=0.01)


def test_days_that_a_store_is_filled_up_with_are_the_last_one_of_more_sidecars_later(tmp_path: Path) -> None:
    store, connection = tmp_path / "store", duckdb.connect()
    write_day(tmp_path / "usage", 0, 2, 3600)
    connection.execute(f"CREATE TABLE r AS FROM read_json('{tmp_path}/usage/*/*/*/*.jsonl', union_by_name = true)")
    makes = {
        "records/date=2025-10-20/cluster=east": "FROM r",
        "rollups/hour/date=2025-10-20/cluster=east": """SELECT cluster_id, "user", client_id,
            start_ms // 1000 AS bucket,
            CAST(SUM(produce_bytes) AS BIGINT) AS produce_bytes, COUNT(*) AS records FROM r GROUP BY ALL""",
        "rollups/words/date=2025-10-20": """SELECT instance, sequence // 64 AS word, COUNT(*) AS records,
            MIN(sequence) AS first, MIN(start_ms) AS first_ms, MIN(pod) AS pod_min FROM r GROUP BY ALL""",
    }
    for place, query in makes.items():
        (store / place).mkdir(parents=True)
        connection.execute(f"COPY ({query}) TO '{store}/{place}/g000001-a.parquet' (FORMAT parquet)")
    (store / "_compacted").mkdir()
    state = {"date": "2025-10-20", "generation": 1, "records": 7}
    (store / "_compacted/date=2025-10-20.g000001.json").write_text(json.dumps(state))
    fill(store, 1, 2, 3)
    fill(store, 1, 4, 3)

    def of(what: str, place: str, day: int) -> tuple[Any, ...]:
        found = connection.execute(f"SELECT {what} FROM '{store}/{place}/date=2025-10-{day}/**/*.parquet'").fetchone()
        assert found is not None
        return found

    assert [path.name[5:15] for path in sorted((store / "_compacted").iterdir())] == [
        f"2025-10-{day}" for day in range(20, 24)
    ]
    rows, instances, begin, moved_bytes = of(
        "COUNT(*), COUNT(DISTINCT instance), MIN(start_ms), SUM(produce_bytes)", "records", 20
    )
    for day in (21, 23):
        later_ms = (day - 20) * 86_400_000
        what = "COUNT(*), COUNT(DISTINCT (instance, sequence)), COUNT(DISTINCT instance), MIN(start_ms)"
        assert of(what, "records", day) == (3 * rows, 3 * rows, 3 * instances, begin + later_ms)
        assert of("SUM(records), SUM(produce_bytes), MIN(bucket)", "rollups/hour", day) == (
            3 * rows,
            3 * moved_bytes,
            (begin + later_ms) // 1000,
        )
        what = "SUM(records), BOOL_AND(word = first // 64), COUNT(DISTINCT instance), MIN(first_ms)"
        assert of(what, "rollups/words", day) == (3 * rows, True, 3 * instances, begin + later_ms)
    ids = f"SELECT COUNT(*), COUNT(DISTINCT (instance, sequence)) FROM '{store}/records/*/*/*.parquet'"
    assert connection.execute(ids).fetchall() == [(10 * rows, 10 * rows)]
