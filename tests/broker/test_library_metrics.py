"""Which client libraries wait when they are throttled, as /metrics has it: librdkafka does not, Java does."""

import re
import time

import pytest
from confluent_kafka import Producer

from tests.lab.kafka import KafkaCluster
from tests.support.clients import Load, produce_java_perf
from tests.support.precedence import precedence
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import LIMIT_S, in_background, until

pytestmark = pytest.mark.long

RATE = 50_000
"""Bytes/s. A record of 10 000 B takes 200 ms of it: a mute that is watched."""


def hasty(running: Sidecar, topic: str) -> None:
    """librdkafka goes on sending whatever the throttle time (KIP-219), until a mute has been judged."""
    producer = Producer({"bootstrap.servers": running.bootstrap, "client.id": "hasty", "linger.ms": 0})
    producer.produce(topic, b"x" * 450_000)  # most of what the window of 10 s holds
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and not ignored(running):
        for _ in range(10):
            producer.produce(topic, b"x" * 10_000)
            producer.poll(0.05)
    producer.purge()
    producer.flush(1)


def ignored(running: Sidecar) -> float:
    return sum(one["mutes_ignored"] for one in libraries(running).values())


def libraries(running: Sidecar) -> dict[str, dict[str, float]]:
    """By library: what its metrics say, over all its versions."""
    found: dict[str, dict[str, float]] = {}
    for sample in running.samples():
        if what := re.fullmatch(r"kquota_library_(\w+?)(_total)?", sample.name):
            of = found.setdefault(sample.labels["library"], {})
            of[what[1]] = of.get(what[1], 0.0) + sample.value
    return found


def test_librdkafka_ignores_and_java_honours_throttle_time(kafka: KafkaCluster, topic: str) -> None:
    quotas = [{"client-id": name, "producer_byte_rate": RATE} for name in ("hasty", "patient")]
    with sidecar(kafka.bootstrap, quotas) as running:
        # The window of 10 s holds 500 kB; each record after it is a mute of 1.2 s, half of it for a late JVM.
        load = Load([running.bootstrap], f"{topic}-java", "patient", records=12, record_bytes=60_000, limit_s=LIMIT_S)
        patient = in_background(produce_java_perf, load)
        with precedence(running.pid):  # a mute whose end the sidecar is late for is not counted
            hasty(running, topic)
            patient.result(LIMIT_S).assert_complete(load)
        # An exposition younger than a second is given again.
        until(lambda: "apache-kafka-java" in libraries(running), "Java's mutes")
        java, rdkafka = (libraries(running)[name] for name in ("apache-kafka-java", "confluent-kafka-python"))
        assert java["mutes"] >= 1
        assert java["mute_seconds"] >= 0.2 * java["mutes"]
        # On a machine with too much to do it may once be later in reading a throttle time than half of a mute.
        assert java["mutes_ignored"] * 3 <= java["mutes"]
        assert 1 <= rdkafka["mutes_ignored"] <= rdkafka["mutes"]
        assert 0.2 * rdkafka["mutes_ignored"] <= rdkafka["ignored_seconds"] <= rdkafka["mute_seconds"]
