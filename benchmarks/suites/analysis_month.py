"""A thousand sidecars for days on end: how long it takes to list, to compact and to report on what they write.

`python -m benchmarks.suites.analysis_month --work DIR` (docs/analysis.md has the outcome). Each day the
files of all sidecars are made as the exporter makes them: one in `rotate_s` per sidecar, by the names and in the
directories of :mod:`proxy.app.export.files`, with every field of a record. Then the day is compacted, the files that
were read are deleted, and reports are made of the store. Files of many days that only have the right names and sizes,
and no content, show what listing a month takes.

Compacting a month takes hours, so a longer store is filled up with copies of the last day that was compacted
(`--filled-days`): the same files, with the times, sequence numbers and directories of other days. Reports of one, seven
and thirty days of it tell what they read, and days that are compacted into it (`--days-after`) whether they take longer
than the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from analysis.columns import DAY_S, HOUR_S
from analysis.rollups import SUMMED
from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine
from benchmarks.suites.analysis import measured_with_log
from config.sections import Export
from quota.entity import Kind
from quota.record import to_line
from tests.lab.fleet import LIBRARIES, MAX_CLIENTS, START_MS
from tests.support.usage_rows import build

ROTATE_S = Export.model_fields["rotate_s"].default
REPORTS = ("usage", "slo", "capacity", "throttling")
"""Two that take rollups, and two that read the records."""
_MARK = 910_000_000
"""Numbers from here on are replaced by those of the interval."""
_SET = (
    *("sequence", "start_ms", "end_ms", "produce_bytes", "fetch_bytes", "request_seconds", "requests"),
    *("requests_produce", "requests_fetch", "produce_rate_p50", "produce_rate_p95", "produce_rate_p99"),
    *("produce_rate_max", "produce_group_utilisation_peak"),
)
"""Fields of which each interval has its own value, in the order of the record."""
_FRACTIONS = {name for name in _SET if name.startswith(("request_", "produce_rate", "produce_group"))}


@dataclass(frozen=True, slots=True)
class Written:
    """What the sidecars wrote in a day."""

    files: int
    bytes: int
    records: int
    seconds: float


def clients_of(sidecar: int, seed: int) -> list[str]:
    """Lines of this sidecar's clients, with places for the values of an interval.

    As many as in `tests.lab.fleet`: six on average.
    """
    dice = np.random.default_rng((seed, sidecar))
    app = int(300 * dice.random() ** 3)
    library = LIBRARIES[app % len(LIBRARIES)]
    number = min(1 + int(2 / max(1 - dice.random(), 1e-9) ** 0.7), MAX_CLIENTS)
    return [_line(sidecar, app, slot, library[1:], limited=dice.random() < 0.5) for slot in range(number)]


def _line(sidecar: int, app: int, slot: int, library: Sequence[str], *, limited: bool) -> str:
    client = f"app-{app:03}-writer-{slot}"
    marks = {name: _MARK + place + (0.5 if name in _FRACTIONS else 0) for place, name in enumerate(_SET)}
    marks["requests"] = marks["requests_produce"] = 0
    row = {
        **marks,
        "instance": f"{sidecar:08x}",
        "duration_s": 1.0,
        "samples": 1,
        "cluster_id": "east" if app % 3 == 0 else "west",
        "namespace": f"team-{app % 40}",
        "pod": f"app-{app:03}-{sidecar}",
        "kquota_version": "0.2.0",
        "user": f"app-{app:03}",
        "client_id": client,
        "client_library": library[0],
        "client_library_version": library[1],
        "connections_peak": slot % 3 + 1,
        "requests_fetch": 0,
    }
    if limited:
        kind = Kind.PRODUCE.value
        row |= {f"{kind}_limit": 4e6, f"{kind}_limit_mode": "enforce", f"{kind}_limit_level": "client-id"}
        row |= {f"{kind}_group_client_id": client}
    else:
        del row["produce_group_utilisation_peak"]
    text = to_line(build(row)).decode().replace("%", "%%")
    for name in _SET:
        if name in row:
            mark = f'"{name}":{json.dumps(row[name])}'
            assert text.count(mark) == 1, name
            text = text.replace(mark, f'"{name}":%({name}){".3f" if name in _FRACTIONS else "d"}')
    shared = '"duration_s":1.0,"samples":1'
    assert text.count(shared) == 1
    return text.replace(shared, '"duration_s":%(duration_s).1f,"samples":%(samples)d')


def write_day(place: Path, day: int, sidecars: int, interval_s: int, *, seed: int = 1, empty: bool = False) -> Written:
    """The files of a day (`empty`: of the right size, but without content, which takes no room on the disk)."""
    began = time.monotonic()
    date = (datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=day)).date()
    files = total = records = 0
    for sidecar in range(sidecars):
        directory = place / f"pod-{sidecar:04}" / f"date={date}"
        for hour in range(24):
            (directory / f"hour={hour:02}").mkdir(parents=True)
        for name, data, number in _files_of(sidecar, day, interval_s, seed, empty=empty):
            with (directory / name).open("wb") as file:
                file.write(data) if isinstance(data, bytes) else file.truncate(data)
            files, records = files + 1, records + number
            total += len(data) if isinstance(data, bytes) else data
    return Written(files, total, records, round(time.monotonic() - began, 1))


def _written(work: Path, day: int, sidecars: int, interval_s: int) -> Written:
    """The day's files below `work`, which may have been made by an earlier run that was ended."""
    note = work / f"written-{day}.json"
    if not note.exists():
        written = write_day(work / "usage", day, sidecars, interval_s)
        note.write_text(json.dumps(asdict(written)))
    return Written(**json.loads(note.read_text()))


def _files_of(
    sidecar: int, day: int, interval_s: int, seed: int, *, empty: bool
) -> Iterator[tuple[str, bytes | int, int]]:
    """(name, content or its size, records) of a sidecar's files of a day."""
    lines = clients_of(sidecar, seed)
    each = max(ROTATE_S // interval_s, 1)
    intervals = DAY_S // interval_s
    dice = np.random.default_rng((seed, sidecar, day))
    hours = np.arange(intervals) * interval_s / HOUR_S
    daily = 1 + 0.6 * np.sin((hours - 8) * (2 * np.pi / 24))
    base = 5e4 * np.exp(1.6 * np.random.default_rng((seed, sidecar)).standard_normal(len(lines)))
    rates = np.minimum(base * daily[:, None] * np.exp(0.3 * dice.standard_normal((intervals, len(lines)))), 4e6)
    used = (rates * interval_s).astype(np.int64).tolist()
    size = 0
    for first in range(0, intervals, each):
        sequence = (day * intervals + first) * len(lines) + 1
        name = f"hour={first * interval_s // HOUR_S:02}/usage-{sidecar:08x}-{sequence:012d}.jsonl"
        if empty and size:
            yield name, size, each * len(lines)
            continue
        text = "".join(
            line % _values(day, interval_s, at, sequence + (at - first) * len(lines) + slot, used[at][slot])
            for at in range(first, first + each)
            for slot, line in enumerate(lines)
        ).encode()
        size = len(text)
        yield name, size if empty else text, each * len(lines)


def _values(day: int, interval_s: int, at: int, sequence: int, used: int) -> dict[str, float]:
    start_ms = START_MS + (day * DAY_S + at * interval_s) * 1000
    requests, rate = used // 60_000 + 1, used / interval_s
    return {
        "sequence": sequence,
        "start_ms": start_ms,
        "end_ms": start_ms + interval_s * 1000,
        "duration_s": interval_s,
        "samples": interval_s,
        "produce_bytes": used,
        "fetch_bytes": 0,
        "request_seconds": requests * 0.001,
        "requests": requests,
        "requests_produce": requests,
        "requests_fetch": 0,
        "produce_rate_p50": rate * 0.9,
        "produce_rate_p95": rate * 1.4,
        "produce_rate_p99": rate * 1.6,
        "produce_rate_max": rate * 1.8,
        "produce_group_utilisation_peak": min(rate / 4e6, 1.0),
    }


def listed(place: str, memory: str) -> dict[str, Any]:
    """What `compact` does before it reads anything, in a Spark of its own: find the days, and have Spark list each."""
    from analysis.files import input_bytes, input_files
    from analysis.session import open_session
    from analysis.store import days_below

    spark = open_session(memory=memory)
    figures: dict[str, Any] = {}

    def timed(name: str, began: float) -> None:
        figures[f"{name}_s"] = round(time.monotonic() - began, 2)

    began = time.monotonic()
    found = days_below(spark, place)
    timed("find_days", began)
    figures["days"], figures["directories"] = len(found), sum(map(len, found.values()))
    began = time.monotonic()
    days = [spark.read.option("recursiveFileLookup", True).text(places) for places in found.values()]
    figures["files"], figures["bytes"] = sum(len(input_files(day)) for day in days), sum(map(input_bytes, days))
    timed("spark_lists", began)
    spark.stop()
    return figures


def store_listed(place: str, memory: str) -> dict[str, Any]:
    """What a report does to a store before it reads anything, in a Spark of its own: find the days, and have Spark list
    all files of records.
    """
    from analysis.session import open_session
    from analysis.store import Store

    spark = open_session(memory=memory)
    spark.range(1).count()  # the JVM's and Spark's own first steps
    began = time.monotonic()
    days = Store(spark, place).days()
    middle = time.monotonic()
    files = len(Store(spark, place).read().inputFiles())
    figures = {"days_s": round(middle - began, 2), "spark_lists_s": round(time.monotonic() - middle, 2)}
    spark.stop()
    return {"days": len(days), "files": files, **figures}


def fill(store: Path, compacted: int, days: int, copies: int) -> None:
    """Make a store of `compacted` days have `days` days: the last of those again, with other dates.

    `copies`: the new days have so many times its sidecars (with other instances and pods).
    """
    states = sorted(
        (json.loads(path.read_text()) for path in (store / "_compacted").glob("date=*.json")),
        key=lambda state: str(state["date"]),
    )
    last = states[compacted - 1]
    # Each instance's sequence goes on a whole number of words later, so that bits stay where they are.
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE counts AS SELECT instance, CAST(CEIL(COUNT(*) / 64.0) AS BIGINT) AS words "
        f"FROM read_parquet('{store}/records/date={last['date']}/*/*.parquet') GROUP BY 1"
    )
    for further in range(len(states) - compacted + 1, days - compacted + 1):
        day = str(date.fromisoformat(last["date"]) + timedelta(days=further))
        for file in sorted(store.glob(f"r*/**/date={last['date']}/**/*.parquet")):
            target = Path(str(file).replace(f"date={last['date']}", f"date={day}"))
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_of_day(connection, file, target, further, copies)
        state = {**last, "date": day, "records": last["records"] * copies}
        (store / "_compacted" / f"date={day}.g{last['generation']:06}.json").write_text(json.dumps(state))


def _copy_of_day(connection: duckdb.DuckDBPyConnection, file: Path, target: Path, further: int, copies: int) -> None:
    """A file of records, of sums, or of words of sequence numbers, so many days later."""
    types = {
        row[0]: row[1]
        for row in connection.execute(f"DESCRIBE FROM read_parquet('{file}', hive_partitioning = false)").fetchall()
    }
    of_clients = "instance" not in types
    moved_to = {
        **{name: f"{name} + {further * DAY_S * 1000}" for name in ("start_ms", "end_ms", "first_ms", "last_ms")},
        "bucket": f"bucket + {further * DAY_S}",
    }
    if of_clients:  # all copies together
        moved_to |= {name: f"CAST({name} * {copies} AS {types[name]})" for name in SUMMED if name in types}
        source, order = "one", 'cluster_id, "user", client_id, bucket'
    else:
        moved_to |= {name: f'one."{name}" + 64 * {further} * words' for name in ("sequence", "first", "last")}
        moved_to |= {"word": f"word + {further} * words"}
        moved_to |= {name: f"{name} || '-' || copy" for name in ("instance", "pod", "pod_min", "pod_max")}
        source = f"one JOIN counts USING (instance) CROSS JOIN range({copies}) AS copies(copy)"
        order = '"user", client_id, start_ms' if "sequence" in types else "instance, word"
    values = ", ".join(f'{moved_to[name]} AS "{name}"' if name in moved_to else f'"{name}"' for name in types)
    connection.execute(
        f"COPY (WITH one AS (FROM read_parquet('{file}', hive_partitioning = false)) "
        f"SELECT * FROM (SELECT {values} FROM {source}) ORDER BY {order}) "
        f"TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    )


def _report(name: str, *more: str, memory: str) -> dict[str, Any]:
    program = [sys.executable, "-m", "proxy.app.cli.main", "report", name, "--memory", memory, "--quiet"]
    with tempfile.TemporaryDirectory() as log:
        figures = measured_with_log([*program, *more], Path(log))
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in figures.items()}


def _inodes(place: Path) -> int:
    return os.statvfs(place).f_favail


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.analysis_month", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="a directory for all files; it may be large")
    parser.add_argument("--sidecars", type=int, default=1000, help="(1000)")
    parser.add_argument(
        "--interval", type=int, default=300, help="seconds per record (300; the exporter's default is 10)"
    )
    parser.add_argument("--days", type=int, default=3, help="days to be compacted one after the other (3)")
    parser.add_argument("--filled-days", default="", help="then make the store have so many days, such as 7,30")
    parser.add_argument(
        "--filled-copies", type=int, default=1, help="of so many times the sidecars, in the days that are filled in (1)"
    )
    parser.add_argument("--days-after", type=int, default=0, help="days to be compacted into the filled store (0)")
    parser.add_argument("--report-days", default="", help="the last so many days are reported on (1 and --days)")
    parser.add_argument("--listed-days", default="", help="days of empty files to be listed, such as 1,7,30")
    parser.add_argument("--reports", default=",".join(REPORTS), help=f"made of the store ({','.join(REPORTS)})")
    parser.add_argument("--memory", default="4g", help="of the JVM (4g)")
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--list", metavar="PLACE", help=argparse.SUPPRESS)
    parser.add_argument("--list-store", metavar="PLACE", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.list:
        print("result:" + json.dumps(listed(given.list, given.memory)))
        return 0
    if given.list_store:
        print("result:" + json.dumps(store_listed(given.list_store, given.memory)))
        return 0
    result: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "project": describe_project(),
        "memory": given.memory,
        "sidecars": given.sidecars,
        "interval_s": given.interval,
        "rotate_s": ROTATE_S,
        "free_inodes": _inodes(given.work.parent),
        "compacted": [],
        "stores": [],
        "reports": [],
        "listed": [],
    }

    def store() -> None:
        if given.json:
            given.json.write_text(stored.text(result))

    given.work.mkdir(parents=True, exist_ok=True)
    usage, target = given.work / "usage", given.work / "store"

    def compact(day: int) -> None:
        written = _written(given.work, day, given.sidecars, given.interval)
        of_day = {"day": day + 1, "written": asdict(written), "list": _listed_apart(usage, given.memory)}
        compacting = ("--input", str(usage), "--output", str(target))
        of_day["compact"] = _report("compact", *compacting, "--delete-input", memory=given.memory)
        of_day["again"] = _report("compact", *compacting, memory=given.memory)
        of_day["store"] = _size(target)
        result["compacted"].append(of_day)
        print(json.dumps(of_day), flush=True)
        store()

    for day in range(given.days):
        compact(day)
    if given.days:
        result["stores"].append({"listed": _listed_apart(target, given.memory, "--list-store"), **_size(target)})
    longest = given.days
    for goal in sorted(int(word) for word in given.filled_days.split(",") if word):
        began = time.monotonic()
        fill(target, given.days, goal, given.filled_copies)
        filled_s = round(time.monotonic() - began, 1)
        figures = {"filled_s": filled_s, "listed": _listed_apart(target, given.memory, "--list-store"), **_size(target)}
        result["stores"].append(figures)
        print(json.dumps(figures), flush=True)
        longest = max(longest, goal)
        store()
    first = datetime.fromtimestamp(START_MS / 1000, UTC).date()
    last = first + timedelta(days=longest - 1)
    for report in given.reports.split(",") if given.days else ():
        for days in map(int, given.report_days.split(",")) if given.report_days else (1, given.days):
            asked = ("--from", str(last - timedelta(days=days - 1)), "--to", str(last))
            places = ("--input", str(target), "--output", str(given.work / "out"))
            took = _report(report, *places, *asked, memory=given.memory)
            result["reports"].append({"report": report, "days": days, **took})
            print(json.dumps(result["reports"][-1]), flush=True)
            store()
    # A day is left out: the numbers of filled days are rounded up to whole words, and may reach into it.
    for day in range(given.days_after):
        compact(longest + 1 + day)
    there, place = 0, given.work / "listed"
    for goal in sorted(int(word) for word in given.listed_days.split(",") if word):
        began = time.monotonic()
        for day in range(there, goal):
            write_day(place, day, given.sidecars, given.interval, empty=True)
        there = goal
        made_s = round(time.monotonic() - began, 1)
        result["listed"].append({"made_s": made_s, **_listed_apart(place, given.memory)})
        print(json.dumps(result["listed"][-1]), flush=True)
        store()
    for directory in (usage, target, place, given.work / "out"):
        shutil.rmtree(directory, ignore_errors=True)
    for note in given.work.glob("written-*.json"):
        note.unlink()
    return 0


def _listed_apart(place: Path, memory: str, how: str = "--list") -> dict[str, Any]:
    program = [sys.executable, "-m", "benchmarks.suites.analysis_month", "--work", str(place), "--memory", memory]
    done = subprocess.run([*program, how, str(place)], stdout=subprocess.PIPE, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("result:")]
    found: dict[str, Any] = json.loads(line.removeprefix("result:"))
    return found


def _size(place: Path) -> dict[str, int]:
    files = [path for path in place.rglob("*.parquet") if path.is_file()]
    records = [path for path in files if "records" in path.relative_to(place).parts]
    return {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "record_files": len(records),
        "record_bytes": sum(path.stat().st_size for path in records),
    }


if __name__ == "__main__":
    sys.exit(main())
