"""What /metrics says of a client is what that client sent and was told."""

from __future__ import annotations

import time

import pytest

from tests.corpus.job import wait_for
from tests.lab.kafka import KafkaCluster
from tests.support.precedence import precedence
from tests.support.raw_client import RawClient, decode, fetch_message, produce_message
from tests.support.sidecars import sample_sum, sidecar

RATE = 40_000
CLIENT = "agree"


def test_bytes_throttle_and_utilisation_agree(kafka: KafkaCluster, topic: str) -> None:
    quotas = [{"client-id": CLIENT, "producer_byte_rate": RATE}]
    with sidecar(kafka.bootstrap, quotas, pacing="kafka") as running, RawClient(running.bootstrap, CLIENT) as client:
        name = client.topic(topic)
        sent_bytes = told_ms = took_ms = 0.0
        throttled = 0
        # 30 of 19.5 kB are 585 kB, and 400 kB fit into the window: the 21st makes 409 kB, 0.2 s over, and each of
        # the others takes 0.5 s more. An answer that comes only after the delay's end tells of none.
        with precedence(running.pid, *(node.pid for node in kafka.nodes)):
            for _ in range(30):
                message = produce_message(9, name, [b"x" * 19_400])
                frame = client.frame(message)
                sent_at = time.monotonic()
                client.send(frame)
                answer = client.read_frame()
                told = decode(message, answer.payload).throttle_time_ms
                sent_bytes += len(frame) - 4
                if told:
                    told_ms += told
                    took_ms += (answer.first_byte_at - sent_at) * 1000
                    throttled += 1
        of = {"client_id": CLIENT, "user": "ANONYMOUS"}
        group = {"client_id": CLIENT, "kind": "produce"}
        wait_for("all bytes", lambda: running.metric("kquota_bytes_total", kind="produce", **of) == sent_bytes)
        assert running.metric("kquota_throttled_requests_total", cause="produce", **of) == throttled > 3
        # Told is what was left when the broker had answered; counted is the whole delay.
        counted_ms = running.metric("kquota_throttle_seconds_total", cause="produce", **of) * 1000.0
        assert told_ms <= counted_ms <= told_ms + took_ms + throttled  # each is rounded to a ms
        exposition = running.metrics()
        observed = sample_sum(exposition, "kquota_quota_observed", **group)
        utilisation = sample_sum(exposition, "kquota_quota_utilisation_ratio", **group)
        assert utilisation == pytest.approx(observed / RATE, rel=0.05)
        fetched = client.ask(fetch_message(11, name))
        # Kafka charges 4 + the body, which is the response without its size and its header of 4.
        wait_for("the fetch", lambda: running.metric("kquota_bytes_total", kind="fetch", **of) == len(fetched.payload))
