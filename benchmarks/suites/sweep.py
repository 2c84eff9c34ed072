"""Rates up to the knee and past it, in OpenMessaging's manner: 1 KB records, 10 topics of 3 partitions, an open loop.

At each rate, and by each way to one broker: what was acknowledged and consumed, publish and end-to-end latency, and the
CPU of the proxy in millicores per MB/s, where produced and consumed bytes count. `python -m benchmarks.suites.sweep`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig import variants
from benchmarks.rig.procstat import cpu_s, describe_machine
from benchmarks.rig.runner import BROKER_SETTINGS
from benchmarks.rig.topics import create_topics
from benchmarks.rig.variants import Ports, Running, Variant
from tests.lab.kafka import DEFAULT_VERSION, KafkaCluster
from tests.lab.kafka.javalog import tool_arguments
from tests.lab.kafka.ports import free_ports
from tests.lab.kafka.tools import java_command

SOURCE: Final = Path(__file__).parents[1] / "rig" / "Sweep.java"
RECORD_BYTES: Final = 1000
TOPICS: Final = [f"sweep-{number}" for number in range(10)]
PARTITIONS: Final = 3
KEPT: Final = {"retention.bytes": "20000000", "segment.bytes": "10000000"}
RATES_MB_PER_S: Final = (1.0, 5.0, 10.0, 20.0, 40.0, 80.0)
STOP_LIMIT_S: Final = 60.0


def other(name: str, words: str) -> Variant:
    """Another proxy, by its command: `{listen}`, `{broker}` and `{broker_port}` in it are replaced."""

    def command(_folder: Path, ports: Ports, broker: variants.Address, _tls: object) -> list[str]:
        said = words.replace("{listen}", str(ports.front)).replace("{broker_port}", str(ports.broker))
        return shlex.split(said.replace("{broker}", f"{broker[0]}:{broker[1]}"))

    return Variant(f"09-{name}", name, words, own_listener=True, command=command, start_limit_s=STOP_LIMIT_S)


def measure(way: Running, rate_mb_per_s: float, before_s: float, measured_s: float) -> dict[str, Any]:
    """One rate by one way."""
    per_s = rate_mb_per_s * 1e6 / RECORD_BYTES
    words = [way.bootstrap, ",".join(TOPICS), str(per_s), str(RECORD_BYTES), str(before_s), str(measured_s)]
    jvm = (*tool_arguments(DEFAULT_VERSION), "-Xmx1g", "-XX:+UseSerialGC")
    command = java_command(str(SOURCE), words, DEFAULT_VERSION, jvm)
    used = [0.0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        found: dict[str, Any] = {}
        for line in driver.stdout:
            if line.strip() in ("begin", "end") and way.pid is not None:
                used.append(cpu_s(way.pid))
            elif line.startswith("{"):
                found = json.loads(line)
        if driver.wait(STOP_LIMIT_S) or not found:
            raise RuntimeError(
                f"{way.variant.key} at {rate_mb_per_s:g} MB/s: the driver ended with {driver.returncode}"
            )
    values = {
        f"{name}_mb_per_s": found[name] * RECORD_BYTES / 1e6 / measured_s for name in ("acknowledged", "consumed")
    }
    both_mb_per_s = sum(values.values())
    for name in ("publish_ms", "end_to_end_ms"):
        values |= {f"{name}_{share}": value for share, value in zip(("p50", "p99", "p999"), found[name], strict=True)}
    if way.pid is not None:
        values["millicores_per_mb_per_s"] = (used[-1] - used[-2]) / measured_s * 1000 / both_mb_per_s
    return values | {"failed": found["failed"]}


def run(chosen: Sequence[Variant], rates: Sequence[float], rounds: int, measured_s: float) -> dict[str, Any]:
    """All rates by all ways, which take turns; every second round begins with the last."""
    rows: list[dict[str, Any]] = []
    result = {
        "what": "sweep",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "project": describe_project(),
        "machine": describe_machine(),
        "measured_s": measured_s,
        "variants": [{"key": one.key, "title": one.title, "version": one.version()} for one in chosen],
        "rows": rows,
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kquota-sweep-")))
        numbers = iter(free_ports(3 * len(chosen)))
        ports = {one: Ports(next(numbers), next(numbers), next(numbers)) for one in chosen}
        listeners = [one.listener(ports[one]) for one in chosen if one.own_listener]
        jvm = ("-XX:+UseSerialGC", "-Xms128m", "-Xmx1g")
        cluster = KafkaCluster.start(1, overrides=BROKER_SETTINGS, jvm=jvm, extra_listeners=listeners)
        stack.callback(cluster.stop)
        create_topics(cluster.bootstrap, dict.fromkeys(TOPICS, KEPT), partitions=PARTITIONS)
        host, port = cluster.bootstrap[0].rsplit(":", 1)
        ways = []
        for one in chosen:
            ways.append(variants.start(one, ports[one], (host, int(port)), folder))
            stack.callback(ways[-1].stop)
        for way in ways:
            measure(way, max(rates) / 4, 0.0, 5.0)  # the broker, and a proxy with a compiler of its own, warm up
        for number in range(rounds):
            for rate in rates:
                for way in ways if number % 2 == 0 else reversed(ways):
                    values = measure(way, rate, 3.0, measured_s)
                    rows.append({"round": number, "way": way.variant.title, "rate": f"{rate:g} MB/s", "values": values})
                    print(rows[-1]["way"], rows[-1]["rate"], json.dumps(values), flush=True)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0: measured; 2: it cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.sweep", description=__doc__)
    parser.add_argument("--variants", default="01-direct,02-haproxy,03-envoy,05-kquota-quotas")
    parser.add_argument("--other", metavar="NAME=COMMAND", action="append", default=[], help=other.__doc__)
    parser.add_argument("--rates", default=",".join(map(str, RATES_MB_PER_S)), help="MB/s, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each rate is measured")
    parser.add_argument("--store", type=Path, help="the file to write")
    options = parser.parse_args(argv)
    if shutil.which("javac") is None:
        print("no JDK on PATH: the driver is run from its source (Debian: apt-get install openjdk-17-jdk-headless)")
        return 2
    chosen = [*variants.find(options.variants.split(",")), *(other(*one.split("=", 1)) for one in options.other)]
    for one in [one for one in chosen if one.missing()]:
        print(f"{one.key} is left out: {one.missing()}")
        chosen.remove(one)
    result = run(chosen, [float(rate) for rate in options.rates.split(",")], options.rounds, options.seconds)
    if options.store:
        options.store.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
