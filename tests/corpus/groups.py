"""Consumer groups: members come and go, partitions move, offsets are committed; both group protocols."""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from tests.corpus.job import Job, item
from tests.corpus.records import Record, send_confluent
from tests.corpus.tools import committed, create_topic, leave_out
from tests.support.records import subscribed
from tests.support.waiting import in_background, until

PARTITIONS = 4
PER_PARTITION = 25
EVERYTHING = {(partition, offset) for partition in range(PARTITIONS) for offset in range(PER_PARTITION)}


def filled_topic(job: Job, suffix: str) -> str:
    topic = create_topic(job, suffix, partitions=PARTITIONS)
    records = [
        Record(None, b"%d/%d" % (partition, number), partition=partition) for partition, number in sorted(EVERYTHING)
    ]
    send_confluent(job, topic, records)
    return topic


class Member:
    """A consumer in a thread of its own, polled until it is stopped."""

    def __init__(self, poll: Callable[[], tuple[set[int], set[tuple[int, int]]]], close: Callable[[], None]) -> None:
        """`poll` returns the partitions that the member has and the (partition, offset) of records just read."""
        self.assigned: set[int] = set()
        self.read: set[tuple[int, int]] = set()
        self._poll, self._close = poll, close
        self._leave = threading.Event()
        self.ended = in_background(self._run)

    def _run(self) -> None:
        while not self._leave.is_set():
            self.assigned, read = self._poll()
            self.read |= read
        self._close()

    def leave(self) -> None:
        self._leave.set()
        self.ended.result(60)


def rebalances(
    join: Callable[[str], Member],
    describe: Callable[[], Any],
    offsets: Callable[[], Mapping[int, int]],
    more: Callable[[], set[tuple[int, int]]] = set,
) -> Any:
    """One member has all partitions, then two have half each, then the second one is left alone; all is committed.
    `more` produces records while there are two, and returns which the members have to read."""
    steps: list[Any] = []
    first = join("first")
    second: Member | None = None
    try:
        until(
            lambda: first.ended.done() or first.assigned == set(range(PARTITIONS)), "the first member gets everything"
        )
        until(lambda: first.ended.done() or first.read >= EVERYTHING, "it reads everything")
        steps.append(("one member", sorted(first.assigned), describe()))
        second = join("second")
        two = (first, second)
        half = PARTITIONS // 2

        def failed() -> bool:
            return any(each.ended.done() for each in two)

        until(lambda: failed() or [len(each.assigned) for each in two] == [half, half], "half each")
        both, wanted = first.assigned | second.assigned, more()
        until(lambda: failed() or first.read | second.read >= wanted, "they read on")
        steps.append(("two members", sorted(both), describe()))
        first.leave()
        until(lambda: second.ended.done() or second.assigned == set(range(PARTITIONS)), "the second gets everything")
        steps.append(("the other member", sorted(second.assigned), describe()))
        # Nothing that was committed comes again, and nothing is lost.
        steps.append(("read by the first", len(first.read & EVERYTHING)))
    finally:
        for each in (first, second):
            if each is not None:
                each.leave()
    steps.append(("committed", dict(offsets())))
    steps.append(("nobody", describe()))
    return steps


def _description(job: Job, group: str) -> Any:
    """What kafka-python's admin client says about a classic group, without ids and times."""
    from kafka import KafkaAdminClient

    with closing(KafkaAdminClient(bootstrap_servers=job.bootstrap)) as admin:
        found = admin.describe_groups([group])[group]
    found["members"].sort(key=lambda member: repr(member["member_assignment"]))
    return leave_out(found, "member_id", "client_id")


@item()
def classic_kafka_python(job: Job) -> Any:
    topic, group = filled_topic(job, "classic-kp"), job.name("classic-kp")

    def join(name: str) -> Member:
        consumer = subscribed(
            job.bootstrap, topic, group_id=group, client_id=name, heartbeat_interval_ms=200, auto_commit_interval_ms=100
        )

        def poll() -> tuple[set[int], set[tuple[int, int]]]:
            read = {(each.partition, each.offset) for batch in consumer.poll(100).values() for each in batch}
            return {each.partition for each in consumer.assignment()}, read

        return Member(poll, consumer.close)

    return rebalances(join, lambda: _description(job, group), lambda: committed(job, group, topic, PARTITIONS))


def _confluent(job: Job, suffix: str, settings: Mapping[str, Any]) -> Any:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

    topic, group = filled_topic(job, suffix), job.name(suffix)
    admin = AdminClient({"bootstrap.servers": job.bootstrap})

    def join(name: str) -> Member:
        own = {"bootstrap.servers": job.bootstrap, "group.id": group, "client.id": name}
        consumer = Consumer(own | {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100} | settings)
        consumer.subscribe([topic])

        def poll() -> tuple[set[int], set[tuple[int, int]]]:
            read = set()
            for message in consumer.consume(100, 0.1):
                assert message.error() is None, message.error()
                read.add((message.partition(), message.offset()))
            return {each.partition for each in consumer.assignment()}, read

        return Member(poll, consumer.close)

    def describe() -> Any:
        found = admin.describe_consumer_groups([group])[group].result(60)
        members = [(each.client_id, each.host, len(each.assignment.topic_partitions)) for each in found.members]
        return {
            "state": found.state.name,
            "type": found.type.name,
            "assignor": found.partition_assignor,
            "simple": found.is_simple_consumer_group,
            "members": sorted(members),
        }

    def settled() -> Any:
        """A group of the new protocol settles in steps: what the coordinator reports may lag behind the members."""

        def done() -> Any:
            found = describe()
            assigned = sum(member[2] for member in found["members"])
            return (found["state"], assigned) in (("STABLE", PARTITIONS), ("EMPTY", 0)) and found

        return until(done, "a settled group")

    return rebalances(join, settled, lambda: committed(job, group, topic, PARTITIONS))


@item()
def classic_confluent(job: Job) -> Any:
    settings = {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 200}
    return _confluent(job, "classic-c", settings)


@item(ConsumerGroupHeartbeat=1)
def consumer_protocol_confluent(job: Job) -> Any:
    """The new protocol, where the broker computes assignments (KIP-848)."""
    return _confluent(job, "kip-848", {"group.protocol": "consumer"})
