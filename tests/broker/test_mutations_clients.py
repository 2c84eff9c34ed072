"""Real admin clients over the mutation quota: what each of them sees, and that it gets there in the end."""

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_mutations_brokers import charged, settled
from tests.lab.kafka import KafkaCluster
from tests.support.brokers import JavaTool
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

RATE = 4
SOURCE = Path(__file__).parents[1] / "java" / "AdminOverQuota.java"


@pytest.fixture(params=["kafka", pytest.param("kafka_391", marks=pytest.mark.long)])
def proxy(request: pytest.FixtureRequest) -> Iterator[Sidecar]:
    """A sidecar of the test's own, whose tokens are full and whose totals are 0."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    quotas = [{"user": "<default>", "controller_mutation_rate": RATE}]  # all are one user, and share a counter
    # kafka-topics --alter does not end before the throttle time is over, in front of a broker's own quota as well.
    with sidecar(cluster.bootstrap, quotas, max_mute="3s", **{"controller.quota.window.num": 1}) as running:
        yield running


def persistently(step: Callable[[], Any]) -> None:
    """Call `step` as an application would, until it is not throttled."""
    from kafka.errors import NodeNotReadyError, ThrottlingQuotaExceededError

    def done() -> bool:
        try:
            step()
        except (ThrottlingQuotaExceededError, NodeNotReadyError):
            return False  # throttled; or within the throttle time, when the client sends nothing
        return True

    until(done)


@pytest.fixture
def names() -> tuple[str, ...]:
    """Three that no other test uses."""
    stem = uuid.uuid4().hex[:12]
    return tuple(f"{letter}-{stem}" for letter in "abc")


def test_kafka_python_mutations_are_throttled(proxy: Sidecar, names: tuple[str, ...]) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import NewPartitions, NewTopic
    from kafka.errors import ThrottlingQuotaExceededError

    began = time.monotonic()
    with KafkaAdminClient(bootstrap_servers=proxy.bootstrap, client_id="python-admin") as admin:
        with pytest.raises(ThrottlingQuotaExceededError) as refused:
            admin.create_topics([NewTopic(name, 5, 1) for name in names])
        assert "The throttling quota has been exceeded." in str(refused.value)
        # 5 of 4 tokens: the first topic is there, the others are not. The application asks for what is missing.
        settled(proxy.bootstrap, {names[0]: 5}, names)
        for name in names[1:]:
            persistently(lambda name=name: admin.create_topics([NewTopic(name, 5, 1)]))  # type: ignore[misc]
        settled(proxy.bootstrap, dict.fromkeys(names, 5), names)
        for name in names:
            persistently(lambda name=name: admin.create_partitions({name: NewPartitions(10)}))  # type: ignore[misc]
        settled(proxy.bootstrap, dict.fromkeys(names, 10), names)
        for name in names:
            persistently(lambda name=name: admin.delete_topics([name]))  # type: ignore[misc]
        settled(proxy.bootstrap, {}, names)
    assert charged(proxy) == 3 * (5 + 5 + 10)
    # Of these 60 the last 10 were accepted when the tokens were back at 0: 50 less the 4 in hand, at 4 per second.
    assert time.monotonic() - began >= 11.4


@pytest.mark.long
def test_confluent_kafka_mutations_are_throttled(proxy: Sidecar, names: tuple[str, ...]) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

    admin = AdminClient({"bootstrap.servers": proxy.bootstrap, "client.id": "librdkafka-admin"})

    def all_of(futures: dict[str, Any]) -> None:
        for future in futures.values():
            future.result(timeout=60)

    began = time.monotonic()
    all_of(admin.create_topics([NewTopic(name, 2, 1) for name in names]))  # 4 - 6: 500 ms
    all_of(admin.create_partitions([NewPartitions(name, 4) for name in names]))
    settled(proxy.bootstrap, dict.fromkeys(names, 4), names)
    all_of(admin.delete_topics(list(names)))
    settled(proxy.bootstrap, {}, names)
    all_of(admin.create_topics([NewTopic(names[0], 1, 1)]))
    # 6 + 6 + 12 partitions were used before the last request could be read: with 4 in hand, 20 came at 4 per s.
    assert time.monotonic() - began >= 4.9
    assert charged(proxy) == 6 + 6 + 12 + 1


def test_java_admin_client_retries_automatically(proxy: Sidecar, java_tool: JavaTool) -> None:
    from tests.lab.kafka.java import find_java

    modules = subprocess.run([str(find_java()), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        pytest.skip("no JDK: this Java cannot run a source file")
    stem = uuid.uuid4().hex[:12]
    done = java_tool(str(SOURCE), [proxy.bootstrap, stem, "4", "5"], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = dict(line.split() for line in done.stdout.splitlines())
    # Each step moves 20 partitions at 4 per second, the last one 40; what overdraws costs the next one. Of the
    # first 20, 4 are in hand and the last 5 are not waited for; 11 more take 2.75 s.
    assert int(steps["created"]) >= 2500
    assert sum(map(int, steps.values())) >= 16_000  # 80 - 4 in hand - 10 overdrawn at the end, at 4 per second
    settled(proxy.bootstrap, {}, tuple(f"{stem}-{number}" for number in range(4)))
    assert charged(proxy) == 20 + 20 + 40
