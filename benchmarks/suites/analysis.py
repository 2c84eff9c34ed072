"""The reports on a generated fleet: time, CPU and memory, and DuckDB on the same files.

`python -m benchmarks.suites.analysis` (or `make bench-analysis`); docs/analysis.md has figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from analysis.intake import BASE
from benchmarks.report import stored
from benchmarks.report.analysis import markdown
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import MachineTime, cpu_s, describe_machine, peak_bytes
from benchmarks.rig.variants import PROJECT
from benchmarks.suites import analysis_queries as fleet_queries
from quota.record import FIELDS

RESULTS = PROJECT / "benchmarks" / "results"
JOBS = (
    "usage",
    "throttling",
    "chargeback",
    "recommend",
    "capacity",
    "noisy",
    "whatif",
    "compliance",
    "slo",
    "changes",
    "forecast",
    "anomalies",
)
LOOK_S = 0.25
PRICES = "currency: EUR\nprices: {produce_gb: 0.05, fetch_gb: 0.02, burst_gb: 0.05, idle_produce_mb_s_hour: 0.01}\n"
CANDIDATE = "quotas:\n- {user: <default>, client-id: <default>, producer_byte_rate: 4M}\n"


def files(fleet: Path, number: int) -> list[Path]:
    """The first `number` files of a fleet, one part after the other."""
    found = sorted(fleet.glob("[0-9]*/part-*.parquet"))
    if len(found) < number:
        raise ValueError(f"{fleet} has {len(found)} files, expected at least {number}")
    return found[:number]


def measured(command: Sequence[str]) -> dict[str, Any]:
    """Run a command: wall time, CPU time and peak memory of it and all that it starts. Raises RuntimeError if it fails.

    Memory is what the kernel kept as each process' highest (VmHWM), the JVM's and those of Python added up.
    """
    began = time.monotonic()
    cpu: dict[int, float] = {}
    peak: dict[int, int] = {}
    with tempfile.TemporaryFile() as said:
        before = MachineTime.now()
        process = subprocess.Popen(command, cwd=PROJECT, stdout=said, stderr=said)
        while process.poll() is None:
            for pid in _family(process.pid):
                try:
                    # One that has ended, and has not been waited for yet, has no memory any more.
                    cpu[pid], peak[pid] = cpu_s(pid), max(peak_bytes(pid), peak.get(pid, 0))
                except (ProcessLookupError, FileNotFoundError):
                    continue  # ended between two looks
            time.sleep(LOOK_S)
        seconds = time.monotonic() - began
        busy_s = MachineTime.now().busy_s - before.busy_s
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} ended with {process.returncode}: {text[-600:]}")
    mine_s = sum(cpu.values())
    return {
        "seconds": seconds,
        "cpu_s": mine_s,
        "peak_bytes": sum(peak.values()),
        "others_cpu_s": max(busy_s - mine_s, 0.0),  # of all other programs of the machine, meanwhile
    }


def _family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def copied(fleet: Path, copies: int, place: Path) -> Path:
    """A fleet of `copies` times as many sidecars: each file so often, with other instances and pods.

    It takes a quarter of the time that generating them takes. The traffic of a sidecar and of its copies is the same;
    copies have only the columns that a report reads.
    """
    place.mkdir(parents=True, exist_ok=True)
    (place / "_fleet.txt").write_text(f"{(fleet / '_fleet.txt').read_text().strip()}, {copies} times\n")
    parts = sorted(done.parent for done in fleet.glob("[0-9]*/_SUCCESS"))
    wanted = set(BASE).union(*(importlib.import_module(f"analysis.jobs.{job}").COLUMNS for job in JOBS))
    columns = [field.name for field in FIELDS if field.name in wanted]
    work = []
    for number in range(copies):
        for place_of_part, part in enumerate(parts):
            target = place / f"{number * len(parts) + place_of_part:02d}"
            target.mkdir(exist_ok=True)
            work += [(file, target / file.name, number) for file in sorted(part.glob("part-*.parquet"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: _copied(columns, *one), work))
    return place


def _copied(columns: list[str], file: Path, target: Path, number: int) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if target.exists():
        return
    if number == 0:
        target.hardlink_to(file)
        return
    rows = pq.read_table(file, columns=columns)
    for name in ("instance", "pod"):
        texts = pc.dictionary_encode(rows[name].combine_chunks())
        names = pc.binary_join_element_wise(texts.dictionary, str(number), "-")
        field = rows.schema.get_field_index(name)
        rows = rows.set_column(field, rows.schema.field(field), names.take(texts.indices))
    growing = target.with_name(f"_{target.name}")
    pq.write_table(rows, growing, compression="zstd", compression_level=1, row_group_size=len(rows))
    growing.rename(target)


def link(chosen: Sequence[Path], place: Path) -> Path:
    """A directory with just these files, by hard links."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for file in chosen:
        (place / f"{file.parent.name}-{file.name}").hardlink_to(file)
    return place


def rows_in(place: Path) -> int:
    """Rows, by the files' own account."""
    import duckdb

    query = f"SELECT sum(num_rows) FROM parquet_file_metadata('{place}/*.parquet')"
    return int(duckdb.connect().execute(query).fetchall()[0][0])


def run_job(name: str, source: Path, work: Path, memory: str) -> dict[str, Any]:
    """One report, as a person would start it."""
    (work / "prices.yaml").write_text(PRICES)
    (work / "candidate.yaml").write_text(CANDIDATE)
    more = {
        "chargeback": ["--prices", str(work / "prices.yaml")],
        "whatif": ["--candidate", str(work / "candidate.yaml")],
    }
    command = [
        sys.executable,
        "-m",
        "proxy.app.cli.main",
        "report",
        name,
        "--input",
        str(source),
        "--output",
        str(work / "out"),
    ]
    return measured([*command, "--memory", memory, "--quiet", *more.get(name, [])])


def compare(source: Path, work: Path, engines: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The same queries by these engines, each in a process of its own, and where their results differ."""
    figures: dict[str, Any] = {"differences": []}
    for engine in engines:
        output = work / f"{engine}.json"
        program = [sys.executable, "-m", "benchmarks.suites.analysis_queries"]
        whole = measured([*program, engine, str(source), str(output), ",".join(names)])
        figures[engine] = {"whole": whole, "queries": json.loads(output.read_text())}
    for name in names:
        results = [figures[engine]["queries"][name]["rows"] for engine in engines]
        for other in results[1:]:
            figures["differences"] += [f"{name}: {text}" for text in fleet_queries.differences(results[0], other)]
        for engine in engines:
            found = figures[engine]["queries"][name]
            figures[engine]["queries"][name] = found | {"rows": len(found["rows"])}
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, store, show. 0: done; 1: something failed or results differ; 2: wrong use."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.analysis", description=__doc__)
    parser.add_argument("--fleet", type=Path, required=True, help="what `python -m tests.lab.fleet --output` wrote")
    parser.add_argument(
        "--copies", type=int, default=1, help="first copy it to a fleet of so many times its sidecars, next to it (1)"
    )
    parser.add_argument("--sizes", default="1,4,16", help="files of the fleet that are read, a comma between (1,4,16)")
    parser.add_argument("--jobs", default=",".join(JOBS), help="which reports (all)")
    parser.add_argument(
        "--queries", default="", help="sizes at which DuckDB and Spark are compared (those of --sizes; 0: none)"
    )
    parser.add_argument("--engines", default=",".join(fleet_queries.ASKERS), help="which figures the queries (both)")
    parser.add_argument("--asked", default=",".join(fleet_queries.QUERIES), help="which queries (all)")
    parser.add_argument("--add", type=Path, help="an earlier result that this one goes on with, in place of a new one")
    parser.add_argument("--memory", default="4g", help="of the JVM (4g)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where <date>-analysis.json and .md go")
    options = parser.parse_args(argv)
    if options.copies > 1:
        options.fleet = copied(
            options.fleet, options.copies, options.fleet.with_name(f"{options.fleet.name}-{options.copies}")
        )
    result: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "project": describe_project(),
        "memory": options.memory,
        "fleet": (options.fleet / "_fleet.txt").read_text().strip(),
        "runs": [],
        "queries": [],
        "errors": [],
    }
    if options.add is not None:
        result = {**json.loads(options.add.read_text()), "project": describe_project()}
    work = options.fleet / "_bench"
    try:
        sizes = [int(word) for word in options.sizes.split(",") if word]
        asked = [int(word) for word in options.queries.split(",") if word != "0"] if options.queries else sizes
        if strange := set(options.jobs.split(",")) - set(JOBS):
            raise ValueError(f"no report {', '.join(sorted(strange))}; there are {', '.join(JOBS)}")
        for size in sorted({*sizes, *asked}):
            source = link(files(options.fleet, size), work / f"input-{size}")
            rows = rows_in(source)
            if size in sizes:
                for name in options.jobs.split(","):
                    _one(result, name, size, rows, partial(run_job, name, source, work, options.memory))
                    shutil.rmtree(work / "out", ignore_errors=True)
                    _store(result, options.output)
            if size in asked:
                try:
                    found = compare(source, work, options.engines.split(","), options.asked.split(","))
                except RuntimeError as error:
                    result["errors"].append(str(error))
                else:
                    result["errors"] += [f"{size} files: {text}" for text in found.pop("differences")]
                    result["queries"].append({"files": size, "rows": rows, **found})
                _store(result, options.output)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _store(result, options.output)
    print(markdown(result))
    return 1 if result["errors"] else 0


def _one(result: dict[str, Any], name: str, size: int, rows: int, work: Any) -> None:
    print(f"· {name}, {rows:,} rows", file=sys.stderr, flush=True)
    result["runs"] = [run for run in result["runs"] if (run["job"], run["files"]) != (name, size)]
    result["errors"] = [text for text in result["errors"] if not text.startswith(f"{name}, {size} files")]
    before = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load_1min": round(os.getloadavg()[0], 2)}
    try:
        result["runs"].append({"job": name, "files": size, "rows": rows, **before, **work()})
        print(f"  {result['runs'][-1]}", file=sys.stderr, flush=True)
    except RuntimeError as error:
        result["errors"].append(f"{name}, {size} files: {error}")


def _store(result: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result['started'][:10]}-analysis.json"
    file.write_text(stored.text(result))
    file.with_suffix(".md").write_text(markdown(result))
    return file


if __name__ == "__main__":
    sys.exit(main())
