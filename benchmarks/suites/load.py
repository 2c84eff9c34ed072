"""Two thousand connections at once: are all held, is the quota shared fairly, and what do others notice? `make load`.

Each round measures the latency of unthrottled clients twice, alone and next to the crowd, so that a busy machine
weighs on both. The crowd are two groups, writers and readers, each far over its quota: every one of their connections
always has a request under way, and the sidecar holds it up. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report.measured import describe_project, in_words
from benchmarks.report.stats import jain, percentile
from benchmarks.rig.crowd import FETCHED_BATCHES, Cell, clients, quotas
from benchmarks.rig.procstat import MachineTime, cpu_s, describe_machine, resident_bytes
from benchmarks.rig.rawclient import open_loop
from tests.lab.kafka import KafkaCluster, run_tool
from tests.support.sidecars import Sidecar, sidecar

TOPIC = "load"
WRITERS, READERS = "crowd-write", "crowd-read"
"""Client-ids."""
WRITE_BYTES, READ_BYTES = 1000, 10_000
"""Of a record, and of an answer."""
PROBES = 20
"""Connections of unthrottled clients."""
FILL_RECORDS = 200
MAX_BEHIND_S = 30.0
"""The probes wait so long for answers; what they measure then says so."""


@dataclass(frozen=True)
class Plan:
    """How much of it."""

    connections: int = 2000
    rounds: int = 3
    seconds: float = 15.0
    """Of each measurement, of the probes alone and next to the crowd."""
    write_bytes_per_s: int = 600_000
    """Shared by half of the connections: about 550 requests of 1 KB per second."""
    read_bytes_per_s: int = 3_000_000
    """Shared by the other half: about 300 answers of 10 KB per second."""
    window_num: int = 11
    probe_rate_per_s: float = 100.0

    @property
    def warmup_s(self) -> float:
        """The window lets a burst through at once, and each connection has to have its turn in the wait after it."""
        return 2.0 * self.window_num + 1.0


QUICK = Plan(300, 1, 4.0, write_bytes_per_s=150_000, read_bytes_per_s=1_000_000, window_num=3)
"""To see whether it works."""


@dataclass
class Round:
    """One measurement alone, one next to the crowd."""

    idle_p50_ms: float
    idle_p99_ms: float
    loaded_p50_ms: float
    loaded_p99_ms: float
    probe_throttled: int
    """Answers to the probes with a throttle time; there must be none."""
    connected: int
    dropped: int
    held_by_sidecar: int
    """Its own count of open connections, crowd and probes."""
    jain_writers: float
    jain_readers: float
    least_written_bytes: int
    written_bytes_per_s: float
    read_bytes_per_s: float
    proxy_cpu_share: float
    """Of one core, next to the crowd."""
    others_cpu_share: float
    """Of the machine: what neither broker nor sidecar used, the load generator included."""
    resident_mb: float


@dataclass
class Result:
    """Of all rounds."""

    plan: Plan
    rounds: list[Round] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    project: dict[str, Any] = field(default_factory=dict)
    """Which code it was; see `benchmarks.report.measured`."""

    def ratios(self, name: str) -> list[float]:
        """Beside the crowd over alone, for each round."""
        return [getattr(one, f"loaded_{name}") / getattr(one, f"idle_{name}") for one in self.rounds]


def _cells(plan: Plan) -> list[Cell]:
    writers = plan.connections // 2
    return [
        Cell(WRITERS, "produce", plan.write_bytes_per_s, writers, TOPIC, WRITE_BYTES),
        Cell(READERS, "fetch", plan.read_bytes_per_s, plan.connections - writers, TOPIC, READ_BYTES // FETCHED_BATCHES),
    ]


def run(plan: Plan, say: Callable[[str], None] = print) -> Result:
    """All rounds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * plan.connections + 1000
    if hard < wanted:
        raise RuntimeError(f"{wanted} open files are needed, the limit (ulimit -Hn) is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))  # broker and sidecar inherit it
    result = Result(plan, machine=describe_machine(), project=describe_project())
    settings: dict[str, Any] = {"log": {"format": "json"}, "quota.window.num": plan.window_num}
    with (
        KafkaCluster.start(1, progress=say) as cluster,
        sidecar(cluster.bootstrap, quotas(_cells(plan)), before=(), **settings) as running,
    ):
        run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            [
                *("--topic", TOPIC, "--num-records", str(FILL_RECORDS), "--record-size", "1000", "--throughput", "-1"),
                *("--producer-props", f"bootstrap.servers={cluster.bootstrap[0]}"),
            ],
            cluster.version,
        )
        _probe(running, plan, 2.0)  # warm
        for number in range(plan.rounds):
            result.rounds.append(_round(running, cluster.nodes[0].pid, plan))
            say(f"round {number + 1}: {result.rounds[-1]}")
    return result


def _probe(running: Sidecar, plan: Plan, seconds: float) -> tuple[list[float], int]:
    """Latencies in ms of produce requests at a fixed rate, by a client without a quota."""
    loop = open_loop(
        ("127.0.0.1", running.port),
        TOPIC,
        rate_per_s=plan.probe_rate_per_s,
        seconds=seconds,
        connections=PROBES,
        most_behind_s=MAX_BEHIND_S,
    )
    return [latency * 1000 for latency in loop.latencies_s], loop.throttled


def _round(running: Sidecar, broker_pid: int, plan: Plan) -> Round:
    pid, end_s = running.pid, plan.warmup_s + plan.seconds + 1
    idle, throttled_idle = _probe(running, plan, plan.seconds)
    with clients(running.port, _cells(plan), end_s, [plan.warmup_s, end_s - 0.5]) as finish:
        time.sleep(plan.warmup_s)
        cpu_before, machine_before, broker_before = cpu_s(pid), MachineTime.now(), cpu_s(broker_pid)
        began = time.monotonic()
        loaded, throttled = _probe(running, plan, plan.seconds)
        took = time.monotonic() - began
        proxy_cpu, broker_cpu = cpu_s(pid) - cpu_before, cpu_s(broker_pid) - broker_before
        machine = MachineTime.now().busy_s - machine_before.busy_s
        held = int(running.metric("kquota_connections_open"))
        resident = resident_bytes(pid)
        found = finish()
    seconds = end_s - 0.5 - plan.warmup_s
    written, read = ([end - begin for begin, end in zip(*one.per_connection.values(), strict=True)] for one in found)
    dropped = sum(one.dropped for one in found)
    return Round(
        idle_p50_ms=percentile(idle, 50),
        idle_p99_ms=percentile(idle, 99),
        loaded_p50_ms=percentile(loaded, 50),
        loaded_p99_ms=percentile(loaded, 99),
        probe_throttled=throttled_idle + throttled,
        connected=plan.connections - dropped,
        dropped=dropped,
        held_by_sidecar=held,
        jain_writers=jain(written),
        jain_readers=jain(read),
        least_written_bytes=min(written),
        written_bytes_per_s=sum(written) / seconds,
        read_bytes_per_s=sum(read) / seconds,
        proxy_cpu_share=proxy_cpu / took,
        others_cpu_share=(machine - proxy_cpu - broker_cpu) / took / len(os.sched_getaffinity(0)),
        resident_mb=resident / 1e6,
    )


def table(result: Result) -> str:
    """Markdown: the rounds, and the medians."""
    columns: list[tuple[str, Callable[[Round], float], str]] = [
        ("p50 alone, ms", lambda one: one.idle_p50_ms, ".2f"),
        ("p50 next to the crowd", lambda one: one.loaded_p50_ms, ".2f"),
        ("p99 alone, ms", lambda one: one.idle_p99_ms, ".2f"),
        ("p99 next to the crowd", lambda one: one.loaded_p99_ms, ".2f"),
        ("p99 ratio", lambda one: one.loaded_p99_ms / one.idle_p99_ms, ".2f"),
        ("connections held", lambda one: one.connected, ".0f"),
        ("dropped", lambda one: one.dropped, ".0f"),
        ("Jain, writers", lambda one: one.jain_writers, ".4f"),
        ("Jain, readers", lambda one: one.jain_readers, ".4f"),
        ("written, kB/s", lambda one: one.written_bytes_per_s / 1000, ".0f"),
        ("read, kB/s", lambda one: one.read_bytes_per_s / 1000, ".0f"),
        ("sidecar, cores", lambda one: one.proxy_cpu_share, ".2f"),
        ("others, of the machine", lambda one: one.others_cpu_share, ".0%"),
        ("resident, MB", lambda one: one.resident_mb, ".0f"),
    ]
    lines = ["| round | " + " | ".join(title for title, _, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for number, one in enumerate(result.rounds, 1):
        lines.append(f"| {number} | " + " | ".join(format(get(one), style) for _, get, style in columns) + " |")
    medians = [format(statistics.median(get(one) for one in result.rounds), style) for _, get, style in columns]
    return "\n".join([*lines, "| **median** | " + " | ".join(medians) + " |"])


MAX_P99_RATIO = 2.0
"""Beside the crowd over alone, the median of the rounds."""


def failures(result: Result) -> list[str]:
    """What is wrong; nothing if all is well."""
    found = []
    for number, one in enumerate(result.rounds, 1):
        if one.dropped or one.connected != result.plan.connections:
            found.append(f"round {number}: {one.connected} of {result.plan.connections} held, {one.dropped} dropped")
        if one.probe_throttled:
            found.append(f"round {number}: {one.probe_throttled} answers to clients without a quota were throttled")
        if not one.least_written_bytes:
            found.append(f"round {number}: a writer got nothing done")
    ratio = statistics.median(result.ratios("p99_ms"))
    if ratio > MAX_P99_RATIO:
        found.append(
            f"p99 of unthrottled clients is {ratio:.2f} times that alone, at most {MAX_P99_RATIO:g} is allowed"
        )
    return found


def report(result: Result) -> str:
    """Markdown: machine, table, verdict."""
    machine, plan = result.machine, result.plan
    verdict = "; ".join(failures(result)) or "all is well"
    return (
        f"{plan.connections} connections, {len(result.rounds)} rounds of {plan.seconds:g} s each alone and next to the "
        f"crowd. {machine['cpu_model']}, {machine['cores']} cores{' (virtual)' if machine['virtual'] else ''}, "
        f"{machine['memory_gib']} GiB, {machine['kernel']}; load average of the machine before the run: "
        f"{machine['load_1min']}; {in_words(result.project)}.\n\n{table(result)}\n\nVerdict: {verdict}.\n"
    )


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.load", description=__doc__)
    arguments.add_argument("--connections", type=int, default=Plan.connections)
    arguments.add_argument("--rounds", type=int, default=Plan.rounds)
    arguments.add_argument("--seconds", type=float, default=Plan.seconds)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    plan = QUICK if options.quick else Plan(options.connections, options.rounds, options.seconds)
    result = run(plan)
    print(report(result))
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return 1 if failures(result) else 0


if __name__ == "__main__":
    sys.exit(main())
