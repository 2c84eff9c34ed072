"""The embedded Kafka never survives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.kafka.probe import brokers_seen_by
from tests.support.waiting import until

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    """A process that runs; one that has ended but was not yet collected by its parent does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


CHILD = """
import threading, time
from tests.lab.kafka import KafkaCluster
clusters = []
# In a thread that ends: the kernel's parent-death signal alone would now kill the broker.
starter = threading.Thread(target=lambda: clusters.append(KafkaCluster.start(1)))
starter.start()
starter.join()
print(clusters[0].nodes[0].pid, clusters[0].nodes[0].port, clusters[0].directory, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_jvm_survives_a_killed_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=REPOSITORY, env=own_environment(), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, port, directory = parent.stdout.readline().split()
        assert alive(int(pid))
        assert [broker.node_id for broker in brokers_seen_by("127.0.0.1", int(port))] == [1]
        parent.send_signal(number)
        parent.wait()
        until(lambda: not alive(int(pid)) and not Path(directory).exists())


# --- jars and Java


def own_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}
