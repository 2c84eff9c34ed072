"""What one real sidecar spends as one of ten thousand: their records on a real topic, made up here.

    python -m benchmarks.suites.fleet_crowd [--out FILE]

10 000 instances, 1 000 groups, two of them in each instance, 200 partitions. The sidecar reads the partitions of its
two groups, a hundred writers in each, and the one in which all say that they are there. Beside it runs a sidecar
without a fleet at the same few requests: what the fleet costs is the difference.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from benchmarks.report import stored
from benchmarks.rig.procstat import cpu_s
from benchmarks.rig.rawclient import Wire, _drive, produce_frame
from benchmarks.rig.topics import create_topics
from benchmarks.suites.fleet_live import KEY, Sidecar
from config.load import load
from config.table import to_table
from proxy.app.fleet.member import TOPIC_CONFIG
from quota.entity import ANONYMOUS, Kind
from quota.fleet.record import GroupUse, Record, Seal, encode, group_hash
from quota.fleet.timing import Timing
from quota.ledger import Ledger
from tests.lab.kafka import KafkaCluster

INSTANCES: Final = 10_000
GROUPS: Final = 1_000
GROUPS_EACH: Final = 2
PARTITIONS: Final = 200
CLIENTS: Final = (b"client-0", b"client-1")
FLEET: Final = "crowd"
TOPIC: Final = "kquota-fleet"
SECONDS: Final = 60.0
TICK_S: Final = 0.05


def group_of(path: Path, client: bytes) -> int:
    """The hash by which records name the counter of a client-id under this configuration."""
    ledger = Ledger(to_table(load(path)))
    account = ledger.account(ANONYMOUS, client.decode())
    ledger.charge(account, Kind.PRODUCE, 1, 0.0)  # the first charge leads to the counter
    group = account.meters[Kind.PRODUCE].group
    assert group is not None
    return group_hash(group.kind, group.key)


class Crowd:
    """All other instances, as far as the sidecar reads them. One thread writes their records when they are due."""

    def __init__(self, bootstrap: str, mine: list[int]) -> None:
        timing, chance = Timing(), random.Random(1)
        each = INSTANCES * GROUPS_EACH // PARTITIONS
        """Writers per partition, 100; as many to a group as instances have it, 20."""
        sharing = INSTANCES * GROUPS_EACH // GROUPS
        members = [chance.getrandbits(64) for _ in range(INSTANCES - 1)]
        presence_ms = max(timing.presence * timing.interval_ms, timing.interval_of(INSTANCES))
        self._writers: list[tuple[int, int, int | None, int]] = [(one, 0, None, presence_ms) for one in members]
        for number, group in enumerate(mine):
            at = group % PARTITIONS
            for place in range(each):
                member = members[number * each + place]
                other = group + PARTITIONS * (1 + place // sharing)  # another group of the same partition
                which = group if place < sharing - 1 else other
                self._writers.append((member, at, which, timing.interval_of(each)))
        self._due = [chance.random() * every_ms / 1000 for *_, every_ms in self._writers]
        self._bootstrap = bootstrap
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0, "log_level": 0})
        begin, seal = time.monotonic(), Seal([KEY.encode()], TOPIC, FLEET)
        while not self._done.wait(TICK_S):
            now = time.monotonic() - begin
            for place, (member, partition, group, every_ms) in enumerate(self._writers):
                if self._due[place] > now:
                    continue
                self._due[place] += every_ms / 1000
                self.written += 1
                uses = () if group is None else (GroupUse(group, 1e5, 0.04, 0.04, 0.04, 0.04),)
                name = f"orders-7c9d8f6b5-{place:05}" if group is None else ""
                record = Record(member, self.written, every_ms, False, name, uses, int(time.time() * 1000))
                producer.produce(TOPIC, encode(seal, partition, record), partition=partition)
            producer.poll(0)


def metric(sidecar: Sidecar, name: str) -> float:
    """One number of /metrics."""
    with urllib.request.urlopen(sidecar.admin + "/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])


def run() -> dict[str, Any]:
    """CPU of both sidecars without and with the crowd, in percent of a core."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster.start(1, progress=print))
        create_topics(kafka.bootstrap, {"cost": {}})
        create_topics(kafka.bootstrap, {TOPIC: TOPIC_CONFIG}, partitions=PARTITIONS)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kquota-crowd-")))
        (folder / "key").write_text(KEY)
        sidecars, wires = [], []
        for number, fleet in enumerate(
            (None, {"id": FLEET, "default_scope": "fleet", "key_file": str(folder / "key")})
        ):
            one = Sidecar(number, kafka.bootstrap, folder)
            path = folder / f"{number}.yaml"
            config = yaml.safe_load(path.read_text())
            config["quotas"] = [{"client-id": "<default>", "producer_byte_rate": 1_000_000}]
            config.pop("fleet")
            path.write_text(yaml.safe_dump(config if fleet is None else config | {"fleet": fleet}))
            stack.callback(one.end, signal.SIGKILL)
            one.start()
            sidecars.append(one)
        while not all(one.ready() for one in sidecars):
            time.sleep(0.5)
        for client in CLIENTS:
            for one in sidecars:
                host, port = one.bootstrap.split(":")
                wire = Wire((host, int(port)), "cost")
                stack.callback(wire.close)
                wire._frame = produce_frame("cost", client_id=client)
                wires.append(wire)
        pids = [one.process.pid for one in sidecars if one.process is not None]

        def percent() -> list[float]:
            before = [cpu_s(pid) for pid in pids]
            _drive(wires, 8.0, SECONDS, 5.0)
            return [round((cpu_s(pid) - was) / SECONDS * 100, 2) for pid, was in zip(pids, before, strict=True)]

        _drive(wires, 8.0, 10.0, 5.0)
        alone = percent()
        print("alone", alone, flush=True)
        crowd = Crowd(kafka.bootstrap[0], [group_of(folder / "1.yaml", client) for client in CLIENTS])
        crowd.start()
        _drive(wires, 8.0, 50.0, 5.0)  # all have said that they are there
        read, written = metric(sidecars[1], "kquota_fleet_received_bytes_total"), crowd.written
        among = percent()
        read = metric(sidecars[1], "kquota_fleet_received_bytes_total") - read
        found = {
            "instances": INSTANCES,
            "groups": GROUPS,
            "groups_each": GROUPS_EACH,
            "partitions": PARTITIONS,
            "known": metric(sidecars[1], "kquota_fleet_instances"),
            "lost": metric(sidecars[1], "kquota_fleet_lost"),
            "written_records_per_s": round((crowd.written - written) / SECONDS, 1),
            "read_bytes_per_s": round(read / SECONDS),
            "cpu_percent_alone": dict(zip(("without a fleet", "fleet of one"), alone, strict=True)),
            "cpu_percent_among_all": dict(zip(("without a fleet", "one of all"), among, strict=True)),
            "cpu_percent_of_the_fleet": round(among[1] - among[0], 2),
        }
        crowd.stop()
        return found


def main() -> None:
    """Run it, print it, store it."""
    parser = argparse.ArgumentParser(description="One real sidecar of ten thousand.")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    result = run()
    print(json.dumps(result, indent=1))
    if wanted.out is not None:
        wanted.out.write_text(stored.text(result))


if __name__ == "__main__":
    main()
