"""A consumer on librdkafka (confluent-kafka), in a group: it receives throttle times and fetches on regardless."""

from __future__ import annotations

import time

import confluent_kafka

from tests.lab.demo.clients.reporter import Spec, Tally, ready, report

CONNECT_LIMIT_S = 30
AT_ONCE = 1000


def main() -> None:
    """Consume until stopped."""
    spec = Spec.from_argument()
    tally = Tally()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": spec.bootstrap,
            "client.id": spec.client_id,
            "group.id": spec.client_id,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": True,
            "log_level": 3,
            "throttle_cb": lambda event: tally.throttled(event.throttle_time * 1000),
        }
    )
    wait_for_topic(consumer, spec.topic)
    ready(confluent_kafka.libversion()[0])
    consumer.subscribe([spec.topic])
    report(tally)
    while True:
        for message in consumer.consume(AT_ONCE, timeout=0.1):
            if (error := message.error()) is None:
                tally.add(len(message))
            else:
                tally.fail(error)


def wait_for_topic(consumer: confluent_kafka.Consumer, topic: str) -> None:
    """Poll until the topic has a partition with a leader."""
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while time.monotonic() < deadline:
        partitions = consumer.list_topics(topic, timeout=CONNECT_LIMIT_S).topics[topic].partitions.values()
        if any(partition.leader >= 0 for partition in partitions):
            return
        time.sleep(0.1)
    raise TimeoutError(f"topic {topic} has no leader after {CONNECT_LIMIT_S} s")


if __name__ == "__main__":
    main()
