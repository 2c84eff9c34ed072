"""The reports on a generated fleet: rows per second, memory, growth with the input, and DuckDB on the same files.

`python -m benchmarks.suites.analysis` (or `make bench-analysis`); docs/benchmarks-analysis.md tells how to read the
figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report.analysis import markdown, put_into
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import cpu_s, describe_machine, peak_bytes
from benchmarks.rig.variants import PROJECT
from benchmarks.suites import analysis_queries as fleet_queries

RESULTS = PROJECT / "benchmarks" / "results"
DOCUMENT = PROJECT / "docs" / "benchmarks-analysis.md"
JOBS = ("usage", "throttling", "chargeback", "noisy", "capacity", "recommend", "obedience", "whatif")
FILES_PER_PART = 4
"""As `analysis.fleet` writes them."""
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
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} ended with {process.returncode}: {text[-600:]}")
    return {"seconds": seconds, "cpu_s": sum(cpu.values()), "peak_bytes": sum(peak.values())}


def _family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


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
        "deploy.cli.main",
        "report",
        name,
        "--input",
        str(source),
        "--output",
        str(work / "out"),
    ]
    return measured([*command, "--memory", memory, "--quiet", *more.get(name, [])])


def compare(source: Path, work: Path) -> dict[str, Any]:
    """The same queries by both engines, each in a process of its own, and where their results differ."""
    told: dict[str, Any] = {}
    for engine in fleet_queries.ASKERS:
        output = work / f"{engine}.json"
        whole = measured([sys.executable, "-m", "benchmarks.suites.analysis_queries", engine, str(source), str(output)])
        told[engine] = {"whole": whole, "queries": json.loads(output.read_text())}
    for name in fleet_queries.QUERIES:
        one, other = (told[engine]["queries"][name] for engine in fleet_queries.ASKERS)
        told.setdefault("differences", []).extend(fleet_queries.differences(one["rows"], other["rows"]))
        for engine in fleet_queries.ASKERS:
            told[engine]["queries"][name] = {
                "seconds": told[engine]["queries"][name]["seconds"],
                "rows": len(told[engine]["queries"][name]["rows"]),
            }
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, store, show. 0: done; 1: something failed or results differ; 2: wrong use."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.analysis", description=__doc__)
    parser.add_argument("--fleet", type=Path, required=True, help="what `python -m analysis.fleet --output` wrote")
    parser.add_argument("--sizes", default="1,4,16", help="files of the fleet that are read, a comma between (1,4,16)")
    parser.add_argument("--jobs", default=",".join(JOBS), help="which reports (all)")
    parser.add_argument("--queries", default="", help="sizes at which DuckDB and Spark are compared (those of --sizes)")
    parser.add_argument("--memory", default="4g", help="of the JVM (4g)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where <date>-analysis.json and .md go")
    parser.add_argument("--update-docs", action="store_true", help="put the tables into docs/benchmarks-analysis.md")
    options = parser.parse_args(argv)
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
    work = options.fleet / "_bench"
    try:
        sizes = [int(word) for word in options.sizes.split(",")]
        asked = [int(word) for word in options.queries.split(",")] if options.queries else sizes
        if strange := set(options.jobs.split(",")) - set(JOBS):
            raise ValueError(f"no report {', '.join(sorted(strange))}; there are {', '.join(JOBS)}")
        for size in sorted({*sizes, *asked}):
            source = link(files(options.fleet, size), work / f"input-{size}")
            rows = rows_in(source)
            if size in sizes:
                for name in options.jobs.split(","):
                    _one(result, name, size, rows, partial(run_job, name, source, work, options.memory))
                    _store(result, options.output)
            if size in asked:
                try:
                    found = compare(source, work)
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
    file = _store(result, options.output)
    text = markdown(result)
    print(text)
    if options.update_docs:
        put_into(DOCUMENT, text, str(file.relative_to(PROJECT)) if file.is_relative_to(PROJECT) else file.name)
    return 1 if result["errors"] else 0


def _one(result: dict[str, Any], name: str, size: int, rows: int, work: Any) -> None:
    print(f"· {name}, {rows:,} rows", file=sys.stderr, flush=True)
    try:
        result["runs"].append({"job": name, "files": size, "rows": rows, **work()})
    except RuntimeError as error:
        result["errors"].append(str(error))


def _store(result: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result['started'][:10]}-analysis.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    file.with_suffix(".md").write_text(markdown(result))
    return file


if __name__ == "__main__":
    sys.exit(main())
