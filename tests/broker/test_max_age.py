"""`connections_max_age_ms` with a real broker and real clients: they reconnect again and again, lose nothing
and keep to their limits."""

from collections.abc import Iterator, Mapping

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.clients import CONSUMERS, LIBRARIES, PRODUCERS, Client, Load
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import in_background

RATE = 500_000
AGE_MS = 1_500
RECORDS, RECORD_BYTES = 400, 10_000


@pytest.fixture(scope="module")
def aging(kafka: KafkaCluster) -> Iterator[Sidecar]:
    quotas = [{"client-id": "<default>", "producer_byte_rate": RATE, "consumer_byte_rate": RATE}]
    settings = {"connections_max_age_ms": AGE_MS, "quota.window.num": 2}
    with sidecar(kafka.bootstrap, quotas, **settings) as running:
        yield running


def run_all(running: Sidecar, clients: Mapping[str, Client], kind: str) -> None:
    before = running.metric("kquota_connections_closed_total", reason="max_age")
    loads = {
        name: Load([running.bootstrap], f"aged-{name}", f"{name}-{kind}", RECORDS, RECORD_BYTES) for name in LIBRARIES
    }
    futures = {name: in_background(clients[name], load) for name, load in loads.items()}
    for name, future in futures.items():
        timeline = future.result(200)
        # What librdkafka reports of a cluster of one broker whenever that closes a connection, and Java of one that
        # ends before its first Metadata request, as a JVM on a busy machine may start for longer than the age.
        fine = ("_ALL_BROKERS_DOWN", f"Bootstrap broker {running.bootstrap} (id: -1 ")
        timeline.errors = [error for error in timeline.errors if not any(text in error for text in fine)]
        timeline.assert_complete(loads[name])
        assert timeline.duration_s > 3 * AGE_MS / 1000, name
        # The window of two samples lets a second or two pass at once.
        assert timeline.duration_s > 0.7 * (loads[name].total_bytes / RATE - 2), name
    aged = running.metric("kquota_connections_closed_total", reason="max_age") - before
    assert aged >= 3 * len(LIBRARIES), "each client's connections ended several times"


def test_producers_and_consumers_outlive_their_connections(aging: Sidecar) -> None:
    """Records come once and in order, and no client reports trouble."""
    run_all(aging, PRODUCERS, "produce")
    run_all(aging, CONSUMERS, "consume")
