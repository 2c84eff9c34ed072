"""An honest client next to each kind of attacker, all through one sidecar: it is served throughout."""

import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.lab.kafka import KafkaCluster
from tests.soak import rss_mb
from tests.support.attackers import KINDS, ONCE, attack
from tests.support.fault_tools import create_topic
from tests.support.precedence import precedence
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(400)
SHORT = ("http_get", "cut_headers", "slow_reader")
"""The others are long: what runs with precedence takes the cores from all tests next to it."""

ATTACK_S = 1.0
LONG_ATTACKS_S = {"slow_before_login": 2.5, "slow_writers": 2.5, "many_connections": 2.5, "slow_reader": 5.0}
"""Of those that only a timeout ends."""
QUOTAS = [{"client-id": "<default>", "controller_mutation_rate": 5}]
LIMITS = {"stall_timeout_ms": 1000, "pre_auth_timeout_ms": 1000}
TOPIC = "honest-beside-attackers"
MAX_RSS_MB = 300
LONGEST_MS = 10_000.0
"""Broker, attackers and other tests share the machine: what is held up by the sidecar would never come."""
REASONS = {
    "http_get": ("client_malformed", 20),
    "slow_before_login": ("pre_auth_timeout", 50),
    "slow_writers": ("slow_request", 50),
    "slow_reader": ("slow_reader", 1),
    "resets_within_a_frame": ("client_reset", 1),
    "half_closed": ("client_closed", 1),
}
"""Why, and how many at least, connections of a kind end."""
UNREADABLE = {
    "http_get": ["http_on_kafka_port"],
    "tls_hello": ["tls_on_plain_port"],
    "cut_headers": ["header_malformed"],
    "oversized_frames": ["frame_size_negative", "frame_too_small", "frame_too_large"],
}
"""What was wrong with the bytes of a kind, as metrics and log say it."""


class Honest:
    """A producer and a consumer, one record at a time."""

    def __init__(self, running: Sidecar, cluster: KafkaCluster) -> None:
        create_topic(cluster.bootstrap[0], TOPIC)
        self.producer = KafkaProducer(bootstrap_servers=running.bootstrap, client_id="honest", acks="all", linger_ms=0)
        self.consumer = KafkaConsumer(bootstrap_servers=running.bootstrap, client_id="honest", auto_offset_reset="none")
        self._partition = TopicPartition(TOPIC, 0)
        self.consumer.assign([self._partition])
        self.consumer.seek(self._partition, 0)
        self.sent: list[bytes] = []
        self.got: list[bytes] = []

    def exchange_ms(self) -> float:
        """Produce a record, get its offset, and read it: how long that took."""
        began = time.monotonic()
        self.sent.append(b"honest %d" % len(self.sent))
        answer = self.producer.send(TOPIC, self.sent[-1], partition=0).get(30)
        assert answer.offset == len(self.sent) - 1, "once each, and in order"
        while len(self.got) < len(self.sent):
            for record in self.consumer.poll(timeout_ms=1000).get(self._partition, ()):
                assert record.offset == len(self.got)
                self.got.append(record.value)
            assert time.monotonic() - began < 30, "what was acknowledged does not come"
        return (time.monotonic() - began) * 1000.0


@pytest.fixture(scope="module")
def running(kafka: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka.bootstrap, QUOTAS, limits=LIMITS) as one:
        yield one


@pytest.fixture(scope="module")
def honest(running: Sidecar, kafka: KafkaCluster) -> Iterator[Honest]:
    yield (one := Honest(running, kafka))
    one.producer.close(10)
    one.consumer.close(autocommit=False)


@pytest.fixture(scope="module")
def alone_ms(honest: Honest, running: Sidecar, kafka: KafkaCluster) -> float:
    with precedence(os.getpid(), running.pid, *(node.pid for node in kafka.nodes)):
        for _ in range(20):
            honest.exchange_ms()
        return statistics.median(honest.exchange_ms() for _ in range(30))


@pytest.fixture(scope="module")
def attacker() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The kinds that have attacked."""
    return set()


@pytest.mark.parametrize(
    "kind", [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_attacker_does_not_slow_honest_client(
    running: Sidecar,
    kafka: KafkaCluster,
    honest: Honest,
    alone_ms: float,
    attacker: ProcessPoolExecutor,
    seen: set[str],
    kind: str,
) -> None:
    seen.add(kind)
    # All that take part come before whatever else the machine does, the attacker too.
    attacker_pid = attacker.submit(os.getpid).result()
    with precedence(os.getpid(), running.pid, attacker_pid, *(node.pid for node in kafka.nodes)):
        attacked = attacker.submit(attack, kind, running.bootstrap, LONG_ATTACKS_S.get(kind, ATTACK_S))
        beside = [honest.exchange_ms()]
        while not attacked.done():
            beside.append(honest.exchange_ms())
    done = attacked.result()
    assert done["connections"] >= 1, done
    median_ms = statistics.median(beside)
    print(f"{kind}: {done}; alone {alone_ms:.1f} ms, next to it {median_ms:.1f} ms, at worst {max(beside):.0f} ms")
    assert honest.got == honest.sent
    assert median_ms < 20 * alone_ms + 500
    assert max(beside) < LONGEST_MS
    assert rss_mb(running.pid) < MAX_RSS_MB
    if kind in ONCE and kind not in ("garbage", "cut_headers", "client_ids", "lying_arrays", "resets_within_a_frame"):
        assert done["ended"] >= 1, "not one of these is a client: each is shown the door"


@pytest.mark.parametrize("lane", ["short", pytest.param("long", marks=pytest.mark.long)])
def test_attackers_leave_nothing_behind(running: Sidecar, honest: Honest, seen: set[str], lane: str) -> None:
    """Connections are gone and counted, nothing was a bug of ours, log and metrics can be read whatever they sent."""

    def gone() -> bool:
        honest.exchange_ms()
        return all("honest" in each["client_ids"] for each in running.get("/connections")["connections"])

    until(gone, "the attackers' connections to end", 60)
    time.sleep(1.1)  # an exposition is given again for up to a second
    assert running.metric("kquota_connections_closed_total", reason="internal_error") == 0
    assert seen, f"no attacks of the {lane} lane"
    for kind in seen & REASONS.keys():
        reason, least = REASONS[kind]
        assert running.metric("kquota_connections_closed_total", reason=reason) >= least, reason
    errors = {error for kind in seen for error in UNREADABLE.get(kind, ())}
    for error in errors:
        assert running.metric("kquota_parse_errors_total", kind=error) >= 1
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]  # whatever they called themselves
    complaints = [line for line in lines if line["level"] in ("warning", "error")]
    assert {line["message"] for line in complaints} <= {"connection closed", "more connections closed"}
    assert errors & {line.get("kind") for line in complaints}
    assert len(complaints) < 1000, "a flood of connections is no flood of log lines"
    assert honest.got == honest.sent
