"""A producer without a quota, on librdkafka (confluent-kafka): a modest steady rate, which must not be slowed down."""

from __future__ import annotations

import time

import confluent_kafka

from tests.lab.demo.clients.reporter import Pace, Spec, Tally, payload, ready, report

CONNECT_LIMIT_S = 30


def main() -> None:
    """Produce until stopped."""
    spec = Spec.from_argument()
    assert spec.wanted is not None
    tally = Tally()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": spec.bootstrap,
            "client.id": spec.client_id,
            "acks": 1,
            "linger.ms": 20,
            "log_level": 3,
            "throttle_cb": lambda event: tally.throttled(event.throttle_time * 1000),
        }
    )
    producer.list_topics(spec.topic, timeout=CONNECT_LIMIT_S)

    def answered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            tally.add(len(message))
        else:
            tally.fail(error)

    ready(confluent_kafka.libversion()[0])
    report(tally)
    value = payload()
    pace = Pace(spec.wanted, time.monotonic())
    while True:
        wait_s = pace.wait_s(len(value), time.monotonic())
        producer.poll(wait_s)
        while (left_s := wait_s) > 0.001:  # poll returns at the first event; a millisecond early is early enough
            began = time.monotonic()
            producer.poll(left_s)
            wait_s -= time.monotonic() - began
        try:
            producer.produce(spec.topic, value, on_delivery=answered)
        except BufferError:
            producer.poll(0.1)


if __name__ == "__main__":
    main()
