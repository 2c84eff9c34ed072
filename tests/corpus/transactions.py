"""Transactions: committed, aborted, consume-transform-produce, and producers that are fenced off."""

from collections.abc import Callable
from typing import Any

from tests.corpus.job import Job, item, outcome
from tests.corpus.records import Record, read_aiokafka, read_confluent, read_kafka_python, send_confluent
from tests.corpus.tools import committed, create_topic


def _seen(job: Job, topic: str, done: int, written: int) -> Any:
    only_committed, everything = "read_committed", "read_uncommitted"
    reads: dict[str, Callable[[str, int], list[Any]]] = {
        "kafka-python": lambda level, count: read_kafka_python(job, topic, 1, count, isolation_level=level),
        "aiokafka": lambda level, count: read_aiokafka(job, topic, 1, count, isolation_level=level),
        "confluent-kafka": lambda level, count: read_confluent(job, topic, 1, count, **{"isolation.level": level}),
    }
    return {
        f"{name} {level}": [(each.offset, each.value) for each in read(level, count)]
        for name, read in reads.items()
        for level, count in ((only_committed, done), (everything, written))
    }


@item(InitProducerId=1)
def confluent(job: Job) -> Any:
    from confluent_kafka import Consumer, Producer, TopicPartition

    source, target = create_topic(job, "tx-c-source"), create_topic(job, "tx-c-target")
    send_confluent(job, source, [Record(None, b"in %d" % number) for number in range(10)])
    group = job.name("tx-c-group")
    settings = {"bootstrap.servers": job.bootstrap, "transactional.id": job.name("tx-c")}
    producer = Producer(settings)
    producer.init_transactions(60)
    steps = []
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(target, b"%d/%d" % (number, part), partition=0)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.flush(60)  # written, so that a reader without isolation sees it
            producer.abort_transaction(60)
    # Consume, transform, produce: the group's offsets are part of the transaction.
    consumer = Consumer({"bootstrap.servers": job.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.assign([TopicPartition(source, 0, 0)])
    for commit in (False, True):
        taken = consumer.consume(5, 60)
        producer.begin_transaction()
        for message in taken:
            producer.produce(target, b"out of " + message.value(), partition=0)
        producer.flush(60)
        offsets = [TopicPartition(source, 0, taken[-1].offset() + 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
        steps.append((commit, committed(job, group, source)[0]))
    consumer.close()
    # A second producer with the same id takes over; the first one is fenced off.
    successor = Producer(settings)
    successor.init_transactions(60)
    successor.begin_transaction()
    successor.produce(target, b"successor", partition=0)
    producer.begin_transaction()
    producer.produce(target, b"fenced", partition=0)
    steps.append(outcome(lambda: producer.commit_transaction(60)))
    successor.commit_transaction(60)
    return {"steps": steps, "seen": _seen(job, target, done=12, written=20)}
