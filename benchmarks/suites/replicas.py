"""A replica goes, its clients go on: two sidecars behind one address, HAProxy's, which both advertise.

All clients begin on the first replica. In the middle of a run it is `rolled` (SIGTERM, then started again), `killed`
(SIGKILL, not started again) or `scaled away` (SIGTERM, likewise). Producers offer numbered records at a steady pace,
members of groups read such records; all settings are the libraries' own, but that kafka-go's producer waits for
acknowledgements. What is measured is the longest time in which no record came, for producers at the broker; anomalies
of their histories; and errors that the application got, for Java and kafkajs in the log. What passes between two
records in the seconds before (kafka-go sends once a second) is taken off. `python -m benchmarks.suites.replicas`.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from benchmarks.evasion.honest import command_of, finish, go_command, history_of, read_numbers
from benchmarks.evasion.run import start
from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine
from benchmarks.rig.topics import create_topics
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.javalog import tool_arguments
from tests.lab.kafka.ports import free_port_run, free_ports
from tests.lab.kafka.tools import QUICK_JVM, TOOL_HEAP, java_command
from tests.support.clients import is_trouble, record
from tests.support.go_tools import NoGoError
from tests.support.haproxy import ADDRESS, haproxy
from tests.support.history import check
from tests.support.kept_builds import kept
from tests.support.sidecars import Sidecar, sidecar

EVENTS: Final = ("rolled", "killed", "scaled away")
HOSTS: Final = ("127.0.0.2", "127.0.0.3")
ROLES: Final = ("producer", "group member")
PER_S = 50
RECORD_BYTES = 200
TOGETHER = 5
"""Clients that share a run: JVMs that start at once must be ready at `EVENT_AT_S`."""
EVENT_AT_S = 20.0
JAVA: Final = Path(__file__).parents[2] / "tests/java/Paced.java"
NODE: Final = Path(__file__).parents[2] / "tests/node/honest"

Work = dict[str, Any]


class NoClientError(Exception):
    """A client cannot be run here; says why."""


def _python(library: str) -> Callable[[Work], list[str]]:
    def command(work: Work) -> list[str]:
        work["library"] = library
        return command_of(library)

    return command


def _go(package: str, *tags: str) -> Callable[[Work], list[str]]:
    def command(_work: Work) -> list[str]:
        try:
            return go_command(package, *tags)
        except NoGoError as error:
            raise NoClientError(str(error)) from error

    return command


def java_client(version: str, *settings: str) -> Callable[[Work], list[str]]:
    """Kafka's Java client of a release, run from source: that takes a JDK."""

    def command(work: Work) -> list[str]:
        if shutil.which("javac") is None:
            raise NoClientError("no JDK: this Java cannot run a source file")
        names = ("topic", "per_s", "seconds", "record_bytes")
        arguments = ["read" if work["reads"] else "produce", ",".join(work["bootstrap"])]
        arguments += [str(work[name]) for name in names] + [f"client.id={work['client_id']}", *settings]
        role = f"group.id=group-{work['topic']}" if work["reads"] else f"buffer.memory={work['buffer_bytes']}"
        jvm = (*QUICK_JVM, *TOOL_HEAP, *tool_arguments(version))
        return java_command(str(JAVA), [*arguments, role], version, jvm)

    return command


def _kafkajs(_work: Work) -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NoClientError("no Node.js with npm on PATH")
    files = [NODE / name for name in ("package.json", "package-lock.json", "main.js")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        done = subprocess.run([npm, "ci", "--ignore-scripts"], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise NoClientError(f"npm ci failed (no network?):\n{done.stderr}")

    return [node, str(kept("node", f"kafkajs-{digest}", install) / "main.js")]


REBOOTSTRAP: Final = "metadata.recovery.strategy=rebootstrap"
"""From Kafka 3.8 on; the default from 4.0 on."""
CLIENTS: Final[Mapping[str, Callable[[Work], list[str]]]] = {
    "Java 2.8": java_client("2.8.2"),
    "Java 3.7": java_client("3.7.2"),
    "Java 3.9": java_client("3.9.1"),
    "Java 3.9, rebootstrap": java_client("3.9.1", REBOOTSTRAP),
    "Java 4.2": java_client("4.2.0"),
    "Java 4.4": java_client("4.4.0"),
    "librdkafka 1.9": _go("librdkafka", "v1"),
    "librdkafka 2.8": _go("librdkafka"),
    "librdkafka 2.16": _python("confluent-kafka"),
    "sarama 1.61": _go("sarama"),
    "franz-go 1.22": _go("franz"),
    "kafka-go 0.4": _go("segment"),
    "kafkajs 2.2": _kafkajs,
    "kafka-python 3.0": _python("kafka-python"),
    "aiokafka 0.14": _python("aiokafka"),
}


@dataclass
class Outcome:
    """What one client noticed."""

    client: str
    role: str
    event: str
    missing: str = ""
    """Why it could not be tried."""
    gap_s: float | None = None
    """The longest time without a record from a second before the event on, less the longest in the four seconds before
    that; None: none came after it."""
    records: int = 0
    anomalies: dict[str, int] = field(default_factory=dict)
    """By kind (tests/support/history.py)."""
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
    cluster: KafkaCluster, event: str, clients: Sequence[str], after_s: float, roles: Sequence[str] = ROLES
) -> list[Outcome]:
    """One event, seen by these clients at once, each in these roles."""
    seconds = EVENT_AT_S + after_s
    count = int((seconds - 8) * PER_S)
    outcomes = {(name, role): Outcome(name, role, event) for name in clients for role in roles}
    topics = {key: re.sub(r"\W+", "-", f"{event} {uuid4().hex[:8]} {' '.join(key)}") for key in outcomes}
    with replicas(cluster) as (one, _, bootstrap):
        commands: dict[tuple[str, str], tuple[list[str], Work]] = {}
        for (name, role), topic in topics.items():
            work: Work = {"bootstrap": [bootstrap], "topic": topic, "client_id": topic, "per_s": PER_S}
            work |= {"seconds": seconds, "record_bytes": RECORD_BYTES, "buffer_bytes": 1_000_000}
            work["reads"] = count if role == "group member" else 0
            try:
                commands[name, role] = CLIENTS[name](work), work
            except NoClientError as error:
                outcomes[name, role].missing = str(error)
        appended = {"message.timestamp.type": "LogAppendTime"}
        create_topics(cluster.bootstrap, {topics[key]: appended for key in commands})
        began = time.monotonic()
        feeder = threading.Thread(target=_feed, args=(cluster, [work for _, work in commands.values()], count))
        feeder.start()
        started = {key: start(*command) for key, command in commands.items()}
        time.sleep(max(0.0, began + EVENT_AT_S - time.monotonic()))
        at_s = time.time()
        happen(event, one)
        for key, client in started.items():
            outcome, answer = outcomes[key], finish(client)
            outcome.errors = [_short(text, topics[key]) for text in answer["errors"] if is_trouble(text)]
            if outcome.role == "producer":
                read = read_numbers(cluster.bootstrap, topics[key])
                sent, acknowledged = answer["sent"], answer["acked"]
            else:  # one producer has filled the topic, directly: each number is its offset
                read = [(one, one, int(at * 1000)) for one, at in zip(answer["read"], answer["times"], strict=True)]
                sent, acknowledged = count, range(count)
            outcome.gap_s = _gap([at_ms / 1000 for _, _, at_ms in read], at_s)
            outcome.records = len({number for _, number, _ in read})
            found = check(history_of(sent, acknowledged, read))
            outcome.anomalies = {kind: len(few) for kind, few in found.items() if kind != "unanswered"}
        feeder.join()
    return list(outcomes.values())


def _short(text: str, client: str) -> str:
    """An error without what differs from run to run."""
    text = re.sub(r"^\[\d{4}-[^\]]*\] ", "", text.replace(client, "CLIENT"))
    return re.sub(r"127\.0\.0\.\d+:\d+", "ADDRESS", re.sub(r"after \d+ms", "after N ms", text))[:150]


def _feed(cluster: KafkaCluster, works: Sequence[Work], count: int) -> None:
    """Records for the members, directly to the broker."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": ",".join(cluster.bootstrap), "linger.ms": 0})
    begin = time.monotonic()
    topics = [work["topic"] for work in works if work["reads"]]
    for number in range(count):
        producer.poll(0)
        time.sleep(max(0.0, begin + number / PER_S - time.monotonic()))
        for topic in topics:
            producer.produce(topic, record(number, RECORD_BYTES), partition=0)
    producer.flush(60)


def _gap(times: Sequence[float], event_at: float) -> float | None:
    begin = event_at - 1.0
    gaps = [(later, later - earlier) for earlier, later in pairwise(times)]
    usual_s = max((gap for later, gap in gaps if begin - 4.0 <= later < begin), default=0.0)
    worst_s = max((gap for later, gap in gaps if later >= begin), default=0.0)
    return max(worst_s - usual_s, 0.0) if times and times[-1] > event_at + 1.0 else None


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a row for each client, a column for each event."""
    events = list(dict.fromkeys(one.event for one in outcomes))
    lines = [f"| client | {' | '.join(events)} |", "|---|" + "---|" * len(events)]
    by_client: dict[tuple[str, str], dict[str, Outcome]] = {}
    for one in outcomes:
        by_client.setdefault((one.client, one.role), {})[one.event] = one
    for (client, role), seen in by_client.items():
        cells = [_cell(seen[event]) if event in seen else "" for event in events]
        lines.append(f"| {client}, {role} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(one: Outcome) -> str:
    if one.missing:
        return "not tried"
    found = one.anomalies | {"errors": len(one.errors)}
    gap = "stayed away" if one.gap_s is None else f"{one.gap_s:.1f} s"
    return ", ".join([gap, *(f"{count} {what}" for what, count in found.items() if count)])


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.replicas", description=__doc__)
    arguments.add_argument("--events", nargs="+", default=EVENTS, choices=EVENTS)
    arguments.add_argument("--clients", nargs="+", default=[*CLIENTS], choices=CLIENTS)
    arguments.add_argument("--after", type=float, default=30.0, help="seconds from the event to the end")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    outcomes: list[Outcome] = []
    with KafkaCluster.start(1) as cluster:
        for event in options.events:
            runs = -(-len(options.clients) // TOGETHER)
            for number in range(runs):
                outcomes += run(cluster, event, options.clients[number::runs], options.after)
                outcomes.sort(key=lambda one: (options.clients.index(one.client), ROLES.index(one.role)))
                print(table(outcomes), flush=True)
    for one in outcomes:
        if one.errors or one.missing:
            print(f"{one.client}, {one.role}, {one.event}: {one.missing or Counter(one.errors).most_common(3)}")
    if options.json:
        rows = [asdict(one) | {"errors": Counter(one.errors).most_common(3)} for one in outcomes]
        result = {"machine": describe_machine(), "project": describe_project(), "outcomes": rows}
        options.json.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
