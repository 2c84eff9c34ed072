"""Kafka's own system test of quotas (tests/kafkatest/tests/client/quota_test.py), rebuilt: at a broker with quotas of
its own, and through the sidecar that has them, side by side.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

import pytest

from benchmarks.evasion.honest import finish, history_of, read_numbers
from benchmarks.evasion.run import start
from benchmarks.suites.replicas import java_client
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.cluster import BROKER_HEAP
from tests.lab.kafka.jmx import JMX, attributes
from tests.lab.kafka.tools import QUICK_JVM
from tests.support.certificates import Authority
from tests.support.clients import CONSUMERS, PRODUCERS, Load, Timeline, is_trouble, record
from tests.support.history import assert_clean
from tests.support.precedence import precedence
from tests.support.raw_client import set_brokers_quota
from tests.support.records import produce
from tests.support.secure_tools import PASSWORDS, login, secure_cluster
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import in_background

pytestmark = pytest.mark.timeout(240)

PRODUCE, CONSUME = 500_000, 400_000
HIGH = 1_000_000_000
RECORD_BYTES = 5000
SECONDS = 30
"""Worth of the limits, ten of which a burst may take."""
STEADY_S = 11.0
"""From the first byte on, then Kafka's window of eleven samples has passed."""
CLIENT, USER, ANY = "etl", "alice", "<default>"
LISTENER = "SASL_PLAINTEXT"
LIMITS = {"produce": PRODUCE, "fetch": CONSUME}


class Row(NamedTuple):
    """The quota that applies, others that do not, and who is held to it."""

    of: dict[str, str]
    others: list[dict[str, str]]
    consumers: int = 1
    version: str = ""
    """Of a Java client that does not wait by itself."""


ROWS = {
    "client-id": Row({"client-id": CLIENT}, [{"client-id": ANY}]),
    "default client-id": Row({"client-id": ANY}, [{"client-id": "another"}]),
    "user": Row({"user": USER}, [{"user": ANY}, {"client-id": CLIENT}]),
    "default user": Row({"user": ANY}, [{"client-id": ANY}]),
    "user and client-id": Row(
        {"user": USER, "client-id": CLIENT}, [{"user": USER, "client-id": ANY}, {"user": ANY}, {"client-id": CLIENT}]
    ),
    "default user and client-id": Row({"user": ANY, "client-id": ANY}, [{"user": ANY}, {"client-id": ANY}]),
    "two consumers": Row({"client-id": CLIENT}, [{"client-id": ANY}], consumers=2),
    "an old client": Row({"client-id": CLIENT}, [{"client-id": ANY}], version="1.1.1"),
}
IN_MAKE_TEST = "user and client-id"


@pytest.fixture(scope="module")
def pair(authority: Authority, kafka_secure: KafkaCluster) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """A broker with quotas of its own, and one behind a sidecar."""
    with secure_cluster(authority, jvm=(*QUICK_JVM, *BROKER_HEAP, *JMX)) as one:
        yield one, kafka_secure


class Way(NamedTuple):
    """To a broker, and what the side with the quota measures by kind: bytes/s, and of throttles something."""

    cluster: KafkaCluster
    bootstrap: str
    measure: Callable[[str], tuple[float, float]]
    most: float
    """Of the limit, as clients see it. Kafka's test allows them twice the limit: what a broker's window has let pass at
    once may come again when that has left it. On a busy machine a broker let 2.3 times the limit pass in 13 s."""


def directly(cluster: KafkaCluster) -> Way:
    def measure(kind: str) -> tuple[float, float]:
        found = []
        for attribute in ("byte-rate", "throttle-time"):
            beans = attributes(cluster.nodes[0], f"kafka.server:type={kind.capitalize()},*", attribute)
            mine = [value for keys, value in beans.items() if keys & {("client-id", CLIENT), ("user", USER)}]
            found.append(sum(value for value in mine if isfinite(value)))
        return found[0], found[1]

    return Way(cluster, cluster.bootstrap_of(LISTENER)[0], measure, 4.0)


def through(cluster: KafkaCluster, running: Sidecar) -> Way:
    def measure(kind: str) -> tuple[float, float]:
        highest = 0.0
        for _ in range(12):
            highest = max(highest, running.metric("kquota_quota_observed", kind=kind))
            time.sleep(1.0)
        # A reader may be kept at its rate by smaller portions alone.
        throttled = running.metric("kquota_throttle_seconds_total", cause=kind, client_id=CLIENT, user=USER)
        shaped = running.metric("kquota_fetches_shaped_total") if kind == "fetch" else 0.0
        return highest, throttled + shaped

    return Way(cluster, running.bootstrap, measure, 1.1)


def java(version: str, kind: str) -> Callable[[Load], Timeline]:
    """The performance tools of Kafka's newest release, or the client of another one."""
    if not version:
        return (PRODUCERS if kind == "produce" else CONSUMERS)["java-perf"]

    def run(load: Load) -> Timeline:
        work = {"bootstrap": load.bootstrap, "topic": load.topic, "client_id": load.client_id, "per_s": 1_000_000}
        work |= {"seconds": SECONDS, "record_bytes": load.record_bytes, "buffer_bytes": 500_000}
        work["reads"] = load.records if kind == "fetch" else 0
        client = java_client(version, *(f"{name}={value}" for name, value in load.settings.items()))
        answer = finish(start(client(work), work))
        if kind == "produce":
            assert_clean(history_of(answer["sent"], answer["acked"], read_numbers(load.direct, load.topic)))
        else:
            assert answer["read"] == list(range(len(answer["read"])))
        errors = [text for text in answer["errors"] if is_trouble(text)]
        timeline = Timeline(version, errors=errors, throttle={"throttle-time-max": answer["throttled_ms"]})
        timeline.points = [(at, (count + 1) * load.record_bytes) for count, at in enumerate(answer["times"])]
        return timeline

    return run


def run(way: Way, row: Row, topics: list[str]) -> None:
    """The clients at once; what the other side measures is looked at while they are held back."""
    settings = login("java-perf", "PLAIN", USER, PASSWORDS[USER], LISTENER)
    own = {"produce": {"batch.size": 16_384}, "fetch": {"max.partition.fetch.bytes": 100_000}}
    futures: dict[str, list[Future[Timeline]]] = {"produce": [], "fetch": []}
    for kind, topic in [("produce", topics[0]), *(("fetch", topic) for topic in topics[1:])]:
        load = Load([way.bootstrap], topic, CLIENT, LIMITS[kind] * SECONDS // RECORD_BYTES, RECORD_BYTES)
        load = replace(load, settings=settings | own[kind], direct=way.cluster.bootstrap)
        futures[kind].append(in_background(java(row.version, kind), load))
    time.sleep(STEADY_S)
    measured = {kind: way.measure(kind) for kind in LIMITS}
    wrong = []
    for kind, limit in LIMITS.items():
        timelines = [one.result(150) for one in futures[kind]]
        if errors := [error for one in timelines for error in one.errors]:
            wrong.append(f"{way.bootstrap} {kind}: {errors}")
            continue
        all_came = row.version or {one.total_bytes for one in timelines} == {limit * SECONDS}
        # While all of them are at it: one alone has all of the limit.
        first_s = max(one.points[0][0] for one in timelines) + STEADY_S
        last_s = min(one.points[-1][0] for one in timelines)
        rate = sum(one.rate(first_s, last_s) for one in timelines) / limit
        observed, throttled = measured[kind][0] / limit, measured[kind][1]
        told_ms = max(value for one in timelines for name, value in one.throttle.items() if "time-max" in name)
        said = (
            f"{way.bootstrap} {kind}: {rate:.3f} of the limit in {last_s - first_s:.1f} s as clients see it, "
            f"{observed:.3f} as the other side does; throttled {throttled:.1f}, clients {told_ms:.0f} ms"
        )
        print(said)
        held = 0.8 < rate < way.most and 0.7 < observed < 1.2
        if not (all_came and held and throttled and told_ms):
            wrong.append(said)
    assert not wrong


@pytest.mark.parametrize(
    "name", [name if name == IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.long) for name in ROWS]
)
def test_quota_holds_at_a_broker_and_through_kquota(
    name: str, pair: tuple[KafkaCluster, KafkaCluster], topic: str
) -> None:
    row = ROWS[name]
    limits = {"producer_byte_rate": PRODUCE, "consumer_byte_rate": CONSUME}
    quotas = [(row.of, limits), *((other, dict.fromkeys(limits, HIGH)) for other in row.others)]
    topics = [f"{topic}-{number}" for number in range(1 + row.consumers)]
    for cluster in pair:
        for each in topics[1:]:
            values = (record(number, RECORD_BYTES) for number in range(CONSUME * SECONDS // RECORD_BYTES))
            produce(cluster.bootstrap, each, values)
    with ExitStack() as stack:
        for of, quota in quotas:
            for key, limit in quota.items():
                set_brokers_quota(pair[0].bootstrap[0], of, key, limit)
                stack.callback(set_brokers_quota, pair[0].bootstrap[0], of, key, None)
        entries = [{**of, **quota} for of, quota in quotas]
        running = stack.enter_context(sidecar(pair[1].bootstrap_of(LISTENER), entries))
        stack.enter_context(precedence(running.pid, *(node.pid for one in pair for node in one.nodes)))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        list(pool.map(lambda way: run(way, row, topics), (directly(pair[0]), through(pair[1], running))))
