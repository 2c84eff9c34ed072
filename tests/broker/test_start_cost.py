"""The memory of an idle sidecar and of idle connections."""

import pytest

from benchmarks.rig.procstat import resident_bytes
from benchmarks.rig.rawclient import idle_connections
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.long

IDLE_MB = 65.0
"""Resident memory of a sidecar without connections (1 MB = 10⁶ bytes), once it has been asked for its metrics: 59.5
interpreted, 63.4 with the compiled data path, whose files are 3.5 MB of pages that all processes of a node share."""
IDLE_CONNECTION_BYTES = 25_000
CONNECTIONS = 300


def test_memory_of_an_idle_sidecar_and_of_idle_connections(kafka: KafkaCluster) -> None:
    with sidecar(kafka.bootstrap, before=(), log={"level": "info", "format": "json"}) as proxy:
        for _ in range(3):
            proxy.metrics()
        alone = resident_bytes(proxy.pid)
        assert alone <= IDLE_MB * 1e6, f"{alone / 1e6} MB"
        with idle_connections(("127.0.0.1", proxy.port), CONNECTIONS):
            grown = resident_bytes(proxy.pid) - alone
        assert grown / CONNECTIONS <= IDLE_CONNECTION_BYTES
