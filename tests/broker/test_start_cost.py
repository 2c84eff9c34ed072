"""What a start loads, and the memory of an idle sidecar: counted in modules and bytes, not in seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig.procstat import resident_bytes
from benchmarks.rig.rawclient import idle_connections
from proxy.app.common.blocked_imports import UNUSED
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.long

PROJECT = Path(__file__).parents[2]
LOADED = """
import json, sys
from proxy.app.cli.main import app
from proxy.app.common.blocked_imports import UNUSED, blocked_imports

with blocked_imports(*UNUSED):
    import proxy.app.run
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""
NOT_AT_START = {
    *UNUSED,
    "pytest",
    "kafka",  # usage records on a topic
    "cramjam",
    "tests.lab.demo",
    "tests.lab.kafka",
    "deploy.kubernetes.webhook",
    "proxy.app.cli.simulate",
    "proxy.app.cli.top",
    "confluent_kafka",
    "aiokafka",
    "pyspark",
    "analysis",
}
IDLE_MB = 65.0
"""Resident memory of a sidecar without connections (1 MB = 10⁶ bytes), once it has been asked for its metrics: 59.5
interpreted, 63.4 with the compiled data path, whose files are 3.5 MB of pages that all processes of a node share."""
IDLE_CONNECTION_BYTES = 25_000
CONNECTIONS = 300


def test_a_start_loads_what_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=PROJECT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & NOT_AT_START
    assert len(loaded) < 850, "750 at the time of writing; a library more is some 30"


def test_memory_of_an_idle_sidecar_and_of_idle_connections(kafka: KafkaCluster) -> None:
    with sidecar(kafka.bootstrap, before=(), log={"level": "info", "format": "json"}) as proxy:
        for _ in range(3):
            proxy.metrics()
        alone = resident_bytes(proxy.pid)
        assert alone <= IDLE_MB * 1e6, f"{alone / 1e6} MB"
        with idle_connections(("127.0.0.1", proxy.port), CONNECTIONS):
            grown = resident_bytes(proxy.pid) - alone
        assert grown / CONNECTIONS <= IDLE_CONNECTION_BYTES
