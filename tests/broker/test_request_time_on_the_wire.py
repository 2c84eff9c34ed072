"""The request quota with real brokers and real clients: who is throttled, and how good the estimate is."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.suites.request_time import TRAFFICS, compare
from tests.broker.test_throttle_on_the_wire import watch_mute
from tests.lab.kafka import KafkaCluster
from tests.support.clients import CONSUMERS, PRODUCERS, Load
from tests.support.mutation_tools import metadata
from tests.support.precedence import precedence
from tests.support.raw_client import Frame, RawClient, Topic, produce_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

WINDOW_MS = 1000
"""The longest delay of a request quota."""
FACTOR = 10.0
"""docs/quota-arithmetic.md: how far the estimate may be off."""
COMPARED = ("metadata", "metadata-8", "produce-1", "produce-1-large", "produce-all", "consumer-idle", "rebalance")


def ask_until(client: RawClient, message: Callable[[], Any], enough_ms: int = 1) -> Frame:
    """Ask the same again and again until the answer has a throttle of so much."""
    for _ in range(20_000):
        answer = client.ask(message())
        assert 0 <= answer.message.throttle_time_ms <= WINDOW_MS
        if answer.message.throttle_time_ms >= enough_ms:
            return answer
    raise AssertionError(f"not throttled by {enough_ms} ms in 20 000 requests")


def known_topic(running: Sidecar, name: str) -> Topic:
    with RawClient(running.bootstrap, "unlimited") as client:
        return client.topic(name)


def throttles(running: Sidecar, client_id: str) -> dict[str, tuple[int, float]]:
    """Throttled requests and delays in ms by the quota that is named, from /quotas."""
    groups = (group for group in running.get("/quotas")["groups"] if group["client_id"] == client_id)
    totals = {group["kind"]: group["totals"] for group in groups}
    return {kind: (one["throttled"], one["throttle_ms"]) for kind, one in totals.items() if one["throttled"]}


@pytest.fixture(scope="module")
def limited(kafka: KafkaCluster) -> Iterator[Sidecar]:
    quotas: list[dict[str, Any]] = [
        {"client-id": "<default>", "request_percentage": 0.5},
        {"client-id": "unlimited", "request_percentage": 2000},
    ]
    with sidecar(kafka.bootstrap, quotas, pacing="kafka") as running:
        yield running


def test_metadata_storm_is_throttled_and_muted(limited: Sidecar, kafka: KafkaCluster) -> None:
    """0.5 % of a thread are 50 ms in ten seconds; each ms more is (1 / 50) * 10 s = 200 ms of delay."""
    with precedence(limited.pid, *(node.pid for node in kafka.nodes)):
        with RawClient(limited.bootstrap, "storm") as client:
            answer = ask_until(client, lambda: metadata(10, [], creates=False), 400)
            watch_mute(client, answer, answer.message.throttle_time_ms)
        named = throttles(limited, "storm")
        assert named.keys() == {"request"}
        assert named["request"][0] >= 1


@pytest.mark.parametrize("version", [3, 9, 13])
def test_produce_is_throttled_too(limited: Sidecar, topic: str, version: int) -> None:
    where = known_topic(limited, topic)
    with RawClient(limited.bootstrap, f"produce-{version}-{topic}") as client:
        ask_until(client, lambda: produce_message(version, where, [b"x" * 1000]), 100)


@pytest.mark.long
def test_request_quota_delays_at_most_one_window(kafka: KafkaCluster, topic: str) -> None:
    """Case C8."""
    quotas = [{"client-id": "<default>", "request_percentage": 0.0005}]
    with sidecar(kafka.bootstrap, quotas, pacing="kafka") as running:
        load = Load([running.bootstrap], topic, "busy", records=300, settings={"batch.num.messages": 30})
        made = PRODUCERS["confluent-kafka"](load)
        assert made.errors == []
        assert made.throttle["throttle-events"] > 0
        assert 0 < made.throttle["throttle-time-max"] <= WINDOW_MS
        read = CONSUMERS["java-perf"](Load([running.bootstrap], topic, "reader", records=300))
        assert read.errors == []
        assert 0 < read.throttle["fetch-throttle-time-max"] <= WINDOW_MS
        assert running.metric("kquota_throttled_requests_total", cause="request", client_id="busy") > 0
        assert running.metric("kquota_request_seconds_total", client_id="busy") > 0.00005


def test_a_consumer_that_waits_is_not_charged_for_waiting(kafka: KafkaCluster, topic: str) -> None:
    """Ten seconds of waits of 500 ms: 20 Fetches are charged 0.3 ms each, 0.06 %. All of the waiting would be 100 %."""
    from confluent_kafka import Consumer, TopicPartition

    waits_s = 10.0
    with sidecar(kafka.bootstrap) as running:
        known_topic(running, topic)
        settings = {"bootstrap.servers": running.bootstrap, "client.id": "patient", "group.id": topic}
        consumer = Consumer(settings | {"fetch.wait.max.ms": 500, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        # Its first requests are charged in full, and are over when it fetches again.
        until(lambda: running.metric("kquota_requests_total", api="Fetch") >= 2)
        first_s = running.metric("kquota_request_seconds_total", client_id="patient")
        end = time.monotonic() + waits_s
        while time.monotonic() < end:
            assert consumer.poll(0.5) is None
        consumer.close()
        time.sleep(1.2)  # an exposition is up to a second old
        assert running.metric("kquota_requests_total", api="Fetch") >= waits_s  # it did wait: no more than 2 per second
        charged_s = running.metric("kquota_request_seconds_total", client_id="patient") - first_s
    assert 0 < charged_s < 0.05 * waits_s


@pytest.mark.long
def test_estimate_is_within_stated_factor_of_broker() -> None:
    """A wait for a core is charged here and not by the broker (docs/quota-arithmetic.md): all clients have a core."""
    chosen = [traffic for traffic in TRAFFICS if traffic.key in COMPARED]
    assert len(chosen) == len(COMPARED)
    with precedence():
        rows = compare(chosen, 3.0, 1, print, brokers=1)
    print(*rows, sep="\n")
    assert [row for row in rows if not 1 / FACTOR <= row["ratio"] <= FACTOR] == []
