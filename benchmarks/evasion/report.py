"""The table of a run as Markdown, and its figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.evasion.beside import Neighbour
from benchmarks.evasion.honest import Honest
from benchmarks.evasion.run import Batch
from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine

RESULTS = Path("benchmarks/results")
HEADINGS = {
    "produce": "Produce",
    "names": "Invented client-ids",
    "sasl": "SASL",
    "large": "Large requests",
    "fetch": "Fetch and ShareFetch",
    "fetch30": "Fetch on 30 connections",
    "members": "Group members",
    "requests": "Request time",
    "mutations": "Partition mutations",
    "first": "The escapes that were found first",
}


@dataclass
class Report:
    """Of a run."""

    started: str
    seconds: float
    batches: list[Batch] = field(default_factory=list)
    direct: list[Batch] = field(default_factory=list)
    direct_seconds: float = 0.0
    neighbour: Neighbour | None = None
    honest: list[Honest] = field(default_factory=list)


def summary(batches: Sequence[Batch]) -> str:
    """The worst of each kind, for those who want to know what is promised; Markdown."""
    lines = ["| attacks on, or by | rows | the most, of the limit | which |", "|---|---:|---:|---|"]
    for name, heading in HEADINGS.items():
        found = [one for batch in batches for one in batch.outcomes if one.row.batch == name and one.row.bounded]
        if found:
            worst = max(found, key=lambda one: one.figures.achieved)
            mark = "" if worst.passed else " **missed**"
            lines.append(f"| {heading} | {len(found)} | {worst.figures.achieved:.3f}{mark} | {worst.row.title} |")
    return "\n".join(lines)


def _stored(report: Report) -> dict[str, Any]:
    """What the document's table is made of, and the neighbour's latencies."""
    kept: dict[str, Any] = {
        "started": report.started,
        "seconds": report.seconds,
        "direct_seconds": report.direct_seconds,
    }
    brokers = {one.row.name: one.figures.achieved for batch in report.direct for one in batch.outcomes}
    kept["rows"] = [
        {"row": one.row.name, "limit": one.row.limit, "connections": one.row.connections, **asdict(one.figures)}
        | {f"over_{span_s:g}_s": most for span_s, most in one.stretches.items()}
        | {"brokers": brokers.get(one.row.name)}
        for batch in report.batches
        for one in batch.outcomes
    ]
    neighbour = None if report.neighbour is None else asdict(report.neighbour)
    return kept | {"neighbour": neighbour, "honest": [asdict(one) for one in report.honest]}


def store(report: Report) -> Path:
    """Keep the figures; where they are."""
    file = RESULTS / f"{report.started[:10]}-evasion.json"
    about = {"machine": describe_machine(), "project": describe_project()}
    file.write_text(stored.text(_stored(report) | about), encoding="utf-8")
    return file
