"""Groups, Kafka Streams, Kafka Connect and MirrorMaker 2, as rows of `benchmarks.suites.goodput`."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from benchmarks.evasion.honest import finish, go_command
from benchmarks.evasion.run import start
from benchmarks.rig.topics import create_topics
from benchmarks.suites.replicas import CLIENTS as HONEST
from tests.lab.kafka.javalog import tool_arguments
from tests.lab.kafka.process import GuardedProcess
from tests.lab.kafka.tools import QUICK_JVM, java_command

if TYPE_CHECKING:
    from benchmarks.suites.goodput import Row, Seen

JAVA: Final = Path(__file__).parents[2] / "tests/java"
INTO: Final = 10
"""Records that Streams makes of one."""


def names_of(row: Row, topic: str) -> list[str]:
    """The client-ids that are limited. A thread of Streams that has failed is replaced by one with another number."""
    if row.library == "Streams":
        return [f"{topic}-StreamThread-{number}-producer" for number in range(1, 10)]
    return [topic]


def group(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Members of a group, each in a process. What they read counts as acknowledged."""
    work: dict[str, Any] = {"bootstrap": [bootstrap], "topic": topic, "client_id": topic, "reads": 1}
    work |= {"seconds": row.seconds, "per_s": 0, "record_bytes": 0, "buffer_bytes": 0}
    command = go_command("sarama") if row.library == "sarama group" else HONEST["kafkajs 2.2"](work)
    began = time.time()
    members = [start(command, work) for _ in range(row.producers)]
    for member in members:
        assert member.stdin is not None
        member.stdin.close()  # Node.js reads to its end
        member.stdin = None
    time.sleep(row.seconds)
    for answer in map(finish, members):
        for number, at_s in zip(answer["read"], answer["times"], strict=True):
            seen.acked.append([at_s - began, number % row.producers, number])
        seen.rebalances += max(answer.get("joined", 0) - 1, 0)
        for error in answer["errors"]:
            seen.errors[error] = seen.errors.get(error, 0) + 1
    seen.stored = len(seen.acked)
    seen.distinct = len({number for _, _, number in seen.acked})


def streams(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Instances of an application with exactly_once_v2, in one JVM of tests/java/Copies.java, whose producers hold
    `row.under_way` megabytes (by default 32)."""
    jars = f"streams-{row.version}"
    arguments = [bootstrap, topic, str(row.producers), str(row.seconds), str(row.record_bytes), str(INTO)]
    arguments.append(str(row.under_way))
    with TemporaryDirectory(prefix="kquota-streams-") as folder:
        jvm = (*QUICK_JVM, "-Xmx512m", f"-Djava.io.tmpdir={folder}", *tool_arguments(jars))
        command = java_command(str(JAVA / "Copies.java"), arguments, jars, jvm)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=row.seconds + 120)
    answer = json.loads(done.stdout)
    seen.rebalances, seen.given_up, seen.errors = answer["rebalances"], answer["failures"], answer["errors"]
    seen.log_lines = sum(seen.errors.values())


def connect(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Tasks of the source connector tests/java/Numbers.java in a standalone worker."""
    task = {"connector.class": "Numbers", "topic": topic, "bytes": row.record_bytes}
    _worker(row, f"connect-{row.version}", bootstrap, topic, task, seen, JAVA / "Numbers.java")


def mirror(row: Row, bootstrap: str, topic: str, seen: Seen) -> None:
    """Tasks of MirrorMaker 2's source connector in a standalone worker, from a topic to `topic`, in one cluster."""
    alias, name = topic.split("-")  # MirrorMaker joins them to the name of the topic that it writes to
    task = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "topics": name,
        "source.cluster.alias": alias,
        "target.cluster.alias": "target",
        "source.cluster.bootstrap.servers": bootstrap,
        "target.cluster.bootstrap.servers": bootstrap,
        "replication.policy.separator": "-",
        "replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "false",
    }
    _worker(row, f"mirror-{row.version}", bootstrap, topic, task, seen)


def _worker(
    row: Row, jars: str, bootstrap: str, topic: str, task: dict[str, Any], seen: Seen, source: Path | None = None
) -> None:
    """A standalone worker with the tasks of one source connector; `source`: that of the connector, if no jar has it."""
    converter = "org.apache.kafka.connect.converters.ByteArrayConverter"
    with TemporaryDirectory(prefix="kquota-connect-") as folder:
        worker = {
            "bootstrap.servers": bootstrap,
            "key.converter": converter,
            "value.converter": converter,
            "offset.storage.file.filename": f"{folder}/offsets",
            "listeners": "http://127.0.0.1:0",
            "plugin.discovery": "hybrid_warn",
            "producer.client.id": topic,
            "producer.batch.size": 1,
            "producer.buffer.memory": (row.under_way + 2) * row.record_bytes,
            "producer.max.in.flight.requests.per.connection": row.under_way,
            "producer.request.timeout.ms": int(row.timeout_s * 1000),
        }
        task |= {"name": topic, "tasks.max": row.producers}
        files = []
        for name, settings in (("worker", worker), ("task", task)):
            files.append(Path(folder, f"{name}.properties"))
            files[-1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        jvm = (*QUICK_JVM, "-Xmx512m", *tool_arguments(jars))
        command = java_command("org.apache.kafka.connect.cli.ConnectStandalone", list(map(str, files)), jars, jvm)
        if source is not None:
            path = command.index("-cp") + 1
            subprocess.run(["javac", "-d", folder, "-cp", command[path], str(source)], check=True)
            command[path] += f":{folder}"
        with Path(folder, "log").open("w") as log, GuardedProcess(command, stdout=log, stderr=log) as process:
            time.sleep(row.seconds)
            process.kill()
        lines = Path(folder, "log").read_text().splitlines()
    seen.log_lines = sum(bool(re.search(r"\] (WARN|ERROR) ", line)) for line in lines)


def log_groups(brokers: Sequence[str]) -> None:
    """Have the broker log what becomes of groups' members. Their logger itself exists only with the first group."""
    level = ConfigResource(ConfigResourceType.BROKER_LOGGER, "1", configs={"root": "INFO"})
    with closing(KafkaAdminClient(bootstrap_servers=list(brokers))) as admin:
        answer = admin.alter_configs([level], raise_on_unknown=False)
    assert answer == {"broker_logger": {"1": "OK"}}, answer


def thrown_out(log: Path, topic: str) -> int:
    """How many members of the group that reads this topic have been thrown out, by the broker's log."""
    of_group = re.compile(rf"\b{topic}\b.* (has failed, removing it from the group|the member session expired)")
    return sum(bool(of_group.search(line)) for line in log.read_text(encoding="utf-8").splitlines())


def prepare(row: Row, brokers: Sequence[str], topic: str) -> None:
    """What they read is there before they start."""
    count = int(row.limit * row.seconds / row.record_bytes)
    if row.library == "Streams":
        create_topics(brokers, {f"{topic}-in": {}}, partitions=row.producers)
        _fill(brokers, f"{topic}-in", 3 * count // INTO + 1, row.producers, lambda number: b"%012d" % number)
    elif row.library == "MirrorMaker":
        name = topic.split("-")[1]
        create_topics(brokers, {name: {"max.message.bytes": str(row.record_bytes + 10_000)}}, partitions=row.producers)
        _fill(
            brokers,
            name,
            2 * count,
            row.producers,
            lambda number: (b"%06d %012d " % (number % row.producers, number)).ljust(row.record_bytes, b"x"),
        )
    elif row.library in READERS:
        _fill(
            brokers,
            topic,
            3 * count // 2,
            row.producers,
            lambda number: (b"%012d " % number).ljust(row.record_bytes, b"r"),
        )


def _fill(brokers: Sequence[str], topic: str, count: int, partitions: int, record: Callable[[int], bytes]) -> None:
    with KafkaProducer(bootstrap_servers=list(brokers), linger_ms=50, batch_size=200_000) as producer:
        for number in range(count):
            producer.send(topic, record(number), partition=number % partitions)


READERS: Final = ("sarama group", "kafkajs group")
CLIENTS: Final[Mapping[str, Callable[[Row, str, str, Seen], None]]] = {
    "sarama group": group,
    "kafkajs group": group,
    "Streams": streams,
    "Connect": connect,
    "MirrorMaker": mirror,
}


def committed(bootstrap: Sequence[str], topic: str, partitions: int) -> Iterator[tuple[float, bytes]]:
    """When each committed record in a topic was appended (seconds since 1970), and its head."""
    settings = {"group.id": topic, "enable.auto.commit": False, "enable.partition.eof": True}
    settings |= {"isolation.level": "read_committed", "queued.max.messages.kbytes": 4096}
    consumer = Consumer(settings | {"bootstrap.servers": ",".join(bootstrap)})
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        left = set(range(partitions))
        while left:
            for message in consumer.consume(500, timeout=0.5):
                error = message.error()
                if error is None:
                    yield message.timestamp()[1] / 1000.0, (message.value() or b"")[:19]
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
    finally:
        consumer.close()
