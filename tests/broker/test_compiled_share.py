"""How many requests of real clients with default settings need interpreted Python: under 1 % of a session's."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quota import compiled
from tests.lab.kafka import KafkaCluster, run_tool
from tests.support.clients import CONSUMERS, PRODUCERS, Load
from tests.support.interpreted import counted
from tests.support.secure_tools import PASSWORDS, login
from tests.support.sidecars import sidecar

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(compiled.WHY_NOT), reason=f"the data path is not compiled: {compiled.WHY_NOT}"),
]
QUOTAS = [{"user": "<default>", "client-id": "<default>", "producer_byte_rate": 1e9, "consumer_byte_rate": 1e9}]
RECORDS = 60_000
"""Each in a request of its own."""
AT_MOST = 0.01
NUMBERS = itertools.count()

Run = Callable[[str, int], None]
"""Makes at least so many requests by a bootstrap address."""


def share(bootstrap: list[str], folder: Path, run: Run) -> float:
    """Calls of interpreted functions per request, those of logins and first requests included."""
    before, calls = counted(folder)
    with sidecar(bootstrap, QUOTAS, before=before) as running:
        run(running.bootstrap, 100)
        began = calls()
        assert began > 0, "the counter works"
        requests = running.metric("kquota_requests_total")
        run(running.bootstrap, RECORDS)
        requests = running.metric("kquota_requests_total") - requests
        assert requests >= RECORDS
        found = (calls() - began) / requests
    print(f"{found:.4f} calls in each of {requests:.0f} requests")
    return found


def client(name: str, does: dict[str, Any], topic: str, **settings: Any) -> Run:
    def run(bootstrap: str, records: int) -> None:
        load = Load([bootstrap], topic, f"share-{next(NUMBERS)}", records, 500, settings=settings)
        assert does[name](load).errors == []

    return run


ONE_EACH = {"java-perf": {"batch.size": 1}, "confluent-kafka": {"batch.num.messages": 1}}
SMALL_FETCHES = {
    "java-console": {"max.partition.fetch.bytes": 600},
    "confluent-kafka": {"fetch.message.max.bytes": 600},
}


@pytest.mark.parametrize("name", [*ONE_EACH, "transactions"])
def test_produces_compiled(name: str, kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    def transactions(bootstrap: str, records: int) -> None:
        words = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)]
        words += ["--record-size", "500", "--throughput", "-1", "--transaction-duration-ms", "100"]
        run_tool("org.apache.kafka.tools.ProducerPerformance", [*words, "--command-property", "batch.size=1"])

    run = client(name, PRODUCERS, topic, **ONE_EACH[name]) if name in ONE_EACH else transactions
    assert share(kafka.bootstrap, tmp_path, run) < AT_MOST


@pytest.mark.parametrize("name", list(SMALL_FETCHES))
def test_fetches_in_groups_compiled(name: str, kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    load = Load(kafka.bootstrap, topic, "filled", RECORDS, 500, settings=ONE_EACH["confluent-kafka"])
    PRODUCERS["confluent-kafka"](load).assert_complete(load)
    assert share(kafka.bootstrap, tmp_path, client(name, CONSUMERS, topic, **SMALL_FETCHES[name])) < AT_MOST


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_sasl_sessions_produce_compiled(mechanism: str, kafka_secure: KafkaCluster, topic: str, tmp_path: Path) -> None:
    settings = login("confluent-kafka", mechanism, "alice", PASSWORDS["alice"]) | ONE_EACH["confluent-kafka"]
    bootstrap = kafka_secure.bootstrap_of("SASL_PLAINTEXT")
    assert share(bootstrap, tmp_path, client("confluent-kafka", PRODUCERS, topic, **settings)) < AT_MOST
