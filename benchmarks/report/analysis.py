"""The measurements of the reports as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def markdown(result: Mapping[str, Any]) -> str:
    """Both tables of one run."""
    machine = result["machine"]
    lines = [
        f"{result['started'][:10]}, {machine['cpu_model']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"JVM heap of {result['memory']}; load average at the start {machine['load_1min']}.",
        "",
        f"`{result['fleet']}`",
        "",
        "| report | rows | time | CPU time | peak memory |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {run['job']} | {run['rows'] / 1e6:.1f} M | {run['seconds']:.0f} s | {run['cpu_s']:.0f} s | "
        f"{run['peak_bytes'] / 1e9:.1f} GB |"
        for run in result["runs"]
    ]
    lines += ["", "| query | rows | Spark | DuckDB | DuckDB is faster by |", "|---|---:|---:|---:|---:|"]
    lines += [line for one in result["queries"] for line in _queries(one)]
    if result["errors"]:
        lines += ["", "Went wrong:", "", *(f"- {_brief(text)}" for text in result["errors"])]
    return "\n".join(lines) + "\n"


def _brief(error: str) -> str:
    """What failed, and the last that was said: of a traceback, what it was."""
    first, *more = error.splitlines()
    return f"{first} … {more[-1]}" if more else first


def _queries(one: Mapping[str, Any]) -> Iterator[str]:
    for name, duck in one["duckdb"]["queries"].items():
        took, faster = "", ""
        if "spark" in one:
            seconds = one["spark"]["queries"][name]["seconds"]
            took, faster = f"{seconds:.1f} s", f"{seconds / duck['seconds']:.1f}x"
        yield f"| {name} | {one['rows'] / 1e6:.1f} M | {took} | {duck['seconds']:.1f} s | {faster} |"
