"""`kquota explain --admin URL` beside real clients and a real broker: what it says is what happened."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.app.cli.main import app
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import Sidecar, sidecar

RATE = 50_000
QUOTAS = [
    {"user": "web", "client-id": "etl", "producer_byte_rate": RATE, "candidate": {"producer_byte_rate": RATE // 2}},
    {"user": "<default>", "consumer_byte_rate": 1_000_000_000, "max_connections": 50},
]


def explain(running: Sidecar, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["explain", "--admin", running.admin, *arguments])
    assert done.exit_code == 0, done.stderr
    print(done.stdout)
    return done.stdout


def explained(running: Sidecar, *arguments: str) -> Any:
    return json.loads(explain(running, *arguments, "--json"))


@pytest.fixture
def running(kafka: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka.bootstrap, QUOTAS, identity={"sources": ["static"], "static": "web"}) as made:
        yield made


def test_a_throttled_producer_is_explained_while_it_waits(running: Sidecar, topic: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=running.bootstrap, client_id="etl", linger_ms=0, acks=1, retries=0)
    stop = threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            while not stop.is_set():
                producer.send(topic, b"x" * 40_000).get(60)
        except BaseException as error:  # seen by the test
            failures.append(error)

    thread = threading.Thread(target=produce)
    assert "no client is throttled" in explain(running)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not (throttled := explained(running)["throttled"]):  # 500 KB pass at once
            assert time.monotonic() < deadline
            assert not failures
            time.sleep(0.2)
        (row,) = throttled
        assert (row["user"], row["client_id"], row["limit"]) == ("web", "etl", RATE)
        assert row["entity"] == {"user": "web", "client-id": "etl"}
        assert row["set_in"] == f"in the file {running.config}"

        page = explain(running, "--client-id", "etl")
        assert page.startswith("user web, client-id etl, at ")
        assert "  user: web (identity.static)\n" in page
        answer = explained(running, "--client-id", "etl")
    finally:
        stop.set()
        thread.join(60)
        producer.close()
    assert failures == []
    identity = answer["identity"]
    assert identity["source"] == "static"
    assert identity["connections"] >= 1
    assert "kafka-python" in identity["software"][0]
    (kind, *_) = answer["kinds"]
    assert kind["level"] == "user+client-id"
    now = kind["now"]
    assert now["share"] > 0.9
    assert now["throttled"] >= 1
    assert now["candidate"]["throttled"] >= 1
    assert now["candidate"]["limit"] == RATE // 2
    decision = kind["decisions"][-1]
    assert (decision["api"], decision["user"], decision["client_id"]) == ("Produce", "web", "etl")
    assert 40_000 < decision["amount"] < 41_000
    assert decision["delay_ms"] > 0
    opened = {one["scope"]: one["open"] for one in answer["connections"]}
    assert opened["user"] == opened["ip"] >= 1

    # It has told the truth: what it called the last delay is in the metrics, and after "free" no client is throttled.
    assert running.metric("kquota_throttled_requests_total", cause="produce", client_id="etl") >= now["throttled"]
    # (The last delay may last longer than a further request would have to wait.)
    while (left := explained(running, "--client-id", "etl")["kinds"][0]["now"]) and max(
        left["wait_ms"], left["muted_ms"]
    ):
        assert time.monotonic() < deadline
        time.sleep(min(max(left["free_ms"], left["muted_ms"]) / 1000 + 0.05, 5))
    assert "no client is throttled" in explain(running)
    assert "last throttles, newest first:" in explain(running, "--client-id", "etl")
