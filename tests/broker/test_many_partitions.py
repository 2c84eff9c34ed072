"""librdkafka has no fetch sessions: each response names all its partitions, with records or without (KIP-227)."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import set_brokers_quota
from tests.support.sidecars import sidecar

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]  # what it rests on: unit/test_session_fetch

PARTITIONS = 300
RATE = 30_000
"""300 partitions take 12.6 kB of a response, 0.42 s at this rate, as 1 000 do at 100 kB/s."""
RUN_S = 30.0
BATCH, RECORD = 16, 1000


def fill(bootstrap: str, topic: str) -> None:
    """One batch for each partition, twice: more than a consumer may read meanwhile."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": BATCH * (RECORD + 100), "linger.ms": 1000})
    for _ in range(2):
        for partition in range(PARTITIONS):
            for _ in range(BATCH):
                producer.produce(topic, b"r" * RECORD, partition=partition)
            producer.poll(0)
        assert producer.flush(60) == 0


def read(bootstrap: str, client_id: str, topic: str) -> int:
    """Bytes of records that a consumer of all partitions got in `RUN_S`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": client_id, "group.id": client_id})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        got, deadline = 0, time.monotonic() + RUN_S
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                assert not message.error(), message.error()
                got += len(message.value() or b"")
        return got
    finally:
        consumer.close()


def test_fetches_fill_as_much_as_at_a_broker(kafka: KafkaCluster, topic: str) -> None:
    broker = kafka.bootstrap[0]
    fill(broker, topic)
    set_brokers_quota(broker, "theirs", "consumer_byte_rate", RATE)
    try:
        with (
            sidecar(kafka.bootstrap, [{"client-id": "ours", "consumer_byte_rate": RATE}]) as running,
            ThreadPoolExecutor(2) as pool,
        ):
            reads = [
                pool.submit(read, at, name, topic) for at, name in ((running.bootstrap, "ours"), (broker, "theirs"))
            ]
            ours, theirs = (one.result() / RATE / RUN_S for one in reads)
            wire = running.metric("kquota_bytes_total", kind="fetch", client_id="ours") / RATE / RUN_S
            throttled = running.metric("kquota_throttled_responses_total")
    finally:
        set_brokers_quota(broker, "theirs", "consumer_byte_rate", None)
        admin = AdminClient({"bootstrap.servers": broker})
        admin.delete_topics([topic])[topic].result(60)
    said = f"records {ours:.2f}, at a broker {theirs:.2f}; on the wire {wire:.2f}; {throttled:.0f} throttles"
    assert ours >= theirs, said
    assert ours >= 0.7, said
    # A response more than the limit allows, which is 3.4 s worth, and the window's fence post.
    assert wire <= 1.05 + 4.4 / RUN_S, said
