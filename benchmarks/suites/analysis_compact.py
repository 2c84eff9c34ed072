"""Sidecars for days on end: how long it takes to compact what they write.

`python -m benchmarks.suites.analysis_compact --work DIR` (docs/analysis.md has the outcome). Each day the files of all
sidecars are made as the exporter makes them: one in `rotate_s` per sidecar, by the names and in the directories of
:mod:`proxy.app.export.files`, with every field of a record. Then the day is compacted, and the files that were read are
deleted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from analysis.columns import DAY_S, HOUR_S
from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine
from benchmarks.suites.analysis import measured
from config.sections import Export
from quota.record import to_line
from tests.lab.fleet import LIBRARIES, MAX_CLIENTS, START_MS
from tests.support.usage_rows import build

ROTATE_S = Export.model_fields["rotate_s"].default
SEED = 1


@dataclass(frozen=True, slots=True)
class Written:
    """What the sidecars wrote in a day."""

    files: int
    bytes: int
    records: int
    seconds: float


def clients_of(sidecar: int) -> list[dict[str, Any]]:
    """What is the same in all records of this sidecar's clients: as many as in `tests.lab.fleet`, six on average."""
    dice = np.random.default_rng((SEED, sidecar))
    app = int(300 * dice.random() ** 3)
    _, library, version = LIBRARIES[app % len(LIBRARIES)]
    number = min(1 + int(2 / max(1 - dice.random(), 1e-9) ** 0.7), MAX_CLIENTS)
    clients = []
    for slot in range(number):
        client: dict[str, Any] = {
            "instance": f"{sidecar:08x}",
            "cluster_id": "east" if app % 3 == 0 else "west",
            "namespace": f"team-{app % 40}",
            "pod": f"app-{app:03}-{sidecar}",
            "kquota_version": "0.2.0",
            "user": f"app-{app:03}",
            "client_id": f"app-{app:03}-writer-{slot}",
            "client_library": library,
            "client_library_version": version,
            "connections_peak": slot % 3 + 1,
        }
        if dice.random() < 0.5:
            client |= {"produce_limit": 4e6, "produce_limit_mode": "enforce", "produce_limit_level": "client-id"}
            client |= {"produce_group_client_id": client["client_id"]}
        clients.append(client)
    return clients


def write_day(place: Path, day: int, sidecars: int, interval_s: int) -> Written:
    """The files of a day."""
    began = time.monotonic()
    date = (datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=day)).date()
    files = total = records = 0
    for sidecar in range(sidecars):
        directory = place / f"pod-{sidecar:04}" / f"date={date}"
        for hour in range(24):
            (directory / f"hour={hour:02}").mkdir(parents=True)
        for name, data, number in _files_of(sidecar, day, interval_s):
            (directory / name).write_bytes(data)
            files, records, total = files + 1, records + number, total + len(data)
    return Written(files, total, records, round(time.monotonic() - began, 1))


def _files_of(sidecar: int, day: int, interval_s: int) -> Iterator[tuple[str, bytes, int]]:
    """(name, content, records) of a sidecar's files of a day."""
    clients = clients_of(sidecar)
    each = max(ROTATE_S // interval_s, 1)
    intervals = DAY_S // interval_s
    dice = np.random.default_rng((SEED, sidecar, day))
    hours = np.arange(intervals) * interval_s / HOUR_S
    daily = 1 + 0.6 * np.sin((hours - 8) * (2 * np.pi / 24))
    base = 5e4 * np.exp(1.6 * np.random.default_rng((SEED, sidecar)).standard_normal(len(clients)))
    rates = np.minimum(base * daily[:, None] * np.exp(0.3 * dice.standard_normal((intervals, len(clients)))), 4e6)
    used = (rates * interval_s).astype(np.int64).tolist()
    for first in range(0, intervals, each):
        sequence = (day * intervals + first) * len(clients) + 1
        name = f"hour={first * interval_s // HOUR_S:02}/usage-{sidecar:08x}-{sequence:012d}.jsonl"
        rows = [
            client | _values(client, day, interval_s, at, sequence + (at - first) * len(clients) + slot, used[at][slot])
            for at in range(first, first + each)
            for slot, client in enumerate(clients)
        ]
        yield name, b"".join(to_line(build(row)) for row in rows), len(rows)


def _values(
    client: dict[str, Any], day: int, interval_s: int, at: int, sequence: int, used: int
) -> dict[str, int | float]:
    start_ms = START_MS + (day * DAY_S + at * interval_s) * 1000
    requests, rate = used // 60_000 + 1, used / interval_s
    values: dict[str, int | float] = {
        "sequence": sequence,
        "start_ms": start_ms,
        "end_ms": start_ms + interval_s * 1000,
        "duration_s": float(interval_s),
        "samples": interval_s,
        "produce_bytes": used,
        "request_seconds": round(requests * 0.001, 3),
        "requests": requests,
        "requests_produce": requests,
        "produce_rate_p50": round(rate * 0.9, 3),
        "produce_rate_p95": round(rate * 1.4, 3),
        "produce_rate_p99": round(rate * 1.6, 3),
        "produce_rate_max": round(rate * 1.8, 3),
    }
    if "produce_limit" in client:
        values["produce_group_utilisation_peak"] = round(min(rate / 4e6, 1.0), 3)
    return values


def _compact(work: Path, *more: str, memory: str) -> dict[str, float]:
    program = [sys.executable, "-m", "proxy.app.cli.main", "report", "compact", "--memory", memory, "--quiet"]
    figures = measured([*program, "--input", str(work / "usage"), "--output", str(work / "store"), *more])
    return {name: round(value, 1) for name, value in figures.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.analysis_compact", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="a directory for all files; it may be large")
    parser.add_argument("--sidecars", type=int, default=60, help="(60)")
    parser.add_argument(
        "--interval", type=int, default=300, help="seconds per record (300; the exporter's default is 10)"
    )
    parser.add_argument("--days", type=int, default=3, help="days to be compacted one after the other (3)")
    parser.add_argument("--memory", default="4g", help="of the JVM (4g)")
    parser.add_argument("--json", type=Path, help="where the result goes")
    given = parser.parse_args(argv)
    compacted: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "project": describe_project(),
        "memory": given.memory,
        "sidecars": given.sidecars,
        "interval_s": given.interval,
        "rotate_s": ROTATE_S,
        "compacted": compacted,
    }
    for day in range(given.days):
        of_day: dict[str, Any] = {"day": day + 1}
        of_day["written"] = asdict(write_day(given.work / "usage", day, given.sidecars, given.interval))
        of_day["compact"] = _compact(given.work, "--delete-input", memory=given.memory)
        of_day["again"] = _compact(given.work, memory=given.memory)
        of_day["store"] = _size(given.work / "store")
        compacted.append(of_day)
        print(json.dumps(of_day), flush=True)
        if given.json:
            given.json.write_text(stored.text(result))
    for directory in ("usage", "store"):
        shutil.rmtree(given.work / directory)
    return 0


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
