"""The embedded Kafka: it comes up, it answers clients of every kind, and it never survives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.kafka import (
    JarChecksumError,
    KafkaCluster,
    cache_dir,
    resolve,
)
from tests.lab.kafka.jars import LockedJar, read_lock
from tests.lab.kafka.probe import brokers_seen_by
from tests.support.waiting import until

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
# Nothing listens on port 1, so every request through this "proxy" fails at once: for our code there is no network.


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


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, filled with links to the real jars."""
    resolve("4.2.0")
    real = cache_dir() / "jars"
    for jar in read_lock("4.2.0"):
        link = tmp_path / "jars" / jar.path
        link.parent.mkdir(parents=True)
        link.symlink_to(real / jar.path)
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path))
    return tmp_path


def own_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}


def test_a_damaged_jar_is_refused(own_cache: Path) -> None:
    clients = locked_jar("kafka-clients")
    file = own_cache / "jars" / clients.path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(JarChecksumError) as caught:
        resolve("4.2.0")
    text = str(caught.value)
    assert str(file) in text
    assert clients.sha256 in text
    assert "found    SHA-256" in text
    assert "Delete it" in text
    with pytest.raises(JarChecksumError):
        KafkaCluster.start(1)


def locked_jar(artifact: str) -> LockedJar:
    return next(jar for jar in read_lock("4.2.0") if jar.artifact == artifact)
