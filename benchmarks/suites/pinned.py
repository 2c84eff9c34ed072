"""One limit over two instances, each on a core of its own: is it kept, and what does a byte cost next to one instance?

Producers of Kafka's ProducerPerformance send what they can, in turns: one through one instance, two through one, two
through an instance each. CPU is that of the instances. Then a limit applies to both: bytes are counted from 30 s on,
the first window and the move of shares left out. `python -m benchmarks.suites.pinned`.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig import javatools
from benchmarks.rig.procstat import cpu_s, describe_machine
from benchmarks.rig.runner import BROKER_SETTINGS
from benchmarks.rig.topics import create_topics
from benchmarks.suites.plan import RECORD_BYTES
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.tools import QUICK_JVM
from tests.support.sidecars import Sidecar, sidecar

CLIENT_ID, TOPIC = "etl", "pinned"
RECORDS = 200_000
LIMIT_BYTES_PER_S = 10_000_000
SETTLE_S, MEASURED_S = 30.0, 40.0
CORES: Final = (0, 1)
WAYS: Final = {
    "one instance, one producer": (1, 1),
    "one instance, two producers": (1, 2),
    "two instances, two producers": (2, 2),
}
"""Instances and producers."""


@contextmanager
def instances(bootstrap: Sequence[str], count: int, limit: float) -> Iterator[list[Sidecar]]:
    """So many of one fleet, each on its core."""
    quotas = [{"client-id": CLIENT_ID, "producer_byte_rate": limit}]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                sidecar(
                    bootstrap,
                    quotas,
                    before=["taskset", "-c", str(core), "/usr/bin/env", "KQUOTA_PURE=0"],
                    fleet={"default_scope": "fleet"},
                    log={"level": "info", "format": "json"},
                )
            )
            for core in CORES[:count]
        ]


def produced(running: Sequence[Sidecar]) -> float:
    """Bytes of the group so far."""
    return sum(one.metric("kquota_bytes_total", kind="produce", client_id=CLIENT_ID) for one in running)


def load(running: Sequence[Sidecar], records: int, producers: int = 2) -> None:
    """So many producers, to their end."""
    settings = (f"client.id={CLIENT_ID}",)
    with ThreadPoolExecutor(producers) as pool:
        tasks = [
            pool.submit(
                javatools.produce,
                running[number % len(running)].bootstrap,
                TOPIC,
                records,
                jvm=QUICK_JVM,
                settings=settings,
                timeout_s=300.0,
            )
            for number in range(producers)
        ]
        for task in tasks:
            task.result()


def gb_per_cpu_s(running: Sequence[Sidecar], producers: int) -> float:
    """Without a limit in the way."""
    before_s, before = sum(cpu_s(one.pid) for one in running), produced(running)
    load(running, RECORDS, producers)
    return (produced(running) - before) / 1e9 / (sum(cpu_s(one.pid) for one in running) - before_s)


def ratios(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(some, others, strict=True)]


def limited(running: Sequence[Sidecar]) -> float:
    """Bytes per second over the limit, in `MEASURED_S`."""
    records = int(LIMIT_BYTES_PER_S * (SETTLE_S + MEASURED_S) / RECORD_BYTES / 2 * 1.3)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(load, running, records)
        time.sleep(SETTLE_S)
        began, before = time.monotonic(), produced(running)
        time.sleep(MEASURED_S)
        rate = (produced(running) - before) / (time.monotonic() - began)
        work.result()
    return rate / LIMIT_BYTES_PER_S


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0: measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.pinned", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, help="the file to write")
    options = parser.parse_args(argv)
    result: dict[str, Any] = {
        "what": "pinned instances",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "project": describe_project(),
        "machine": describe_machine(),
    }
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with KafkaCluster.start(1, overrides=BROKER_SETTINGS) as cluster:
        create_topics(cluster.bootstrap, {TOPIC: {"retention.bytes": "100000000", "segment.bytes": "50000000"}})
        with (
            instances(cluster.bootstrap, 1, 1e12) as alone,
            instances(cluster.bootstrap, 2, 1e12) as both,
        ):
            for ways in (alone, both):
                load(ways, RECORDS // 2)
            for number in range(options.rounds):
                for name in WAYS if number % 2 == 0 else reversed(WAYS):
                    count, producers = WAYS[name]
                    found[name].append(gb_per_cpu_s(alone if count == 1 else both, producers))
                    print(f"{name}: {found[name][-1]:.3f} GB per CPU second", flush=True)
        with instances(cluster.bootstrap, 2, LIMIT_BYTES_PER_S) as both:
            rate = limited(both)
            print(f"rate / limit over both: {rate:.4f}", flush=True)
    grown, split = (ratios(found["two instances, two producers"], found[name]) for name in list(WAYS)[:2])
    print(f"work per CPU second, two instances / one: {statistics.median(grown):.3f} with a producer each, ", end="")
    print(f"{statistics.median(split):.3f} where one instance has both producers")
    result |= {"gb_per_cpu_s": found, "ratios_a_producer_each": grown, "ratios_same_load": split}
    result |= {"rate_over_limit": rate, "limit_bytes_per_s": LIMIT_BYTES_PER_S, "measured_s": MEASURED_S}
    if options.store:
        options.store.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
