"""A broker with quotas of its own next to ours: the longer throttle counts, once, and metrics distinguish the two."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import RawClient, produce_message, set_brokers_quota
from tests.support.sidecars import Sidecar, sidecar

RATE = 20_000
"""Bytes/s, ours and the broker's alike."""
PART = 20_000
PARTS = 13
"""13 requests of 20 kB are 260 kB. The window holds 10 s at the rate, 200 kB: the eleventh request is over it by 20 kB,
which is (22 000 - 20 000) / 20 000 * 10 s = 1 s of delay, then the twelfth, then the thirteenth."""


@pytest.fixture(scope="module")
def limited(kafka: KafkaCluster) -> Iterator[Sidecar]:
    for client_id in ("theirs", "both"):
        set_brokers_quota(kafka.bootstrap[0], client_id, "producer_byte_rate", RATE)
    ours = [{"client-id": client_id, "producer_byte_rate": RATE} for client_id in ("ours", "both")]
    with sidecar(kafka.bootstrap, ours, pacing="kafka") as running:
        yield running
    for client_id in ("theirs", "both"):  # other tests look at all quotas of this cluster
        set_brokers_quota(kafka.bootstrap[0], client_id, "producer_byte_rate", None)


def push(address: str, client_id: str, topic: str) -> tuple[float, list[int]]:
    """Produce as fast as answers come; the seconds until the last answer, and the announced throttle times."""
    with RawClient(address, client_id) as client:
        message = produce_message(9, client.topic(topic), [b"x" * (PART - 200)])
        began = time.monotonic()
        answer = [client.ask(message, 60).message.throttle_time_ms for _ in range(PARTS)]
        return time.monotonic() - began, answer


def test_two_throttles_at_once_cost_no_more_than_one(kafka: KafkaCluster, limited: Sidecar, topic: str) -> None:
    with RawClient(kafka.bootstrap[0]) as client:
        client.topic(topic)
    address = f"127.0.0.1:{limited.port}"
    clients = ("ours", "theirs", "both")
    with ThreadPoolExecutor(len(clients)) as pool:
        runs = dict(zip(clients, pool.map(lambda one: push(address, one, topic), clients), strict=True))
    for client_id, (seconds, answer) in runs.items():
        assert max(answer) >= 1000, client_id
        assert seconds >= 1.0, client_id  # the thirteenth request waits at least for the twelfth's second
    # One throttle after the other would take as long as both together: half of that is one of them.
    assert runs["both"][0] < 0.75 * (runs["ours"][0] + runs["theirs"][0]), runs

    def seconds(client_id: str) -> tuple[float, float]:
        """That ours throttled it, and that the broker did."""
        names = ("kquota_throttle_seconds_total", "kquota_broker_throttle_seconds_total")
        ours, theirs = (limited.metric(name, client_id=client_id, user="ANONYMOUS") for name in names)
        return ours, theirs

    assert seconds("theirs") == (0, pytest.approx(sum(runs["theirs"][1]) / 1000))
    assert min(seconds("both")) > 0
    ours_s, theirs_s = seconds("ours")
    assert ours_s > theirs_s == 0
    assert limited.metric("kquota_broker_throttled_requests_total", client_id="theirs", user="ANONYMOUS") == sum(
        each > 0 for each in runs["theirs"][1]
    )
