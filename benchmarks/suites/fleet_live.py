"""One limit for eight real sidecars: a real broker, real clients, and what can happen to a fleet.

    python -m benchmarks.suites.fleet_live [--out FILE] [--sidecars N]

Producers of librdkafka (which ignores throttle times) send as much as they can through sidecars of their own. Each
second what went through is read at the admin ports. Every phase says the rate of the whole fleet over the limit in its
second half, the highest second and five seconds in it, how fair it was, and the most that shares added up to.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.report.stats import jain
from benchmarks.rig.procstat import cpu_s
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import answered

LIMIT: Final = 2_000_000
TOPIC: Final = "load"
VALUE: Final = b"x" * 5000


class Fleet:
    """Sidecars that lose records on request, and clients of each."""

    def __init__(self, count: int, bootstrap: Sequence[str], stack: ExitStack) -> None:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kquota-fleet-")))
        self._faults = [folder / f"{number}.faults" for number in range(count)]
        quotas = [{"client-id": "etl", "producer_byte_rate": LIMIT}]
        settings: dict[str, Any] = {"fleet": {"default_scope": "fleet"}, "log": {"format": "json"}}
        self.sidecars = []
        for faults in self._faults:
            before = [sys.executable, "-m", "benchmarks.rig.lossy_sidecar", str(faults)]
            running = sidecar(bootstrap, quotas, before=before, broker_ports=6, drain_timeout_s=3, **settings)
            self.sidecars.append(stack.enter_context(running))

    def suffer(self, first: int = 0, **faults: object) -> None:
        """From now on records of the topic are lost, late, or cut off (benchmarks/rig/lossy_sidecar.py)."""
        for file in self._faults[first:]:
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(faults))
            fresh.replace(file)


def group_of(one: Sidecar) -> dict[str, Any] | None:
    """The counter of the load; None before anything was charged, or while it is down."""
    found = answered(lambda: one.get("/quotas")) or {}
    return next((group for group in found.get("groups", ()) if group["kind"] == "produce"), None)


def alive(one: Sidecar) -> bool:
    """Whether the process runs."""
    return one.process.poll() is None


class Load:
    """What a sidecar's clients want, in bytes/s; infinity: as much as they can."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "etl",
                "acks": 1,
                "linger.ms": 0,
                "batch.size": 20_000,
                "batch.num.messages": 4,
                "queue.buffering.max.messages": 40,
                "message.timeout.ms": 300_000,
                "socket.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self.rate = 0.0
        self._done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._done:
            now = time.monotonic()
            if not self.rate or now < due:
                self._producer.poll(0.02)
                due = max(due, now - 0.5)
                continue
            try:
                self._producer.produce(TOPIC, VALUE)
                self._producer.poll(0)
                due += len(VALUE) / self.rate
            except BufferError:
                self._producer.poll(0.02)

    def stop(self) -> None:
        """End it."""
        self._done = True
        self._thread.join()


@dataclass
class Phase:
    """What was measured in one phase; rates are of the whole fleet, over the limit."""

    name: str
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """The sum of the shares, each second."""
    steady: float = 0.0
    """Mean of the second half."""
    highest_1s: float = 0.0
    highest_5s: float = 0.0
    jain: float = 0.0
    """Of what went through the sidecars with unlimited load, in the second half."""
    until_95_s: float | None = None
    """From the beginning until a second has at least 95 % of the limit."""
    most_shares: float = 0.0


class Bench:
    """The fleet and its load."""

    def __init__(self, sidecars: list[Sidecar], loads: list[Load]) -> None:
        self.sidecars = sidecars
        self.loads = loads
        self.phases: list[Phase] = []
        self._before = [0.0] * len(sidecars)
        self._last = [0.0] * len(sidecars)
        self._shares = [0.0] * len(sidecars)

    def look(self) -> tuple[list[float], list[float]]:
        """What went through each so far, over restarts too, and each share."""
        for at, one in enumerate(self.sidecars):
            group = group_of(one)
            if group is None:  # it is down, or had no time to answer: as far as is known nothing has changed
                if not alive(one):
                    self._shares[at] = 0.0
                continue
            amount = group["totals"]["amount"]
            if amount < self._last[at]:  # started again
                self._before[at] += self._last[at]
            self._last[at] = amount
            self._shares[at] = 0.0 if group["fleet"] is None else group["fleet"]["share"]
        return [b + a for b, a in zip(self._before, self._last, strict=True)], list(self._shares)

    def phase(self, name: str, seconds: int, rates: Sequence[float], during: Callable[[], None] | None = None) -> None:
        """Let the load be `rates` for so long, while something happens."""
        for load, rate in zip(self.loads, rates, strict=True):
            load.rate = rate
        found = Phase(name)
        thread = threading.Thread(target=during or bool)
        thread.start()
        start = at = time.monotonic()
        before, _ = self.look()
        half = before
        for second in range(seconds):
            time.sleep(max(start + second + 1 - time.monotonic(), 0.0))
            amounts, shares = self.look()
            now = time.monotonic()
            found.seconds.append(round((sum(amounts) - sum(before)) / (now - at) / LIMIT, 3))
            found.shares.append(round(sum(shares), 4))
            before, at = amounts, now
            if second + 1 == seconds // 2:
                half, half_at = amounts, now
        found.steady = round((sum(before) - sum(half)) / (at - half_at) / LIMIT, 4)
        found.highest_1s = max(found.seconds)
        fives = [sum(found.seconds[one : one + 5]) / 5 for one in range(len(found.seconds) - 4)]
        found.highest_5s = round(max(fives), 3)
        hungry = [alive(one) and rate == float("inf") for one, rate in zip(self.sidecars, rates, strict=True)]
        used = [b - a for a, b, counts in zip(half, before, hungry, strict=True) if counts]
        found.jain = round(jain(used), 4)
        found.until_95_s = next((one + 1.0 for one, rate in enumerate(found.seconds) if rate >= 0.95), None)
        found.most_shares = max(found.shares)
        thread.join()
        self.phases.append(found)
        print(json.dumps({key: value for key, value in asdict(found).items() if key != "shares"}), flush=True)


def run(count: int) -> dict[str, Any]:
    """All phases."""
    everything = float("inf")
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster.start(1, progress=print))
        fleet = Fleet(count, kafka.bootstrap, stack)
        sidecars = fleet.sidecars
        time.sleep(3)
        cpu = [cpu_s(one.pid) for one in sidecars]
        time.sleep(10)
        idle_cpu = [(cpu_s(one.pid) - was) / 10 * 100 for one, was in zip(sidecars, cpu, strict=True)]
        loads = [Load(one.bootstrap) for one in sidecars]
        bench = Bench(sidecars, loads)
        half = count // 2

        def only(*at: int) -> list[float]:
            return [everything if one in at else 0.0 for one in range(count)]

        all_clients = [everything] * count

        def kill_half() -> None:
            for one in sidecars[half:]:
                one.kill()

        def start_half() -> None:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(Sidecar.start_again, sidecars[half:]))

        def rolling() -> None:
            for one in sidecars:
                one.stop()
                one.start_again()

        def restart_broker() -> None:
            kafka.stop_broker(1)
            kafka.start_broker(1)

        def delete_topic() -> None:
            from kafka import KafkaAdminClient

            admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
            admin.delete_topics(["kquota-fleet"])
            admin.close()

        bench.phase("one alone", 14, only(0))
        bench.phase("another alone", 14, only(1))
        bench.phase("all", 30, all_clients)
        bench.phase("half of all, the others a fiftieth each", 24, [everything] * half + [LIMIT / 50] * (count - half))
        bench.phase("the other half", 20, [0.0] * half + [everything] * (count - half))
        bench.phase("all, half killed (-9) at the beginning", 30, all_clients, kill_half)
        bench.phase("the killed ones start again", 24, all_clients, start_half)
        bench.phase("the topic is deleted", 24, all_clients, delete_topic)
        bench.phase("the broker restarts", 30, all_clients, restart_broker)
        bench.phase("rolling restart of all", 40, all_clients, rolling)
        bench.phase("afterwards", 24, all_clients)
        hear_badly, cut_half_off = partial(fleet.suffer, lost=0.15, late=0.15), partial(fleet.suffer, half, cut=True)
        bench.phase("30 % of the records lost or late by 1 to 3 s", 40, all_clients, hear_badly)
        bench.phase("and half of all alone want everything", 24, only(*range(half)))
        bench.phase("and the other half alone", 24, only(*range(half, count)))
        bench.phase("records arrive again", 20, all_clients, fleet.suffer)
        bench.phase("half are cut off from the topic", 60, all_clients, cut_half_off)
        bench.phase("they are heard again", 40, all_clients, fleet.suffer)
        for load in loads:
            load.stop()
        return {
            "limit_bytes_per_s": LIMIT,
            "sidecars": count,
            "idle_cpu_percent": [round(one, 2) for one in idle_cpu],
            "phases": [asdict(phase) for phase in bench.phases],
        }


def main() -> None:
    """Run it, print each phase, store all."""
    parser = argparse.ArgumentParser(description="One limit for several real sidecars.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sidecars", type=int, default=8)
    wanted = parser.parse_args()
    result = run(wanted.sidecars)
    print(json.dumps({name: value for name, value in result.items() if name != "phases"}))
    if wanted.out is not None:
        wanted.out.write_text(stored.text(result))


if __name__ == "__main__":
    main()
