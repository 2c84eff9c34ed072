"""How exactly quotas are kept: achieved over limit, from 0.1 to 100 MB/s, for 1, 8 and 64 connections of one group.

Real broker, real sidecar (`kquota run`), clients that always have one request under way on each connection.
`make accuracy`. What is measured of each group, all from the bytes that its clients saw:

- the ratio of achieved and limit over 60 s, once the burst that Kafka's empty window lets through has left it;
- Jain's index of its connections over the same time;
- the burst: by how much the bytes were ahead of the limit at most, in windows (of ten seconds), from the first
  request on;
- how long after the first request, after the limit was halved and after it was doubled again, the rate stays within 5 %
  of the limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.report import stored
from benchmarks.report.measured import describe_project, in_words
from benchmarks.report.stats import jain
from benchmarks.rig.crowd import FETCHED_BATCHES, Cell, Seen, clients, fill, quotas
from benchmarks.rig.procstat import describe_machine
from benchmarks.rig.runner import BROKER_SETTINGS, SHM
from benchmarks.rig.topics import create_topics
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import Sidecar, sidecar

STEADY_OVER_S = 5.0
"""The rate over so long has to be right for a group to count as converged."""
STEADY_WITHIN = 0.05
TOLERANCE = 0.02
UNDER_WAY_S = 0.2
RESULTS = Path("benchmarks/results")

Kind = Literal["produce", "fetch"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much of it."""

    rates_mb_s: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    connections: tuple[int, ...] = (1, 8, 64)
    kinds: tuple[Kind, ...] = ("produce", "fetch")
    warmup_s: float = 30.0
    """The burst, then the wait until it has left the window (11 s), then a window of the limit's rate."""
    seconds: float = 60.0
    halved_s: float = 28.0
    doubled_s: float = 14.0
    """How long the halved limit and then the old one are watched; only in phases that leave the machine time for it."""
    together_mb_s: float = 40.0
    """Groups whose limits add up to no more are measured at the same time."""
    changes_up_to_mb_s: float = 10.0
    window_num: int = 11

    @property
    def window_s(self) -> float:
        """The whole samples: what an empty window lets through at once is that many seconds' worth."""
        return self.window_num - 1.0


QUICK = Plan((0.1, 1.0), (8,), warmup_s=6.0, seconds=6.0, halved_s=0.0, doubled_s=0.0, window_num=3)
"""To see whether it works; too short for two percent."""


@dataclass
class Figures:
    """Of one group."""

    kind: Kind
    limit_mb_s: float
    connections: int
    ratio: float
    """Achieved over limit."""
    jain: float
    burst_windows: float
    """The most that the bytes were ahead of the limit, in windows."""
    settled_s: float | None
    """After the first request; None: never within what was watched."""
    halved_s: float | None
    doubled_s: float | None
    throttled: int
    """Answers with a throttle time within the 60 s. None at all means that something else was slower than the limit."""


@dataclass
class Result:
    """Of a run."""

    plan: Plan
    started: str
    figures: list[Figures] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    others_share: list[float] = field(default_factory=list)
    """Load average over cores, at the end of each phase."""
    project: dict[str, Any] = field(default_factory=dict)
    """Which code it was; see `benchmarks.report.measured`."""


# ---- arithmetic ----------------------------------------


def bytes_at(seen: Seen, when_s: float) -> float:
    """Bytes until a moment, linear between two that were noted."""
    times, totals = seen.at_s, seen.total_bytes
    if when_s <= times[0]:
        return totals[0]
    for index in range(1, len(times)):
        if times[index] >= when_s:
            part = (when_s - times[index - 1]) / (times[index] - times[index - 1])
            return totals[index - 1] + part * (totals[index] - totals[index - 1])
    return totals[-1]


def rate(seen: Seen, begin_s: float, end_s: float) -> float:
    """Bytes per second between two moments."""
    return (bytes_at(seen, end_s) - bytes_at(seen, begin_s)) / (end_s - begin_s)


def burst_windows(seen: Seen, limit: float, until_s: float, window_s: float) -> float:
    """max over t of (bytes(t) - limit * t) / (limit * window)."""
    start = seen.at_s[0]
    ahead = [
        total - limit * (at - start) for at, total in zip(seen.at_s, seen.total_bytes, strict=True) if at <= until_s
    ]
    return max(ahead) / (limit * window_s)


def settled_after(seen: Seen, limit: float, begin_s: float, end_s: float) -> float | None:
    """Seconds after `begin_s` from which on the rate over any five seconds until `end_s` is within 5 % of the limit."""
    settled: float | None = None
    at = end_s - STEADY_OVER_S
    while at >= begin_s and abs(rate(seen, at, at + STEADY_OVER_S) / limit - 1) <= STEADY_WITHIN:
        settled = at - begin_s
        at -= 0.25
    return settled


def throttled_between(seen: Seen, begin_s: float, end_s: float) -> int:
    """Answers with a throttle time between two moments."""
    inside = [count for at, count in zip(seen.at_s, seen.throttled, strict=True) if begin_s <= at <= end_s]
    return inside[-1] - inside[0] if inside else 0


def figures_of(seen: Seen, plan: Plan, changed_s: tuple[float, float] | None) -> Figures:
    """One group's figures. `changed_s`: when its limit was halved, and doubled again."""
    cell, start = seen.cell, seen.at_s[0]
    begin, end = start + plan.warmup_s, start + plan.warmup_s + plan.seconds
    first, last = (seen.per_connection[str(mark)] for mark in (plan.warmup_s, plan.warmup_s + plan.seconds))
    halved, doubled = changed_s or (None, None)
    return Figures(
        cell.kind,
        cell.limit / 1e6,
        cell.connections,
        ratio=rate(seen, begin, end) / cell.limit,
        jain=jain([after - before for before, after in zip(first, last, strict=True)]),
        burst_windows=burst_windows(seen, cell.limit, end, plan.window_s),
        settled_s=settled_after(seen, cell.limit, start, end),
        halved_s=None if halved is None or doubled is None else settled_after(seen, cell.limit / 2, halved, doubled),
        doubled_s=None if doubled is None else settled_after(seen, cell.limit, doubled, seen.at_s[-1]),
        throttled=throttled_between(seen, begin, end),
    )


def phases(plan: Plan) -> list[list[Cell]]:
    """Groups that are measured at the same time: small ones first, as many as fit."""
    found: list[list[Cell]] = []
    room = 0.0
    for mb_s in plan.rates_mb_s:
        for kind in plan.kinds:
            for connections in plan.connections:
                if mb_s > room:
                    found.append([])
                    room = plan.together_mb_s
                # Each connection has one request under way, so a fifth of a second's worth of requests are: enough
                # for a group to reach its limit also where an answer takes long. A broker takes 1 MB at most.
                batch = int(min(max(mb_s * 1e6 * UNDER_WAY_S / connections, 1000), 900_000))
                name = f"{kind}-{mb_s:g}-{connections}"
                topic = f"accuracy-{name}-{time.monotonic_ns() % 10**9}"
                found[-1].append(Cell(name, kind, mb_s * 1e6, connections, topic, batch))
                room -= mb_s
    return found


# ---- the run ----------------------------------------


def _measure(plan: Plan, cells: list[Cell], running: Sidecar) -> list[Figures]:
    changes = plan.halved_s > 0 and max(cell.limit for cell in cells) <= plan.changes_up_to_mb_s * 1e6
    steady = plan.warmup_s + plan.seconds
    total = steady + 1 + (plan.halved_s + plan.doubled_s if changes else 0)
    marks = [plan.warmup_s, steady]
    with clients(running.port, cells, total, marks) as finish:
        changed = None
        if changes:
            time.sleep(steady + 1)
            halved = time.monotonic()
            running.set_quotas(quotas(cells, 0.5))
            time.sleep(plan.halved_s)
            changed = (halved, time.monotonic())
            running.set_quotas(quotas(cells))
        found = finish()
    if dropped := sum(seen.dropped for seen in found):
        raise RuntimeError(f"{dropped} connections of clients were closed")
    return [figures_of(seen, plan, changed) for seen in found]


def run(plan: Plan, say: Say = print) -> Result:
    """All phases, in front of a broker of their own, each through a new sidecar: no counter remembers the last one."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = Result(plan, started, machine=describe_machine(), project=describe_project())
    with ExitStack() as stack:
        place = SHM if SHM.is_dir() else None
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kquota-accuracy-", dir=place))
        # What is produced is thrown away soon: a run writes tens of gigabytes.
        overrides = BROKER_SETTINGS | {"log.retention.check.interval.ms": "2000"}
        cluster = stack.enter_context(KafkaCluster.start(1, directory=Path(folder, "kafka"), overrides=overrides))
        for cells in phases(plan):
            _create(cluster, cells)
            settings: dict[str, Any] = {"log": {"format": "json"}, "quota.window.num": plan.window_num}
            with sidecar(cluster.bootstrap, quotas(cells), before=(), **settings) as running:
                result.figures += _measure(plan, cells, running)
            result.others_share.append(os.getloadavg()[0] / len(os.sched_getaffinity(0)))
            for figures in result.figures[-len(cells) :]:
                say(str(figures))
    return result


def _create(cluster: KafkaCluster, cells: Sequence[Cell]) -> None:
    topics = {}
    for cell in cells:
        # By time nothing goes: our batches say 1970, and a broker looks for old ones half a minute after its start.
        configs = {"retention.ms": "-1"}
        if cell.kind == "produce":
            configs |= {"retention.bytes": "100000000", "segment.bytes": "100000000"}
        topics[cell.topic] = configs
    create_topics(cluster.bootstrap, topics)
    time.sleep(1)  # until the broker knows what the controller has made
    host, port = cluster.bootstrap[0].rsplit(":", 1)
    for cell in cells:
        if cell.kind == "fetch":
            fill((host, int(port)), cell.topic, cell.batch_bytes, FETCHED_BATCHES)


# ---- the table ----------------------------------------


def table(result: Result) -> str:
    """Markdown."""
    lines = [
        f"- {result.machine.get('cpu_model', 'unknown')}, {result.machine.get('cores', '?')} cores; "
        f"started {result.started}; load of other programs and of this one, per core, at the end of each phase: "
        + ", ".join(f"{share:.1f}" for share in result.others_share),
        f"- {in_words(result.project)}",
        f"- over {result.plan.seconds:g} s after {result.plan.warmup_s:g} s; within 2 %: "
        f"{sum(abs(one.ratio - 1) <= TOLERANCE for one in result.figures)} of {len(result.figures)} groups",
        "",
        "| limit, MB/s | | connections | achieved / limit | Jain's index | burst, windows | steady after start, s "
        "| after halving, s | after doubling, s |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in sorted(result.figures, key=lambda one: (one.limit_mb_s, one.kind == "fetch", one.connections)):
        missed = "" if abs(one.ratio - 1) <= TOLERANCE else " **missed**" if one.throttled else " (never throttled)"
        lines.append(
            f"| {one.limit_mb_s:g} | {one.kind} | {one.connections} | {one.ratio:.4f}{missed} | {one.jain:.4f} "
            f"| {one.burst_windows:.2f} | {_seconds(one.settled_s)} | {_seconds(one.halved_s)} "
            f"| {_seconds(one.doubled_s)} |"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.accuracy", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="two small groups of each kind, under a minute")
    arguments.add_argument("--rates", help="limits in MB/s, with commas between them")
    options = arguments.parse_args()
    plan = QUICK if options.quick else Plan()
    if options.rates:
        plan = Plan(rates_mb_s=tuple(float(rate) for rate in options.rates.split(",")))
    result = run(plan)
    text = table(result)
    print(text)
    if not options.quick:
        file = RESULTS / f"{result.started[:10]}-accuracy.json"
        file.write_text(stored.text(asdict(result)), encoding="utf-8")
        file.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    return 0 if all(abs(one.ratio - 1) <= TOLERANCE for one in result.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
