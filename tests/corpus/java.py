"""Kafka's own Java clients, through the tools of the cluster's version."""

import json
import re
import subprocess
import time
from concurrent.futures import wait
from typing import Any

from tests.corpus.groups import PARTITIONS, PER_PARTITION, Member, filled_topic, rebalances
from tests.corpus.job import Job, item
from tests.corpus.records import Record, read_kafka_python, send_confluent
from tests.corpus.tools import committed, create_topic, read_from_the_start
from tests.lab.kafka import GuardedProcess, run_tool, start_tool
from tests.support.waiting import in_background

TOOLS = "org.apache.kafka.tools."


def _is_3(job: Job) -> bool:
    return job.version.startswith("3.")


@item()
def console_producer(job: Job) -> Any:
    """The Java producer, idempotent as it is by default, with keys, headers and compression."""
    topic = create_topic(job, "java-producer", partitions=3)
    main_class = "kafka.tools.ConsoleProducer" if _is_3(job) else f"{TOOLS}ConsoleProducer"
    reader = "--property" if _is_3(job) else "--reader-property"
    options = ["--bootstrap-server", job.bootstrap, "--topic", topic, "--compression-codec", "zstd"]
    for setting in ("parse.key=true", "parse.headers=true"):
        options += [reader, setting]
    lines = "".join(f"number:{number},odd:{number % 2}\tkey-{number}\tvalue {number}\n" for number in range(50))
    run_tool(main_class, options, job.version, stdin=lines)
    seen = read_kafka_python(job, topic, 3, 50)
    return [each._replace(timestamp_ms=0) for each in seen]


class _VerifiableConsumer:
    def __init__(self, job: Job, topic: str, group: str, protocol: str) -> None:
        options = ["--bootstrap-server", job.bootstrap, "--topic", topic, "--group-id", group, "--verbose"]
        options += ["--group-protocol", protocol]
        self.process: GuardedProcess = start_tool(f"{TOOLS}VerifiableConsumer", options, job.version)
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._readers = [in_background(one) for one in (self._read_events, self._read_errors)]

    def _read_events(self) -> None:
        for line in self.process.stdout or ():
            self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        self.errors += self.process.stderr or ()

    def assigned(self) -> set[int]:
        now: set[int] = set()
        for event in list(self.events):
            if event["name"] in ("partitions_assigned", "partitions_revoked"):
                changed = {each["partition"] for each in event["partitions"]}
                now = now | changed if event["name"] == "partitions_assigned" else now - changed
        return now

    def read(self) -> set[tuple[int, int]]:
        return {(event["partition"], event["offset"]) for event in list(self.events) if event["name"] == "record_data"}

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            wait(self._readers, 10)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()


def _rebalance(job: Job, suffix: str, protocol: str) -> Any:
    topic, group = filled_topic(job, suffix), job.name(suffix)
    started: list[_VerifiableConsumer] = []

    def join(_name: str) -> Member:
        started.append(consumer := _VerifiableConsumer(job, topic, group, protocol))

        def poll() -> tuple[set[int], set[tuple[int, int]]]:
            assert consumer.process.poll() is None, consumer.errors
            time.sleep(0.1)
            return consumer.assigned(), consumer.read()

        return Member(poll, consumer.stop)

    def more() -> set[tuple[int, int]]:
        send_confluent(job, topic, [Record(None, b"more", partition=partition) for partition in range(PARTITIONS)])
        return {(partition, PER_PARTITION) for partition in range(PARTITIONS)}

    steps = rebalances(join, lambda: None, lambda: committed(job, group, topic, PARTITIONS), more)
    described = ""
    if protocol != "classic":
        options = ["--bootstrap-server", job.bootstrap, "--describe", "--group", group]
        described = run_tool(f"{TOOLS}consumer.group.ConsumerGroupCommand", options, job.version).stdout
    return {
        "steps": steps,
        "described": _offsets_table(described, topic),
        "exit codes": [each.process.returncode for each in started],
        "errors": [line for each in started for line in each.errors if " WARN " in line or " ERROR " in line],
    }


def _offsets_table(text: str, topic: str) -> list[tuple[str, ...]]:
    """Partition, committed offset, end of the log and lag, as kafka-consumer-groups shows them."""
    rows = (line.split() for line in text.splitlines())
    return sorted(tuple(row[2:6]) for row in rows if len(row) > 6 and row[1] == topic)


@item()
def rebalance_classic(job: Job) -> Any:
    return _rebalance(job, "java-classic", "classic")


@item(ConsumerGroupHeartbeat=0)
def rebalance_consumer_protocol(job: Job) -> Any:
    """The new protocol (KIP-848) as Kafka's own client speaks it, also with 3.9, which has its first version."""
    return _rebalance(job, "java-kip-848", "consumer")


@item(ShareGroupHeartbeat=1, ShareFetch=1, ShareAcknowledge=1)
def share_consumer(job: Job) -> Any:
    topic, group = create_topic(job, "java-share", partitions=3), job.name("java-share")
    read_from_the_start(job, group)
    send_confluent(job, topic, [Record(b"%d" % n, b"share %02d" % n, partition=n % 3) for n in range(30)])
    options = ["--bootstrap-server", job.bootstrap, "--topic", topic, "--group", group, "--max-messages", "30"]
    for setting in ("print.key=true", "print.partition=true", "print.delivery=true"):
        options += ["--formatter-property", setting]
    done = run_tool(f"{TOOLS}consumer.ConsoleShareConsumer", options, job.version)
    return sorted(done.stdout.splitlines())


@item()
def topics_tool(job: Job) -> Any:
    """kafka-topics --describe asks with DescribeTopicPartitions where the broker has it."""
    topic = create_topic(job, "java-topics", partitions=3, configs={"retention.ms": "90000"})
    options = ["--bootstrap-server", job.bootstrap, "--describe", "--topic", topic]
    done = run_tool(f"{TOOLS}TopicCommand", options, job.version)
    # In-sync replicas are the cluster's state of the moment: a follower on a busy machine falls behind and comes back.
    return [re.sub(r"(TopicId|Isr): \S+", r"\1", line) for line in done.stdout.splitlines()]
