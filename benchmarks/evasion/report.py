"""The tables of a run as Markdown, and its figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.evasion import honest as clients
from benchmarks.evasion.beside import Neighbour
from benchmarks.evasion.neighbour import WAYS
from benchmarks.evasion.rows import BOUND, Row
from benchmarks.evasion.run import Batch, Outcome
from benchmarks.report import stored
from benchmarks.report.measured import describe_project, in_words
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
    honest: list[clients.Honest] = field(default_factory=list)


def table(report: Report) -> str:
    """Markdown."""
    machine = describe_machine()
    outcomes = [one for batch in report.batches for one in batch.outcomes]
    judged = [one for one in outcomes if one.row.bounded]
    lines = [
        f"- {machine.get('cpu_model', 'unknown')}, {machine.get('cores', '?')} cores; started {report.started}; "
        f"{report.seconds:g} s per batch"
        + (f", {report.direct_seconds:g} s of the broker's own quotas" if report.direct else ""),
        f"- {in_words(describe_project())}",
        f"- at most {BOUND:g} of the limit: {sum(one.passed for one in judged)} of {len(judged)} rows",
        "",
    ]
    direct = {one.row.name: one for batch in report.direct for one in batch.outcomes}
    for name, heading in HEADINGS.items():
        found = [one for one in outcomes if one.row.batch == name]
        if not found:
            continue
        lines += [
            f"### {heading}",
            "",
            "| attack | limit | tried, limits | achieved / limit | over, s | burst, windows | a broker's own quota |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [_line(one, direct.get(one.row.name)) for one in found]
        lines.append("")
    if report.neighbour is not None:
        lines += _beside(report.neighbour)
    lines += _honest(report.honest)
    return "\n".join(lines).rstrip()


def summary(outcomes: Sequence[Outcome]) -> str:
    """The worst of each kind, for those who want to know what is promised; Markdown."""
    lines = ["| attacks on, or by | rows | the most, of the limit | which |", "|---|---:|---:|---|"]
    for name, heading in HEADINGS.items():
        found = [one for one in outcomes if one.row.batch == name and one.row.bounded]
        if found:
            worst = max(found, key=lambda one: one.figures.achieved)
            mark = "" if worst.passed else " **missed**"
            lines.append(f"| {heading} | {len(found)} | {worst.figures.achieved:.3f}{mark} | {worst.row.title} |")
    return "\n".join(lines)


def _beside(found: Neighbour) -> list[str]:
    alone = found.figures()
    lines = ["### The honest neighbour", ""]
    if len(alone) == len(WAYS):
        said = " and ".join(f"{alone[way][0]:.2f} / {alone[way][1]:.2f} ms by the {way}" for way in WAYS)
        lines += [f"Alone: p50 / p99 {said}\n({alone['sidecar'][2]} requests each).", ""]
    lines += [
        "| attack | sidecar p50, ms | p99, ms | p99, times alone | broker p50, ms | p99, ms | p99, times alone |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found.attacks:
        beside, times = found.figures(one), found.times(one)
        cells = ["-"] * 6
        if times is not None:
            cells = [
                cell
                for way, ratio in zip(WAYS, times, strict=True)
                for cell in (f"{beside[way][0]:.2f}", f"{beside[way][1]:.2f}", f"{ratio:.2f}")
            ]
        cells[2] += " **missed**" if found.slowed(one) else ""
        lines.append(f"| {one.row.title} | {' | '.join(cells)} |")
    return [*lines, ""]


def _honest(found: list[clients.Honest]) -> list[str]:
    if not found:
        return []
    lines = [
        f"### Honest clients at {clients.OFFER} times their limit, {clients.SECONDS:g} s, "
        f"next to {len(clients.ATTACKS)} attacks",
        "",
        "| library | records | lost | twice | errors | achieved / limit |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one.library} | {one.acknowledged} of {one.sent} | {one.lost} | {one.repeated} | {len(one.errors)} "
        f"| {one.achieved:.3f}{'' if one.passed else ' **failed**'} |"
        if not one.missing
        else f"| {one.library} | not tried: {one.missing.splitlines()[0]} | | | | |"
        for one in found
    ]
    return [*lines, ""]


def _line(one: Outcome, direct: Outcome | None) -> str:
    figures = one.figures
    mark = " (by definition)" if not one.row.bounded else "" if one.passed else " **missed**"
    own = "" if direct is None else f"{direct.figures.achieved:.2f}"
    return (
        f"| {one.row.title} | {_limit(one.row)} | {one.row.offer:g} | {figures.achieved:.3f}{mark} "
        f"| {figures.seconds:.0f} | {figures.burst:.2f} | {own} |"
    )


def _limit(row: Row) -> str:
    if row.attack == "requests":
        return f"{row.limit:g} %"
    if row.attack == "mutations":
        return f"{row.limit:g}/s"
    return f"{row.limit / 1e6:g} MB/s"


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
    """Keep the figures, with the tables as Markdown next to them; where the figures are."""
    file = RESULTS / f"{report.started[:10]}-evasion.json"
    about = {"machine": describe_machine(), "project": describe_project()}
    file.write_text(stored.text(_stored(report) | about), encoding="utf-8")
    outcomes = [one for batch in report.batches for one in batch.outcomes]
    file.with_suffix(".md").write_text(f"{summary(outcomes)}\n\n{table(report)}\n", encoding="utf-8")
    return file
