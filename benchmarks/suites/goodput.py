"""What a limit gets done when N × requests under way × request ÷ limit is longer than the clients' timers.

Producers of one client-id, each with a partition of its own and always so many records of one request under way, share
a limit: through a sidecar, or under the broker's own quota (`--broker`). Rows may run side by side (`--at-once`), each
with a client-id and a sidecar of its own. Measured: distinct acknowledged bytes per
second ÷ limit after the first window, bytes charged per distinct byte in the log, duplicates in the log, records given
up, requests refused by the sidecar. `python -m benchmarks.suites.goodput`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from kafka import KafkaAdminClient

from benchmarks.evasion.honest import go_command
from benchmarks.report import stored
from benchmarks.report.measured import describe_project, in_words
from benchmarks.rig.procstat import describe_machine
from benchmarks.rig.tls import FROM_CLIENT, Files, Tls
from benchmarks.rig.topics import create_topics
from benchmarks.suites import goodput_apps
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.javalog import tool_arguments
from tests.lab.kafka.tools import QUICK_JVM, java_command
from tests.support.raw_client import set_brokers_quota
from tests.support.sidecars import sidecar

WINDOW_S = 11.0
"""An empty window lets so many seconds' worth pass at once: goodput is measured after it."""
STAGGER_S = 1.5
"""Between the starts of rows that run side by side."""
RESULTS = Path("benchmarks/results")
JAVA: Final = Path(__file__).parents[2] / "tests/java/Crowd.java"
JAVA_VERSION: Final = "4.2.0"


@dataclass(frozen=True)
class Row:
    """One group of producers."""

    library: str
    producers: int
    under_way: int
    timeout_s: float
    """Of requests, on the wire and in the client."""
    seconds: float
    limit: int = 200_000
    record_bytes: int = 256_000
    idempotent: bool = True
    life_s: float = 120.0
    """A record is given up after this time."""
    version: str = ""
    """Of Java's client; "": `JAVA_VERSION`."""
    transactions: bool = False
    """As many records as are under way are one transaction."""
    wants: int = 0
    """Bytes per second that all of them send at most; 0: as many as they can."""
    tls: bool = False
    """Between clients and the sidecar; not measured at the broker."""

    @property
    def wait_s(self) -> float:
        """A round of all of them, at the limit."""
        return self.producers * self.under_way * self.record_bytes / self.limit

    def __str__(self) -> str:
        library = f"{self.library} {self.version}".strip()
        if self.library == "Streams":
            library += f" with {self.under_way} MB"
        if self.library in goodput_apps.CLIENTS:
            return f"{self.producers} of {library}, {self.limit / 1000:g} kB/s"
        kind = "transactional" if self.transactions else "idempotent" if self.idempotent else "plain"
        wants = f", wants {self.wants / self.limit:g} limits" if self.wants else ""
        tls = ", TLS" if self.tls else ""
        return f"{self.producers} {library}, {kind}, {self.under_way} under way, {self.timeout_s:g} s{wants}{tls}"

    @property
    def pause_s(self) -> float:
        """Between two records of a producer, at least."""
        return self.producers * self.record_bytes / self.wants if self.wants else 0.0


@dataclass
class Seen:
    """What became of it."""

    row: dict[str, Any]
    at: str
    tls: Tls | None = None
    """How clients connect to the sidecar; None: in plaintext."""
    acked: list[list[float]] = field(default_factory=list)
    """[seconds after the start, producer, number] of each record."""
    given_up: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """The reason that the library gives, if any."""
    timeouts: int = 0
    """Lines that a client logs about its requests' timeouts."""
    log_lines: int = 0
    """Warnings and errors of Java, all lines of librdkafka."""
    stored: int = 0
    distinct: int = 0
    """Records in the topic."""
    charged_bytes: float = 0.0
    refused: int = 0
    rebalances: int = 0
    """How often members of a group joined it again, or instances of Streams did."""
    thrown_out: int = 0
    """Members whose heartbeats came too late for their broker."""
    lasted_s: float = 0.0
    """From the first record on; 0: the row's time."""
    connections: int = 0
    """That the sidecar has accepted."""
    load: float = 0.0
    """The machine's, over the last minute."""

    @property
    def goodput(self) -> float:
        """Distinct acknowledged bytes per second after the first window, over the limit."""
        row = Row(**self.row)
        seconds = self.lasted_s or row.seconds
        distinct = {(one, number) for at_s, one, number in self.acked if WINDOW_S <= at_s <= seconds}
        return len(distinct) * row.record_bytes / (seconds - WINDOW_S) / row.limit


ROWS: Final = (
    Row("librdkafka", 16, 5, 30.0, 150.0),
    Row("librdkafka", 16, 1, 10.0, 90.0, idempotent=False),
    Row("librdkafka", 40, 1, 30.0, 150.0),
    Row("librdkafka", 64, 1, 5.0, 90.0, limit=545_000, record_bytes=128_000),
    Row("librdkafka", 4, 5, 5.0, 90.0),
    Row("librdkafka", 4, 5, 30.0, 90.0),
    Row("librdkafka", 64, 5, 30.0, 150.0, limit=545_000, record_bytes=128_000),
    Row("librdkafka", 16, 5, 10.0, 90.0, limit=400_000, idempotent=False),
    Row("librdkafka", 16, 1, 10.0, 90.0, wants=200_000),
    Row("librdkafka", 16, 5, 30.0, 150.0, wants=2_000_000),
    Row("Java", 16, 5, 30.0, 150.0),
    Row("Java", 16, 1, 10.0, 90.0),
    Row("Java", 4, 5, 10.0, 90.0),
    Row("Java", 64, 1, 5.0, 90.0, limit=545_000, record_bytes=128_000),
    Row("Java", 64, 5, 30.0, 150.0, limit=545_000, record_bytes=128_000),
    Row("Java", 16, 5, 30.0, 150.0, wants=400_000),
    Row("Java", 4, 2, 30.0, 150.0, version="3.8.1", transactions=True),
    Row("Java", 16, 2, 30.0, 150.0, version="3.8.1", transactions=True),
    Row("Java", 16, 2, 30.0, 150.0, version="3.9.1", transactions=True),
    Row("Java", 16, 2, 30.0, 150.0, version="4.4.0", transactions=True),
    Row("franz-go", 16, 5, 30.0, 150.0),
    Row("franz-go", 16, 1, 10.0, 90.0),
    Row("franz-go", 4, 5, 10.0, 90.0),
    Row("franz-go", 64, 1, 5.0, 90.0, limit=545_000, record_bytes=128_000),
    Row("franz-go", 16, 5, 10.0, 90.0, idempotent=False),
    Row("franz-go", 16, 5, 30.0, 150.0, wants=200_000),
    Row("sarama", 16, 1, 30.0, 150.0),
    Row("sarama", 16, 5, 10.0, 90.0, idempotent=False),
    Row("sarama", 4, 1, 5.0, 90.0),
    Row("sarama", 64, 1, 10.0, 90.0, limit=545_000, record_bytes=128_000),
    Row("sarama", 64, 5, 30.0, 150.0, limit=545_000, record_bytes=128_000, idempotent=False),
    Row("sarama group", 4, 1, 30.0, 150.0, limit=100_000, record_bytes=100_000),
    Row("sarama group", 4, 1, 30.0, 150.0, limit=500_000, record_bytes=50_000),
    Row("kafkajs group", 4, 1, 30.0, 150.0, limit=100_000, record_bytes=100_000),
    Row("kafkajs group", 4, 1, 30.0, 150.0, limit=500_000, record_bytes=50_000),
    Row("Streams", 2, 32, 30.0, 150.0, limit=400_000, record_bytes=1000, version="3.9.1"),
    Row("Streams", 2, 32, 30.0, 150.0, limit=100_000, record_bytes=1000, version="3.9.1"),
    Row("Streams", 2, 32, 30.0, 150.0, limit=400_000, record_bytes=1000, version="4.4.0"),
    Row("Streams", 2, 32, 30.0, 150.0, limit=100_000, record_bytes=1000, version="4.4.0"),
    Row("Connect", 16, 1, 10.0, 150.0, version="4.4.0"),
    Row("Streams", 2, 1, 30.0, 150.0, limit=400_000, record_bytes=1000, version="3.9.1"),
    Row("Streams", 2, 1, 30.0, 150.0, limit=400_000, record_bytes=1000, version="4.4.0"),
    Row("MirrorMaker", 16, 1, 10.0, 150.0, version="4.3.1"),
    Row("Java", 16, 5, 30.0, 150.0, tls=True),
    Row("librdkafka", 16, 5, 30.0, 150.0, tls=True),
)


def librdkafka(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Producers in this process."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    lines: Counter[str] = Counter()

    class Log:
        """In place of a logger."""

        def log(self, _level: int, line: str, *arguments: object) -> None:
            lines[str(arguments[0]) if arguments else line.split(" ")[0]] += 1

    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": topic,
        "enable.idempotence": row.idempotent,
        "max.in.flight": row.under_way,
        "request.timeout.ms": int(row.timeout_s * 1000),
        "socket.timeout.ms": int(row.timeout_s * 1000),
        "message.timeout.ms": int(row.life_s * 1000),
        "message.max.bytes": row.record_bytes + 10_000,
        "batch.size": row.record_bytes,
        "linger.ms": 0,
    }
    if seen.tls is not None:
        settings |= {"security.protocol": "ssl", "ssl.ca.location": str(seen.tls.files.authority)}
    producers = [Producer(settings, logger=Log()) for _ in range(row.producers)]
    began, sent, open_ = time.monotonic(), [0] * row.producers, [0] * row.producers

    def delivered(one: int, number: int) -> Callable[[Any, Any], None]:
        def call(error: Any, _message: Any) -> None:
            open_[one] -= 1
            if error is None:
                seen.acked.append([time.monotonic() - began, one, number])
            else:
                seen.given_up += error.code() == KafkaError._MSG_TIMED_OUT

        return call

    while time.monotonic() < began + row.seconds:
        for one, producer in enumerate(producers):
            while (
                sent[one] < sys.maxsize
                and open_[one] < row.under_way
                and time.monotonic() >= began + sent[one] * row.pause_s
            ):
                value = (b"%06d %012d " % (one, sent[one])).ljust(row.record_bytes, b"x")
                sent[one] += 1
                open_[one] += 1
                try:
                    producer.produce(topic, value, partition=one, on_delivery=delivered(one, sent[one] - 1))
                except KafkaException as error:  # fatal: an idempotent producer does nothing any more
                    seen.errors[str(error)] = seen.errors.get(str(error), 0) + 1
                    sent[one] = sys.maxsize
                    break
            producer.poll(0)
        time.sleep(0.005)
    seen.timeouts, seen.log_lines = lines["REQTMOUT"], lines.total()
    for producer in producers:
        producer.purge()
        producer.poll(0)


def java(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Producers in one JVM, of tests/java/Crowd.java."""
    arguments = [bootstrap, topic, str(row.producers), str(row.under_way), str(row.seconds), str(row.record_bytes)]
    arguments.append(str(row.pause_s))
    arguments += [
        f"client.id={topic}",
        f"enable.idempotence={str(row.idempotent).lower()}",
        f"max.in.flight.requests.per.connection={row.under_way}",
        f"request.timeout.ms={row.timeout_s * 1000:.0f}",
        f"delivery.timeout.ms={row.life_s * 1000:.0f}",
        f"max.request.size={row.record_bytes + 10_000}",
        "batch.size=1",  # a record a batch
        *([f"transactional.id={topic}"] if row.transactions else []),
    ]
    if seen.tls is not None:
        arguments += seen.tls.client_settings()
    version = row.version or JAVA_VERSION
    command = java_command(str(JAVA), arguments, version, (*QUICK_JVM, "-Xmx512m", *tool_arguments(version)))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=row.seconds + 120)
    answer = json.loads(done.stdout)
    seen.acked, seen.given_up, seen.timeouts = answer["acked"], answer["given_up"], answer["timeouts"]
    seen.log_lines = answer["log_lines"]


def go(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Producers in one process, of tests/go/honest/crowd."""
    work = {
        "library": row.library,
        "bootstrap": bootstrap,
        "topic": topic,
        "producers": row.producers,
        "underWay": row.under_way,
        "bytes": row.record_bytes,
        "seconds": row.seconds,
        "timeoutSeconds": row.timeout_s,
        "lifeSeconds": row.life_s,
        "idempotent": row.idempotent,
        "pauseSeconds": row.pause_s,
    }
    command = [*go_command("crowd"), json.dumps(work)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=row.seconds + 120)
    answer = json.loads(done.stdout)
    seen.acked, seen.given_up, seen.errors = answer["acked"], answer["given_up"], answer["errors"]


CLIENTS: Final = {"librdkafka": librdkafka, "Java": java, "franz-go": go, "sarama": go, **goodput_apps.CLIENTS}


def try_(row: Row, brokers: Sequence[str], broker_log: Path, number: int, at_broker: bool, after_s: float) -> Seen:
    """Run one row among others; what went wrong with it ends none of those."""
    time.sleep(after_s)
    try:
        return measure(row, brokers, broker_log, number, at_broker)
    except Exception as error:
        failed = {f"not measured: {error!r}"[:200]: 1}
        return Seen(asdict(row), "broker" if at_broker else "sidecar", errors=failed)


def measure(row: Row, brokers: Sequence[str], broker_log: Path, number: int, at_broker: bool) -> Seen:
    """Run one row."""
    topic, reads = f"goodput-{number}", row.library in goodput_apps.READERS
    configs = {"max.message.bytes": str(max(row.record_bytes + 10_000, 1_048_588)), "retention.ms": "-1"}
    configs["message.timestamp.type"] = "LogAppendTime"
    create_topics(brokers, {topic: configs}, partitions=row.producers)
    time.sleep(1)  # until the broker knows what the controller has made
    goodput_apps.prepare(row, brokers, topic)
    seen = Seen(asdict(row), "broker" if at_broker else "sidecar")
    key, names = f"{'consumer' if reads else 'producer'}_byte_rate", goodput_apps.names_of(row, topic)
    with ExitStack() as stack:
        bootstrap, proxy = ",".join(brokers), None
        if at_broker:
            for name in names:
                set_brokers_quota(brokers[0], name, key, row.limit)
        else:
            quotas = [{"client-id": name, key: row.limit} for name in names]
            if row.tls:
                folder = stack.enter_context(TemporaryDirectory(prefix="kquota-goodput-tls-"))
                seen.tls = Tls(Files.issue(Path(folder)), FROM_CLIENT)
            listen = {} if seen.tls is None else seen.tls.kquota()[0]
            proxy = stack.enter_context(
                sidecar(brokers, quotas, listen=listen, log={"level": "warning", "format": "json"})
            )
            bootstrap = proxy.bootstrap
        CLIENTS[row.library](row, bootstrap, topic, seen)
        until_s, seen.load = time.time(), os.getloadavg()[0]
        if proxy is not None:
            seen.charged_bytes = proxy.metric("kquota_bytes_total", kind="fetch" if reads else "produce")
            seen.refused = int(proxy.metric("kquota_produces_refused_total"))
            seen.connections = int(proxy.metric("kquota_connections_opened_total"))
    seen.thrown_out = goodput_apps.thrown_out(broker_log, topic)
    if not reads:
        log = [(at_s, head) for at_s, head in goodput_apps.committed(brokers, topic, row.producers) if at_s <= until_s]
        numbers = Counter(head for _, head in log)
        seen.stored, seen.distinct = numbers.total(), len(numbers)
        if row.library in goodput_apps.CLIENTS:
            began_s = min((at_s for at_s, _ in log), default=until_s - row.seconds)
            seen.lasted_s = until_s - began_s
            seen.acked = [[at_s - began_s, *map(int, head.split())] for at_s, head in log]
    return seen


def summary(seen: Seen) -> dict[str, Any]:
    """A row as it is stored."""
    row = Row(**seen.row)
    charged = seen.charged_bytes / max(seen.distinct * row.record_bytes, 1)
    return {
        "clients": str(row),
        "limit_at": seen.at,
        "round_s": None if row.library in goodput_apps.CLIENTS else round(row.wait_s),
        "seconds": row.seconds,
        "goodput": round(seen.goodput, 2),
        "served": len({one for _, one, _ in seen.acked}),
        "charged_per_distinct": round(charged, 2) if seen.charged_bytes else None,
        "duplicates": seen.stored - seen.distinct,
        "given_up": seen.given_up,
        "timeouts": seen.timeouts,
        "log_lines": seen.log_lines,
        "refused": seen.refused,
        "connections": seen.connections,
        "rejoined": seen.rebalances,
        "thrown_out": seen.thrown_out,
        "load": round(seen.load, 1),
        **({"errors": dict(Counter(seen.errors).most_common(2))} if seen.errors else {}),
    }


def line(seen: Seen) -> str:
    """A row of the table."""
    return "| " + " | ".join("–" if part is None else str(part) for part in list(summary(seen).values())[:16]) + " |"


HEAD: Final = (
    "| clients | limit at | round, s | seconds | goodput | served | charged / distinct | duplicates | given up "
    "| timeouts | log lines | refused | connections | rejoined | thrown out | load |\n"
    "|---|---" + "|---:" * 14 + "|"
)


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.goodput", description=__doc__)
    arguments.add_argument("--rows", help=f"numbers of rows, with commas between them; of {len(ROWS)}")
    arguments.add_argument("--broker", action="store_true", help="under the broker's own quota as well")
    arguments.add_argument("--seconds", type=float, help="how long each row runs, in place of its own time")
    arguments.add_argument("--at-once", type=int, default=1, help="so many runs side by side (default: 1)")
    arguments.add_argument("--store", action="store_true", help="write benchmarks/results/<date>-goodput.json and .md")
    options = arguments.parse_args()
    wanted = [int(one) for one in options.rows.split(",")] if options.rows else range(len(ROWS))
    result: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "project": describe_project(),
        "machine": describe_machine(),
    }
    lines, rows = [f"- {in_words(result['project'])}", "", HEAD], []
    runs = [
        (number, at_broker)
        for number in wanted
        for at_broker in ((False, True) if options.broker and not ROWS[number].tls else (False,))
    ]
    waves = [runs[first : first + options.at_once] for first in range(0, len(runs), options.at_once)]
    print(HEAD, flush=True)
    with (
        TemporaryDirectory(prefix="kquota-goodput-") as folder,
        KafkaCluster.start(1, directory=Path(folder, "kafka"), jvm=(*QUICK_JVM, "-Xmx1g")) as cluster,
    ):
        goodput_apps.log_groups(cluster.bootstrap)
        for wave in waves:  # one after the other, so that all of its rows run next to each other all the time
            of = [replace(ROWS[number], seconds=options.seconds or ROWS[number].seconds) for number, _ in wave]
            numbers = [2 * number + at_broker for number, at_broker in wave]
            with ProcessPoolExecutor(len(wave), mp_context=get_context("spawn")) as pool:
                at = [at_broker for _, at_broker in wave]
                broker_logs = repeat(cluster.nodes[0].log)
                starts = [STAGGER_S * place for place in range(len(wave))]
                for seen in pool.map(try_, of, repeat(cluster.bootstrap), broker_logs, numbers, at, starts):
                    lines.append(line(seen))
                    rows.append({key: value for key, value in summary(seen).items() if value})
                    print(lines[-1], *seen.errors.items(), flush=True)
            with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
                made = {name for one in numbers for name in (f"goodput-{one}", f"goodput-{one}-in", str(one))}
                admin.delete_topics([*made.intersection(admin.list_topics())])
            if options.store:
                file = RESULTS / f"{result['started'][:10]}-goodput.json"
                file.write_text(stored.text(result | {"rows": rows}), encoding="utf-8")
                file.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
