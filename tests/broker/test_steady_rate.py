"""Real clients against a quota of 1 MB/s: each is held to it, loses nothing, and disturbs no client without a quota."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.clients import CONSUMERS, PRODUCERS, Client, Load, Timeline, in_background
from tests.support.precedence import precedence
from tests.support.sidecars import Sidecar, sidecar

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

RATE = 1_000_000
CLIENTS = ("kafka-python", "aiokafka", "confluent-kafka", "java-console")
RECORDS, RECORD_BYTES = 2_000, 10_000  # 20 MB: 10 MB that the window has room for, and 10 MB at the quota's pace
FREE_RECORDS, FREE_RECORD_BYTES = 500, 10_000
FIRST_WINDOW_S = 11.0
BATCH_BYTES = 100_000
"""Both directions use batches of at most this much, so that a client's own portions do not blur its rate: librdkafka
would send 1 MB at a time. Consumers throw away the part of a batch that a portion ends in."""

SETTINGS = {
    "kafka-python": {"batch_size": BATCH_BYTES, "linger_ms": 5},
    "aiokafka": {"max_batch_size": BATCH_BYTES, "linger_ms": 5},
    "confluent-kafka": {"batch.size": BATCH_BYTES, "linger.ms": 5},
    "java-console": {},
}


@pytest.fixture(scope="module")
def limited(kafka: KafkaCluster) -> Iterator[Sidecar]:
    quotas = [
        {"client-id": f"{name}-{kind}", f"{kind}r_byte_rate": RATE}
        for name in CLIENTS
        for kind in ("produce", "consume")
    ]
    with sidecar(kafka.bootstrap, quotas) as running:
        yield running


@pytest.fixture
def timely(kafka: KafkaCluster, limited: Sidecar) -> Iterator[None]:
    """The clients, the sidecar and the broker have a core whatever else runs: a client that waits for one is slower
    than its quota."""
    with precedence(limited.pid, *(node.pid for node in kafka.nodes)):
        yield


def topic_of(name: str) -> str:
    return f"steady-{name}"


def load(kafka: KafkaCluster, running: Sidecar, name: str, kind: str) -> Load:
    return Load(
        [running.bootstrap],
        topic_of(name),
        f"{name}-{kind}",
        RECORDS,
        RECORD_BYTES,
        settings=SETTINGS[name] if kind == "produce" else {},
        direct=kafka.bootstrap,
    )


FREE_CLIENT = """
import json, sys
from tests.support import clients
kind, bootstrap, topic, client_id, records, size = sys.argv[1:]
work = clients.Load([bootstrap], topic, client_id, int(records), int(size))
timeline = getattr(clients, kind)["aiokafka"](work)
timeline.assert_complete(work)
print(json.dumps(timeline.points[-1][0] - timeline.points[0][0]))
"""


def free_client_s(running: Sidecar, kind: str, topic: str, client_id: str) -> float:
    """Seconds that a client without a quota takes for its 5 MB; in a process of its own, as the limited ones keep
    Python's interpreter lock busy in this one."""
    arguments = [kind, running.bootstrap, topic, client_id, str(FREE_RECORDS), str(FREE_RECORD_BYTES)]
    done = subprocess.run([sys.executable, "-c", FREE_CLIENT, *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


def wait_until_throttled(running: Sidecar, client_ids: list[str]) -> None:
    """Their bursts are over: the rest of their run is spent being held back."""
    deadline = time.monotonic() + 60
    while True:
        held = {row["client_id"] for row in running.get("/quotas")["groups"] if row["totals"]["throttled"]}
        if held.issuperset(client_ids):
            return
        assert time.monotonic() < deadline, held
        time.sleep(0.2)


def run_all(kafka: KafkaCluster, running: Sidecar, clients: dict[str, Client], kind: str) -> dict[str, Timeline]:
    """All limited clients at once, and one without a quota while they are being held back."""
    alone_s = free_client_s(running, f"{kind.upper()}RS", topic_of("free-alone"), f"free-alone-{kind}")
    loads = {name: load(kafka, running, name, kind) for name in CLIENTS}
    futures = {name: in_background(clients[name], work) for name, work in loads.items()}
    wait_until_throttled(running, [work.client_id for work in loads.values()])
    beside_s = free_client_s(running, f"{kind.upper()}RS", topic_of("free-beside"), f"free-beside-{kind}")
    timelines = {name: future.result(200) for name, future in futures.items()}
    for name, timeline in timelines.items():
        timeline.assert_complete(loads[name])
        print(
            f"{name} {kind}: {timeline.steady_rate(FIRST_WINDOW_S) / RATE:.3f} of the quota after the first window, "
            f"{timeline.duration_s:.1f} s in all, client side {timeline.throttle}"
        )
    print(f"client without a quota: {alone_s:.2f} s alone, {beside_s:.2f} s beside the throttled ones")
    # 5 MB: at the others' rate it would take 5 s less the window's room. The factor is for a busy machine.
    assert beside_s < max(5 * alone_s, 4.0)
    return timelines


@pytest.mark.usefixtures("timely")
def test_producers_run_evenly_at_their_limit(kafka: KafkaCluster, limited: Sidecar) -> None:
    timelines = run_all(kafka, limited, PRODUCERS, "produce")
    for name, timeline in timelines.items():
        assert timeline.steady_rate(FIRST_WINDOW_S) == pytest.approx(RATE, rel=0.05), name
    throttled = {
        row["client_id"]: row["totals"] for row in limited.get("/quotas")["groups"] if row["kind"] == "produce"
    }
    for name in CLIENTS:
        assert throttled[f"{name}-produce"]["throttled"] > 0
        assert throttled[f"{name}-produce"]["capped"] == 0
    assert timelines["kafka-python"].throttle["throttle-time-max"] > 0
    assert timelines["confluent-kafka"].throttle
    closed = limited.metrics()
    assert "broker_" not in closed.split("kquota_connections_closed_total", 1)[-1].split("# HELP")[0]


@pytest.mark.usefixtures("timely")
def test_consumers_run_evenly_at_their_limit(kafka: KafkaCluster, limited: Sidecar) -> None:
    timelines = run_all(kafka, limited, CONSUMERS, "consume")
    for name, timeline in timelines.items():
        assert timeline.steady_rate(FIRST_WINDOW_S) == pytest.approx(RATE, rel=0.05), name
    assert max(timelines["kafka-python"].throttle.values()) > 0
    assert limited.metric("kquota_fetches_answered_total") > 0
