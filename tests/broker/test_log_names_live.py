"""A client whose name steers terminals: what the log and the commands of a running sidecar show."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.corpus.job import wait_for
from tests.lab.kafka import KafkaCluster
from tests.support.hostile_names import CLIENT, CLIENT_SHOWN, harmless
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.long


def test_console_log_escapes_hostile_client_name(kafka: KafkaCluster) -> None:
    """The name comes over the wire; the log, `top` and `explain` of the running sidecar show the same text."""
    quotas = [{"client-id": "<default>", "producer_byte_rate": 1000}]
    with sidecar(kafka.bootstrap, quotas, log={"format": "console"}) as running:
        with RawClient(f"127.0.0.1:{running.port}", CLIENT) as client:
            client.ask(produce_message(9, client.topic("names"), [b"x" * 30_000]), 120)
            wait_for("the log", lambda: CLIENT_SHOWN in running.log.read_text(errors="surrogateescape"))
            shown = []
            for command in (["top", "--once"], ["explain"], ["explain", "--client-id", CLIENT]):
                whole = [sys.executable, "-m", "proxy.app.cli.main", *command, "--admin", running.admin]
                shown.append(subprocess.run(whole, capture_output=True, timeout=60, check=True).stdout.decode())
        log = running.log.read_bytes().decode()
    for text in (log, *shown):
        assert CLIENT_SHOWN in text
        assert harmless(text), text
