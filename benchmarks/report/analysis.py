"""The measurements of the reports as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLANNED, CORES = 1_000_000_000, 32
"""The size that is calculated, and for how many cores."""


def markdown(result: Mapping[str, Any]) -> str:
    """All tables of one run."""
    machine = result["machine"]
    lines = [
        f"{result['started'][:10]}, {machine['cpu_model']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"JVM heap of {result['memory']}; load average at the start {machine['load_1min']}.",
        "",
        f"`{result['fleet']}`",
        "",
    ]
    if result["runs"]:
        lines += _jobs(result["runs"])
    if result["queries"]:
        lines += _queries(result["queries"])
    if result["errors"]:
        lines += ["", "Went wrong:", "", *(f"- {_brief(text)}" for text in result["errors"])]
    return "\n".join(lines).rstrip() + "\n"


def _brief(error: str) -> str:
    """What failed, and the last that was said: of a traceback, what it was."""
    first, *more = error.splitlines()
    return f"{first} … {more[-1]}" if more else first


def _jobs(runs: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| report | rows | time | CPU time | CPU per million rows | read | shuffled | spilled | peak memory "
        "| rows grew | CPU grew | CPU of others |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for mine in _by_job(runs):
        for before, run in zip([None, *mine[:-1]], mine, strict=True):
            grew = (
                ("", "")
                if before is None
                else (f"{run['rows'] / before['rows']:.1f}x", f"{run['cpu_s'] / before['cpu_s']:.1f}x")
            )
            others = f"{run['others_cpu_s']:.0f} s" if "others_cpu_s" in run else ""
            lines.append(
                f"| {run['job']} | {run['rows'] / 1e6:.1f} M | {run['seconds']:.0f} s | {run['cpu_s']:.0f} s | "
                f"{run['cpu_s'] / run['rows'] * 1e6:.1f} s | {_bytes(run, 'read')} | {_bytes(run, 'shuffled')} | "
                f"{_bytes(run, 'spilled')} | {run['peak_bytes'] / 1e9:.1f} GB | {grew[0]} | {grew[1]} | {others} |"
            )
    return [*lines, "", *_plan(runs)]


def _by_job(runs: list[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The runs of each report, by size."""
    jobs = dict.fromkeys(run["job"] for run in runs)
    return [sorted((run for run in runs if run["job"] == job), key=lambda run: run["rows"]) for job in jobs]


def _bytes(run: Mapping[str, Any], what: str) -> str:
    value = run.get(f"{what}_bytes")
    return "" if value is None else f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def _plan(runs: list[Mapping[str, Any]]) -> list[str]:
    """What a report would take if each further record cost what it did between the last two sizes."""
    lines = []
    for mine in _by_job(runs):
        if len(mine) < 2 or "shuffled_bytes" not in mine[-2] or "shuffled_bytes" not in mine[-1]:
            continue
        before, last = mine[-2:]
        more = (PLANNED - last["rows"]) / (last["rows"] - before["rows"])
        cpu_s, shuffled, spilled = (
            last[name] + more * max(last[name] - before[name], 0)
            for name in ("cpu_s", "shuffled_bytes", "spilled_bytes")
        )
        each = (last["cpu_s"] - before["cpu_s"]) / (last["rows"] - before["rows"]) * 1e6
        lines.append(
            f"| {last['job']} | {each:.1f} µs | {cpu_s / 60:,.0f} min | {shuffled / 1e9:.1f} GB | "
            f"{spilled / 1e9:.1f} GB | {cpu_s / 60 / CORES:.0f} min |"
        )
    if not lines:
        return []
    return [
        f"| report, {PLANNED:,} rows (calculated) | CPU per further row | CPU time | shuffled | spilled "
        f"| time on {CORES} busy cores |",
        "|---|---:|---:|---:|---:|---:|",
        *lines,
        "",
    ]


def _queries(queries: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| query | rows | result | Spark | DuckDB | DuckDB, CPU time | DuckDB is faster by |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in queries:
        spark_too = "spark" in one
        for name, duck in one["duckdb"]["queries"].items():
            spark = one["spark"]["queries"][name]["seconds"] if spark_too else None
            cpu = f"{duck['cpu_s']:.1f} s" if "cpu_s" in duck else ""
            took, faster = ("", "") if spark is None else (f"{spark:.1f} s", f"{spark / duck['seconds']:.1f}x")
            lines.append(
                f"| {name} | {one['rows'] / 1e6:.1f} M | {duck['rows']:,} | {took} | {duck['seconds']:.1f} s | {cpu} "
                f"| {faster} |"
            )
        figures = {engine: one[engine]["whole"] for engine in ("spark", "duckdb") if engine in one}
        words = {
            engine: f"{whole['seconds']:.1f} s, CPU {whole['cpu_s']:.0f} s, {whole['peak_bytes'] / 1e9:.1f} GB"
            for engine, whole in figures.items()
        }
        faster = f"{figures['spark']['seconds'] / figures['duckdb']['seconds']:.1f}x" if spark_too else ""
        lines.append(
            f"| all of these, start included | {one['rows'] / 1e6:.1f} M | | {words.get('spark', '')} "
            f"| {words['duckdb']} | | {faster} |"
        )
    return [*lines, ""]
