"""The result as tables: on the terminal, as JSON and as Markdown. Everything is computed from the raw samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import stats, stored
from benchmarks.report.measured import in_words
from benchmarks.report.stats import Spread
from benchmarks.rig import tls
from benchmarks.suites.plan import CALM_SHARE, PLANS, Plan
from benchmarks.suites.scenarios import Metric, Scenario, scenarios

DIRECT, HAPROXY, ENVOY, KQUOTA = "01-direct", "02-haproxy", "03-envoy", "05-kquota-quotas"
TRANSPARENT = "07-kquota-transparent"

NEARLY = 0.97
"""Of direct: what counts as the same."""

Result = Mapping[str, Any]
NOTHING = "–"
LIKELY = f"median within ({stats.SURE:.0%})"
ENOUGH_PAIRS = 3
"""Rounds in which both of what is compared were undisturbed, from which on these are judged alone."""


class Samples:
    """Values by scenario, metric, variant and round."""

    def __init__(self, result: Result, *, calm: bool = False, as_one: bool = False) -> None:
        """`calm`: only undisturbed samples. `as_one`: their median as one round: they need not be of the same."""
        self._values: dict[tuple[str, str, str], dict[int, float]] = {}
        for sample in result["samples"]:
            if calm and sample["values"].get("stranger_share", 0.0) > CALM_SHARE:
                continue
            for metric, value in sample["values"].items():
                place = (sample["scenario"], metric, sample["variant"])
                self._values.setdefault(place, {})[sample["round"]] = value
        if as_one:
            self._values = {place: {0: median(values.values())} for place, values in self._values.items()}

    def of(self, scenario: str, metric: str, variant: str) -> dict[int, float]:
        """round -> value; empty if it was not measured."""
        return self._values.get((scenario, metric, variant), {})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, or how it compares."""

    title: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """All lines of one scenario."""

    title: str
    rows: tuple[Row, ...]


def sections(result: Result) -> list[Section]:
    """The table: for each scenario, each metric's median with its range, and how it compares."""
    samples = Samples(result)
    keys = [variant["key"] for variant in result["variants"]]
    stored: dict[str, Any] = result["plan"]
    lists = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
    plan = Plan(**{**stored, **lists})
    found = []
    for scenario in scenarios(plan):
        rows = [row for metric in scenario.metrics for row in _rows(samples, scenario, metric, keys)]
        if rows:
            found.append(Section(scenario.title, tuple(rows)))
    return found


def _rows(samples: Samples, scenario: Scenario, metric: Metric, keys: Sequence[str]) -> Iterator[Row]:
    by_variant = {key: samples.of(scenario.key, metric.key, key) for key in keys}
    if not any(by_variant.values()):
        return
    unit = f", {metric.unit}"
    spreads = [Spread.of(by_variant[key].values()) for key in keys]
    yield Row(metric.title + unit, tuple(_text(spread, metric.digits) for spread in spreads))
    base_key = HAPROXY if metric.compare == "haproxy" else DIRECT
    base = by_variant.get(base_key)
    if metric.compare == "none" or not base:
        return
    added = metric.compare == "added"
    combine = stats.difference if added else stats.ratio
    compared = [None if key == base_key else combine(by_variant[key], base) for key in keys]
    if not any(compared):
        return
    title = f"… added to direct{unit}" if added else f"… × {'HAProxy' if base_key == HAPROXY else 'direct'}"
    yield Row(title, tuple(_text(spread, metric.digits if added else 2) for spread in compared))


def _text(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return NOTHING
    median = f"{spread.median:,.{digits}f}"
    if spread.count == 1:
        return median
    return f"{median} ({spread.low:,.{digits}f}–{spread.high:,.{digits}f})"


# ---- targets ----------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """What kquota with quotas is meant to reach, and what it did."""

    title: str
    limit: float
    at_least: bool
    reached: Spread
    """Over all rounds."""
    calm: float | None
    """Over rounds in which nothing was disturbed, else from the medians of undisturbed samples; None without any."""

    @property
    def met(self) -> bool:
        """By the undisturbed samples, else by the median over all."""
        value = self.reached.median if self.calm is None else self.calm
        return (value >= self.limit) if self.at_least else (value <= self.limit)

    @property
    def verdict(self) -> str:
        """In a word or two."""
        judged = "met" if self.met else "missed"
        return f"{judged}{', disturbed' if self.calm is None else ''}{', uncertain' if self.uncertain else ''}"

    @property
    def uncertain(self) -> bool:
        """The limit is within what the median may be: another run may well say otherwise."""
        return self.reached.likely is not None and self.reached.likely[0] <= self.limit <= self.reached.likely[1]


def targets(result: Result) -> list[Target]:
    """The targets that this result can judge."""
    calm = {title: reached.median for title, _, _, reached in _judged(Samples(result, calm=True, as_one=True))}
    pairs = {title: reached for title, _, _, reached in _judged(Samples(result, calm=True))}
    calm |= {title: reached.median for title, reached in pairs.items() if reached.count >= ENOUGH_PAIRS}
    return [Target(*judged, calm.get(judged[0])) for judged in _judged(Samples(result))]


def _judged(samples: Samples) -> Iterator[tuple[str, float, bool, Spread]]:
    """Title, limit, whether at least so much is wanted, and what was reached."""

    def against(scenario: str, metric: str, other: str, mine: str = KQUOTA) -> Spread | None:
        return stats.ratio(samples.of(scenario, metric, mine), samples.of(scenario, metric, other))

    def added(scenario: str, metric: str) -> Spread | None:
        """What kquota adds to direct, as a multiple of what HAProxy adds, round by round."""
        direct = samples.of(scenario, metric, DIRECT)

        def extra(key: str) -> dict[int, float]:
            other = samples.of(scenario, metric, key)
            return {number: other[number] - direct[number] for number in other.keys() & direct.keys()}

        # A proxy cannot make requests faster: where one seems to, noise was larger than what is compared.
        mine = {number: value for number, value in extra(KQUOTA).items() if value > 0}
        return stats.ratio(mine, extra(HAPROXY))

    def added_beyond(scenario: str, metric: str, factor: float) -> Spread | None:
        """What kquota adds to direct, less `factor` times what HAProxy adds: mine - direct - factor * (its - direct).

        0 or less says the same as a ratio of at most `factor`, and is defined where noise makes what a proxy adds
        negative, too.
        """
        direct, its, mine = (samples.of(scenario, metric, key) for key in (DIRECT, HAPROXY, KQUOTA))
        rounds = direct.keys() & its.keys() & mine.keys()
        return Spread.of(mine[at] - factor * its[at] + (factor - 1) * direct[at] for at in sorted(rounds))

    def plain(scenario: str, metric: str) -> Spread | None:
        return Spread.of(samples.of(scenario, metric, KQUOTA).values())

    cpu, each = "cpu_s_per_gb", "cpu_us_per_request"
    batches = (("produce", "large"), ("produce-default", "default"))
    wanted: list[tuple[str, float, bool, Spread | None]] = [
        ("fetch: CPU per GB, × HAProxy", 0.6, False, against("fetch", cpu, HAPROXY)),
        ("fetch: CPU per GB, × Envoy", 0.7, False, against("fetch", cpu, ENVOY)),
        *(
            (f"fetch, the proxy having a core: CPU per GB, × {title}", limit, False, against("fetch-apart", cpu, other))
            for title, limit, other in (("HAProxy", 0.6, HAPROXY), ("Envoy", 0.7, ENVOY))
        ),
        *(
            (f"produce, {size} batches: CPU per GB, × HAProxy", 1.1, False, against(key, cpu, HAPROXY))
            for key, size in batches
        ),
        # Where the proxy shares its cores with both ends, the ratio to direct says how scarce CPU is, and is no target.
        *(
            (
                f"{tool}: throughput × direct, the proxy having a core",
                NEARLY,
                True,
                against(f"{key}-apart", "mb_per_s", DIRECT),
            )
            for key, tool in (("fetch", "consumer"), *((key, f"producer, {size} batches") for key, size in batches))
        ),
        ("small requests: CPU each, × HAProxy", 1.15, False, against("small", each, HAPROXY)),
        ("busy small requests: CPU each, × HAProxy", 1.15, False, against("busy", each, HAPROXY)),
        # Apart the two are some 30 µs of what differs by as much from sample to sample; side by side they are compared.
        ("small requests: added p50, × HAProxy's", 1.2, False, added("small", "p50_us")),
        ("small requests, side by side: added p50, × HAProxy's", 1.2, False, added("together", "p50_us")),
        (
            "small requests, side by side: added p99 less 1.2 × HAProxy's, µs",
            0.0,
            False,
            added_beyond("together", "p99_us", 1.2),
        ),
        # Nothing is rewritten there, so nothing is to cost more; 5 % is what two equal variants differ by now and then.
        *(
            (f"transparent mode, {title}, × rewrite mode", 1.05, False, against(key, metric, KQUOTA, TRANSPARENT))
            for key, metric, title in (
                ("fetch", cpu, "fetch: CPU per GB"),
                ("produce", cpu, "produce: CPU per GB"),
                ("small", each, "small requests: CPU each"),
                ("busy", each, "busy small requests: CPU each"),
            )
        ),
        *(
            (
                f"{sides.title}, {name}: CPU per GB, × HAProxy",
                limit,
                False,
                against(f"{sides.key}-{name}", cpu, HAPROXY),
            )
            for sides in tls.ALL
            for name, limit in (("produce", 1.1), ("fetch", 0.95))
        ),
        ("memory without connections, MB", 60.0, False, plain("memory", "rss_mb_0")),
        ("memory per idle connection, kB", 25.0, False, plain("memory", "kb_per_connection")),
    ]
    for title, limit, at_least, reached in wanted:
        if reached is not None:
            yield title, limit, at_least, reached


# ---- output ----------------------------------------


def show(result: Result, console: Console) -> None:
    """Print the tables."""
    titles = [variant["title"] for variant in result["variants"]]
    table = Table(title=f"kquota compared with other ways to the broker ({result['what']})", show_lines=False)
    table.add_column("median (min–max)", overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", overflow="fold")
    for section in sections(result):
        table.add_section()
        table.add_row(f"[bold]{section.title}[/bold]", *([""] * len(titles)))
        for row in section.rows:
            table.add_row(row.title, *row.cells)
    console.print(table)
    judged = targets(result)
    if judged:
        table = Table(title="kquota with quotas against its targets")
        for name in ("what", "target", "median (min–max)", LIKELY, "undisturbed", ""):
            table.add_column(name)
        for target in judged:
            verdict = f"[{'green' if target.met else 'red'}]{target.verdict}[/]"
            reached = (_text(target.reached, 2), _likely(target.reached))
            table.add_row(target.title, _limit(target), *reached, _calm(target), verdict)
        console.print(table)
    for line in _notes(result):
        console.print(f"· {line}", highlight=False)


def _limit(target: Target) -> str:
    return f"{'≥' if target.at_least else '≤'} {target.limit:g}"


def _likely(spread: Spread) -> str:
    return NOTHING if spread.likely is None else f"{spread.likely[0]:,.2f}–{spread.likely[1]:,.2f}"


def _calm(target: Target) -> str:
    return NOTHING if target.calm is None else f"{target.calm:,.2f}"


def _notes(result: Result) -> list[str]:
    machine, project = result["machine"], result["project"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    shares = [s["values"]["stranger_share"] for s in result["samples"] if "stranger_share" in s["values"]]
    strangers = Spread.of(share * 100 for share in shares)
    disturbed = sum(share > CALM_SHARE for share in shares)
    notes = [
        f"{machine['cpu_model']}{', virtual machine' if machine['virtual'] else ''}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['kernel']}",
        f"{versions}; {in_words(project)}",
        f"started {result['started']}, took {result.get('took_s', 0):g} s, {_rounds(result)} rounds{_repeats(result)}, "
        f"the broker's log on {result.get('storage', 'unknown')}",
    ]
    if idle := machine.get("idle"):  # older results do not have it: cores halted
        notes.append(_idle(idle))
    if strangers is not None:
        notes.append(
            f"CPU that other programs on the machine took while something was measured: {strangers.median:.0f} % "
            f"({strangers.low:.0f}–{strangers.high:.0f} %); {disturbed} of {len(shares)} samples are disturbed by more "
            f"than {CALM_SHARE:.0%}"
        )
    if spoken := result.get("tls"):
        ways = ", ".join(f"{way}: {what}" for way, what in spoken.items())
        notes.append(f"spoken from the client, as a connection of the wire client has found it: {ways}")
    notes += [f"{key} was left out: {reason}" for key, reason in result["skipped"].items()]
    notes += [_failure(error) for error in result["errors"]]
    return notes


def _idle(idle: Mapping[str, Any]) -> str:
    share, refused = idle["polling_share"], idle["refused"]
    why = f" ({refused})" if refused else ""
    if share is None:
        return f"whether idle cores halted or polled is not known{why}"
    return f"idle cores polled for {share:.0%} of their idle time and halted for the rest{why}"


def _failure(error: dict[str, Any]) -> str:
    number = error["round"] + 1  # 0: before the rounds, or outside them
    place = f"{error['scenario']} {error['variant']}{f', round {number}' if number else ''}"
    return f"failed: {place}: {error['error'].splitlines()[0]}"


def _rounds(result: Result) -> int:
    repeats = result["plan"].get("repeats", {})
    return 1 + max((sample["round"] // repeats.get(sample["scenario"], 1) for sample in result["samples"]), default=-1)


def _repeats(result: Result) -> str:
    often = ", ".join(f"{key} {times} times" for key, times in result["plan"].get("repeats", {}).items())
    return f" (in each: {often})" if often else ""


def markdown(result: Result) -> str:
    """The same as Markdown."""
    titles = [variant["title"] for variant in result["variants"]]
    out = [f"- {note}" for note in _notes(result)]
    out += [f"- {v['key']}: {v['title']} – {v['detail']}" for v in result["variants"]]
    out += ["", f"| median (min–max) | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
    for section in sections(result):
        out.append(f"| **{section.title}** |{' |' * len(titles)}")
        out += [f"| {row.title} | {' | '.join(row.cells)} |" for row in section.rows]
    judged = targets(result)
    if judged:
        out += [
            "",
            f"| kquota with quotas | target | median (min–max) | {LIKELY} | undisturbed samples | |",
            "|---|---|---:|---:|---:|---|",
        ]
        for target in judged:
            verdict = target.verdict if target.met else f"**{target.verdict}**"
            reached = f"{_text(target.reached, 2)} | {_likely(target.reached)} | {_calm(target)}"
            out.append(f"| {target.title} | {_limit(target)} | {reached} | {verdict} |")
    return "\n".join(out) + "\n"


def store(result: Result, folder: Path, what: str) -> Path:
    """Write `<date>-<what>.json` (never over an older one: then `-2`, ...): medians and spreads, to be kept.

    Next to it, for this machine alone: the tables, and every sample, for `--report`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{result['started'][:10]}-{what}"
    names: Callable[[int], str] = lambda number: f"{stem}.json" if number == 1 else f"{stem}-{number}.json"  # noqa: E731
    number = 1
    while (folder / names(number)).exists():
        number += 1
    file = folder / names(number)
    file.write_text(stored.text(result), encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    file.with_suffix(".samples.json").write_text(to_json(result), encoding="utf-8")
    return file


def to_json(result: Result) -> str:
    """Indented, but with one sample on a line."""
    samples = ",\n".join("  " + json.dumps(sample, ensure_ascii=False) for sample in result["samples"])
    head = json.dumps({**result, "samples": []}, indent=1, ensure_ascii=False)
    return head.replace('"samples": []', f'"samples": [\n{samples}\n ]', 1) + "\n"


def load(file: Path) -> dict[str, Any]:
    """Read a stored result.

    Raises:
        ValueError: it is none, or of a schema this program does not know.
    """
    result = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(result, dict) or result.get("schema") != 1 or result.get("what") not in PLANS:
        raise ValueError(f"{file} is not a result of this program")
    return result
