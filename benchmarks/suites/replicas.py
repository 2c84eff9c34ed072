"""A replica goes, its clients go on: two sidecars behind one address, HAProxy's, which both advertise.

All clients begin on the first replica. In the middle of a run it is `rolled` (SIGTERM, then started again), `killed`
(SIGKILL, not started again) or `scaled away` (SIGTERM, likewise). Producers offer numbered records at a steady pace,
members of groups read such records; all settings are the libraries' own. What is measured is the longest time in which
no record came, for producers at the broker; records acknowledged and not there, or there twice (consumers: not read, or
read twice); and errors that the application was told. What passes between two records in the seconds before (the
console producer sends once a second) is taken off. `python -m benchmarks.suites.replicas`.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks.evasion.honest import GO_LIBRARIES, Honest, command_of, finish, start
from benchmarks.evasion.honest_client import LIBRARIES, OLDER
from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_port_run, free_ports
from tests.support.clients import CONSUMERS, Load, in_background, record
from tests.support.haproxy import ADDRESS, haproxy
from tests.support.sidecars import Sidecar, sidecar

EVENTS: Final = ("rolled", "killed", "scaled away")
PRODUCERS: Final = (*LIBRARIES, *OLDER, *GO_LIBRARIES)
MEMBERS: Final = ("kafka-python", "aiokafka", "confluent-kafka", "java-console")
HOSTS: Final = ("127.0.0.2", "127.0.0.3")
PER_S = 50
RECORD_BYTES = 200
EVENT_AT_S = 12.0
"""Java programs take some seconds to start."""


@dataclass
class Outcome:
    """What one client noticed."""

    client: str
    role: str
    event: str
    gap_s: float | None = None
    """The longest time without a record from a second before the event on, less the longest in the four seconds before
    that; None: none came after it."""
    records: int = 0
    lost: int = 0
    repeated: int = 0
    errors: list[str] = field(default_factory=list)


@contextmanager
def replicas(cluster: KafkaCluster) -> Iterator[tuple[Sidecar, Sidecar, str]]:
    """Two sidecars on the same ports of two addresses, and the address before both."""
    (port,) = free_ports(1)
    first = free_port_run(4, avoid={port})
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(
                sidecar(
                    cluster.bootstrap,
                    listen={
                        "host": host,
                        "port": port,
                        "broker_ports": f"{first}-{first + 3}",
                        "advertised": {"host": ADDRESS},
                        "proxy_protocol_from": [f"{ADDRESS}/32"],
                    },
                    drain_timeout_s=10,
                )
            )
            for host in HOSTS
        )
        yield one, two, stack.enter_context(haproxy(one, "send-proxy-v2", two))


def happen(event: str, replica: Sidecar) -> None:
    """Let it happen to a replica."""
    if event == "killed":
        replica.kill()
        return
    replica.stop()
    if event == "rolled":
        replica.start_again()
    else:
        replica.killed = True  # nothing more is expected of it


def run(
    cluster: KafkaCluster, event: str, producers: Sequence[str], members: Sequence[str], after_s: float
) -> list[Outcome]:
    """One event, seen by all clients at once."""
    seconds = EVENT_AT_S + after_s
    prefix = event.replace(" ", "-")
    outcomes = []
    _create(cluster, [f"{prefix}-{name}" for name in producers] + [f"{prefix}-read-{name}" for name in members])
    with replicas(cluster) as (one, _, bootstrap):
        began = time.monotonic()
        count = int((seconds - 4) * PER_S)
        loads = {
            name: Load([bootstrap], f"{prefix}-read-{name}", f"{prefix}-{name}", count, RECORD_BYTES, seconds + 60)
            for name in members
        }
        feeder = threading.Thread(target=_feed, args=(cluster, loads.values(), count))
        feeder.start()
        reading = {name: in_background(CONSUMERS[name], load) for name, load in loads.items()}
        sending = {}
        for name in producers:
            topic = f"{prefix}-{name}"
            work = {"bootstrap": [bootstrap], "topic": topic, "client_id": topic, "per_s": PER_S, "seconds": seconds}
            work |= {"record_bytes": RECORD_BYTES, "buffer_bytes": 1_000_000}
            sending[name] = start(command_of(name), work | ({} if name in GO_LIBRARIES else {"library": name}))
        time.sleep(max(0.0, began + EVENT_AT_S - time.monotonic()))
        at_s, wall_s = time.monotonic(), time.time()
        happen(event, one)
        for name, client in sending.items():
            told = Honest(name)
            acknowledged = finish(told, client)
            found = _found(cluster.bootstrap, f"{prefix}-{name}")
            numbers = Counter(number for _, number in found)
            times = [when / 1000 for when, _ in found]
            outcomes.append(
                Outcome(
                    name,
                    "producer",
                    event,
                    _gap(times, wall_s),
                    len(numbers),
                    sum(number not in numbers for number in acknowledged),
                    sum(times > 1 for times in numbers.values()),
                    told.errors,
                )
            )
        for name, future in reading.items():
            timeline = future.result(seconds + 120)
            numbers = Counter(timeline.numbers)
            lost = count - len(numbers)
            twice = sum(times > 1 for times in numbers.values())
            gap_s = _gap([when for when, _ in timeline.points], at_s)
            outcomes.append(Outcome(name, "group member", event, gap_s, len(numbers), lost, twice, timeline.errors))
        feeder.join()
    return outcomes


def _create(cluster: KafkaCluster, topics: Sequence[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": ",".join(cluster.bootstrap)})
    told = {"message.timestamp.type": "LogAppendTime"}
    for done in admin.create_topics([NewTopic(topic, 1, 1, config=told) for topic in topics]).values():
        done.result(30)


def _feed(cluster: KafkaCluster, loads: Any, count: int) -> None:
    """Records for the members, directly to the broker."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": ",".join(cluster.bootstrap), "linger.ms": 0})
    begin = time.monotonic()
    for number in range(count):
        producer.poll(0)
        time.sleep(max(0.0, begin + number / PER_S - time.monotonic()))
        for load in loads:
            producer.produce(load.topic, record(number, RECORD_BYTES), partition=0)
    producer.flush(60)


def _gap(times: Sequence[float], event_at: float) -> float | None:
    begin = event_at - 1.0
    gaps = [(later, later - earlier) for earlier, later in pairwise(times)]
    usual_s = max((gap for later, gap in gaps if begin - 4.0 <= later < begin), default=0.0)
    worst_s = max((gap for later, gap in gaps if later >= begin), default=0.0)
    return max(worst_s - usual_s, 0.0) if times and times[-1] > event_at + 1.0 else None


def _found(bootstrap: Sequence[str], topic: str) -> list[tuple[int, int]]:
    """(when it was appended, number) of all records in a topic."""
    from kafka import KafkaConsumer, TopicPartition

    with KafkaConsumer(
        bootstrap_servers=list(bootstrap), auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end, found = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [(one.timestamp, int(one.value[:12])) for one in records]
        return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a row for each client, a column for each event."""
    events = list(dict.fromkeys(one.event for one in outcomes))
    lines = [f"| client | {' | '.join(events)} |", "|---|" + "---|" * len(events)]
    by_client: dict[tuple[str, str], dict[str, Outcome]] = {}
    for one in outcomes:
        by_client.setdefault((one.client, one.role), {})[one.event] = one
    for (client, role), seen in by_client.items():
        lines.append(f"| {client}, {role} | {' | '.join(_cell(seen[event]) for event in events)} |")
    return "\n".join(lines)


def _cell(one: Outcome) -> str:
    found = {"lost": one.lost, "twice": one.repeated, "errors": len(one.errors)}
    gap = "stayed away" if one.gap_s is None else f"{one.gap_s:.1f} s"
    return ", ".join([gap, *(f"{count} {what}" for what, count in found.items() if count)])


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.replicas", description=__doc__)
    arguments.add_argument("--events", nargs="+", default=EVENTS, choices=EVENTS)
    arguments.add_argument("--producers", nargs="*", default=PRODUCERS, choices=PRODUCERS)
    arguments.add_argument("--members", nargs="*", default=MEMBERS, choices=MEMBERS)
    arguments.add_argument("--after", type=float, default=30.0, help="seconds from the event to the end")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    outcomes: list[Outcome] = []
    with KafkaCluster.start(1) as cluster:
        for event in options.events:
            outcomes += run(cluster, event, options.producers, options.members, options.after)
            print(table(outcomes), flush=True)
    for one in outcomes:
        if one.errors:
            print(f"{one.client}, {one.role}, {one.event}: {Counter(one.errors).most_common(3)}")
    if options.json:
        rows = [asdict(one) for one in outcomes]
        result = {"machine": describe_machine(), "project": describe_project(), "outcomes": rows}
        options.json.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
