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
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.rig.rawclient import drive
from benchmarks.rig.topics import create_topics
from benchmarks.suites.fleet_cost import TOPIC as COST
from benchmarks.suites.fleet_cost import percent, sidecars_of_a_fleet, wire_of
from config.load import load
from config.table import to_table
from proxy.app.fleet.member import TOPIC_CONFIG
from quota.entity import ANONYMOUS, Kind
from quota.fleet.record import GroupUse, Record, Seal, encode, group_hash
from quota.fleet.timing import Timing
from quota.ledger import Ledger
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import FLEET_KEY

INSTANCES: Final = 10_000
GROUPS: Final = 1_000
GROUPS_EACH: Final = 2
PARTITIONS: Final = 200
CLIENTS: Final = ("client-0", "client-1")
FLEET: Final = "crowd"
TOPIC: Final = "kquota-fleet"
PER_S, SECONDS = 8.0, 60.0
TICK_S: Final = 0.05


def group_of(path: Path, client: str) -> int:
    """The hash by which records name the counter of a client-id under this configuration."""
    ledger = Ledger(to_table(load(path)))
    account = ledger.account(ANONYMOUS, client)
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
        begin, seal = time.monotonic(), Seal([FLEET_KEY.encode()], TOPIC, FLEET)
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


def run() -> dict[str, Any]:
    """CPU of both sidecars without and with the crowd, in percent of a core."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster.start(1, progress=print))
        create_topics(kafka.bootstrap, {COST: {}})
        create_topics(kafka.bootstrap, {TOPIC: TOPIC_CONFIG}, partitions=PARTITIONS)
        quotas = [{"client-id": "<default>", "producer_byte_rate": 1_000_000}]
        sidecars = sidecars_of_a_fleet(kafka.bootstrap, quotas, (False, True), stack, id=FLEET)
        wires = [wire_of(one, client, stack) for client in CLIENTS for one in sidecars]
        one_of_all = sidecars[1]

        drive(wires, PER_S, 10.0, 5.0)
        alone = percent(wires, PER_S, SECONDS, sidecars)
        print("alone", alone, flush=True)
        crowd = Crowd(kafka.bootstrap[0], [group_of(one_of_all.config, client) for client in CLIENTS])
        crowd.start()
        drive(wires, PER_S, 50.0, 5.0)  # all have said that they are there
        read, written = one_of_all.metric("kquota_fleet_received_bytes_total"), crowd.written
        among = percent(wires, PER_S, SECONDS, sidecars)
        read = one_of_all.metric("kquota_fleet_received_bytes_total") - read
        found = {
            "instances": INSTANCES,
            "groups": GROUPS,
            "groups_each": GROUPS_EACH,
            "partitions": PARTITIONS,
            "known": one_of_all.metric("kquota_fleet_instances"),
            "lost": one_of_all.metric("kquota_fleet_lost"),
            "written_records_per_s": round((crowd.written - written) / SECONDS, 1),
            "read_bytes_per_s": round(read / SECONDS),
            "cpu_percent_alone": {"without a fleet": round(alone[0], 2), "fleet of one": round(alone[1], 2)},
            "cpu_percent_among_all": {"without a fleet": round(among[0], 2), "one of all": round(among[1], 2)},
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
