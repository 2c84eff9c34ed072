"""Limits of a whole fleet: real sidecars, a real broker with the topic, real clients."""

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from benchmarks.rig.topics import create_topics
from config.sections import FleetSection
from proxy.app.fleet import member
from proxy.app.fleet.member import TOPIC_CONFIG, Exchange
from tests.lab.kafka import KafkaCluster
from tests.support.precedence import precedence
from tests.support.sidecars import FLEET_KEY, Sidecar, sidecar
from tests.support.waiting import in_background, until

LIMIT = 1_000_000
LIMITS = [{"client-id": "etl", "producer_byte_rate": LIMIT}]
VALUE = b"x" * 5000


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[threading.Event]:
    """A producer of librdkafka, which ignores throttle times, before one sidecar: all that it can, while it is set."""
    from confluent_kafka import Producer

    small = {"linger.ms": 0, "batch.size": 20_000, "batch.num.messages": 4, "queue.buffering.max.messages": 40}
    patient = {"message.timeout.ms": 120_000, "socket.timeout.ms": 60_000, "log_level": 0}
    own = {"bootstrap.servers": bootstrap, "client.id": "etl", "acks": 1}
    producer, on, done = Producer(own | small | patient), threading.Event(), threading.Event()

    def run() -> None:
        while not done.is_set():
            try:
                if on.is_set():
                    producer.produce(topic, VALUE)
                producer.poll(0 if on.is_set() else 0.05)
            except BufferError:
                producer.poll(0.02)

    ended = in_background(run)
    try:
        yield on
    finally:
        done.set()
        ended.result()
        producer.purge()
        producer.flush(1)


def _group(one: Sidecar) -> dict[str, Any] | None:
    return next((group for group in one.get("/quotas")["groups"] if group["kind"] == "produce"), None)


def _share(one: Sidecar) -> float:
    group = _group(one)
    return 0.0 if group is None or group["fleet"] is None else float(group["fleet"]["share"])


def _reading(one: Sidecar) -> tuple[float, float]:
    """When (a busy machine may take its time for the answer), and how many bytes have gone through until then."""
    asked, group = time.monotonic(), _group(one)
    return (asked + time.monotonic()) / 2, 0.0 if group is None else float(group["totals"]["amount"])


def _rates(fleet: list[Sidecar], seconds: float) -> list[float]:
    """What goes through each, over the limit, measured for so long."""
    before = [_reading(one) for one in fleet]
    time.sleep(seconds)
    after = [_reading(one) for one in fleet]
    return [(sent - was) / (at - began) / LIMIT for (began, was), (at, sent) in zip(before, after, strict=True)]


def _all_in_contact(*fleet: Sidecar) -> None:
    until(lambda: {one.metric("kquota_fleet_instances") for one in fleet} == {len(fleet)})


@contextmanager
def _fleet(kafka: KafkaCluster, count: int, **settings: Any) -> Iterator[list[Sidecar]]:
    fleet = {"id": uuid.uuid4().hex, "default_scope": "fleet"} | settings
    with ExitStack() as stack:
        yield [stack.enter_context(sidecar(kafka.bootstrap, LIMITS, fleet=fleet)) for _ in range(count)]


def test_three_sidecars_share_one_limit(kafka: KafkaCluster, topic: str) -> None:
    with _fleet(kafka, 3) as fleet, ExitStack() as stack:
        loads = [stack.enter_context(load(one.bootstrap, topic)) for one in fleet]
        _all_in_contact(*fleet)
        # One alone has all of it.
        loads[0].set()
        until(lambda: _share(fleet[0]) > 0.98)
        # All: a third each; the sum of the shares is never above the limit.
        for each in loads:
            each.set()

        def thirds() -> list[float] | None:
            found = [_share(one) for one in fleet]
            # If none has changed by a second look, these are the shares of one moment.
            return found if min(found) > 0.3 and found == [_share(one) for one in fleet] else None

        assert sum(until(thirds)) <= 1.0
        _rates(fleet, 5.0)
        with precedence(os.getpid(), *(node.pid for node in kafka.nodes), *(one.pid for one in fleet)):
            _rates(fleet, 3.0)
            seen: list[list[float]] = []

            def used() -> bool:
                seen.append(rates := _rates(fleet, 12.0))
                assert sum(rates) <= 1.05
                evenness = sum(rates) ** 2 / (3 * sum(rate**2 for rate in rates))  # Jain's index
                return sum(rates) >= 0.95 and evenness >= 0.95

            # A busy machine can starve the producers, so one reading of the whole limit is enough.
            until(used, lambda: f"no reading has the whole limit, evenly: {seen}", limit_s=60.0)
        text = fleet[0].get("/explain?user=ANONYMOUS&client_id=etl")
        produce = next(one for one in text["kinds"] if one["kind"] == "produce")
        assert produce["scope"] == "fleet"
        assert (produce["now"]["fleet"]["sharing"], produce["now"]["fleet"]["why"]) == (3, "split")
        # kill -9: forgotten after ten seconds, and its share is the others'.
        fleet[2].kill()
        until(lambda: min(_share(one) for one in fleet[:2]) > 0.48, limit_s=30.0)
        # A drain frees it at once.
        with precedence(*(node.pid for node in kafka.nodes), *(one.pid for one in fleet[:2])):
            fleet[1].stop()
            fleet[1].killed = True
            until(lambda: _share(fleet[0]) > 0.98, limit_s=6.0)


def test_a_client_behind_a_sidecar_cannot_change_the_topic(kafka: KafkaCluster, topic: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.errors import KafkaError, TopicAuthorizationFailedError

    name = f"guarded-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=2)
    with (
        _fleet(kafka, 1, topic=name) as (one,),
        KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as direct,
        KafkaAdminClient(bootstrap_servers=one.bootstrap) as behind,
    ):
        until(lambda: one.logged("reading the fleet's topic"))
        (known,) = direct.describe_topics([name])
        topic_id = uuid.UUID(known["topic_id"])
        config = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "1"})
        refused = [
            lambda: behind.delete_topics([name]),
            lambda: behind.delete_topics([topic_id]),
            lambda: behind.create_topics([NewTopic(name, 1, 1)]),
            lambda: behind.create_partitions({name: 9}),
            lambda: behind.alter_configs([config]),
            lambda: behind.alter_configs([config], incremental=False),
        ]
        outcomes: list[object] = []
        for ask in refused:
            try:
                outcomes.append(ask())
            except KafkaError as error:
                outcomes.append(error)
        assert all("TopicAuthorizationFailed" in repr(outcome) for outcome in outcomes), outcomes
        assert any(isinstance(outcome, TopicAuthorizationFailedError) for outcome in outcomes)
        assert one.metric("kquota_fleet_refused_requests_total") == len(refused)
        assert name in direct.list_topics()
        assert name not in behind.list_topics()
        (now,) = direct.describe_topics([name])
        assert (now["topic_id"], len(now["partitions"])) == (str(topic_id), 2)
        behind.create_topics([NewTopic(topic, 1, 1)])
        behind.create_partitions({topic: 2})
        behind.delete_topics([topic])


def test_keys_are_rotated_while_all_run(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    old, new = FLEET_KEY, "the key that comes after it, for all"
    files = [tmp_path / f"key-{number}" for number in range(2)]
    for file in files:
        file.write_text(old)
    create_topics(kafka.bootstrap, {topic: {}}, partitions=1)  # without what the fleet sets
    common = {"id": uuid.uuid4().hex, "default_scope": "fleet", "interval_s": 0.5, "topic": topic}
    with (
        sidecar(kafka.bootstrap, LIMITS, fleet=common | {"key_file": str(files[0])}) as one,
        sidecar(kafka.bootstrap, LIMITS, fleet=common | {"key_file": str(files[1])}) as other,
    ):
        _all_in_contact(one, other)
        assert f"--topic {topic} --add-config compression.type=uncompressed" in one.log.read_text()
        for count, keys in enumerate((f"{old}\n{new}", f"{new}\n{old}", new), 1):
            for each, file in zip((one, other), files, strict=True):
                file.write_text(keys)
                until(lambda each=each, count=count: each.log.read_text().count('"fleet.key_file"') == count)
        time.sleep(6)  # each says every five seconds that it is there
        for each in (one, other):
            assert each.metric("kquota_fleet_instances") == 2
            assert each.metric("kquota_fleet_records_total", outcome="bad_mac") == 0


@pytest.mark.timeout(180)
def test_fleet_topic_gets_its_partitions_back(kafka: KafkaCluster, topic: str) -> None:
    """Deleted, it is created as it was, and by no broker, although those of tests create any topic that a client names;
    one that somebody created with one partition has as many again."""
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.errors import TopicAlreadyExistsError

    name = f"anew-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=3)
    with (
        _fleet(kafka, 2, topic=name) as fleet,
        load(fleet[0].bootstrap, topic) as on,
        KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin,
    ):

        def made(event: str) -> list[dict[str, Any]]:
            return [line for one in fleet for line in one.logged(event)]

        def all_is_as_before() -> None:
            until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3)
            until(lambda: all(one.metric("kquota_fleet_lost") == 0 for one in fleet))
            until(lambda: _share(fleet[0]) > 0.98)
            _all_in_contact(*fleet)

        on.set()
        all_is_as_before()
        admin.delete_topics([name])
        created = until(lambda: made("the fleet's topic was created"))
        assert {line["partitions"] for line in created} == {3}
        all_is_as_before()
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([resource], config_filter="all")["topic"][name]
        assert found["retention.ms"]["value"] == TOPIC_CONFIG["retention.ms"]

        def times() -> int:
            return len(made("the fleet's topic was created") + made("partitions of the fleet's topic restored"))

        before = times()
        admin.delete_topics([name])
        # The fleet may have it back before this test has seen it gone.
        until(lambda: name not in admin.list_topics() or times() > before)
        with suppress(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(name, 1, 1)])
        until(lambda: times() > before)
        all_is_as_before()


def test_warns_of_partitions_that_were_added(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances that start now divide groups among all of them, and have no contact with the others about most."""
    from kafka import KafkaAdminClient

    monkeypatch.setattr(member, "METADATA_AGE_MS", 200)
    name = f"more-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=2)
    exchange = Exchange(FleetSection(key_file="/not/read", topic=name), kafka.bootstrap)
    warning = "the fleet's topic has more partitions"
    with structlog.testing.capture_logs() as logs:
        exchange.start()
        until(lambda: exchange.partitions == 2)
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
            admin.create_partitions({name: 3})
        until(lambda: any(warning in line["event"] for line in logs))
        time.sleep(1.0)
        exchange.stop()
        exchange.join(30.0)
    assert [line["partitions"] for line in logs if warning in line["event"]] == [3]
    assert exchange.partitions == 2


def test_names_the_reason_why_no_record_is_written(kafka: KafkaCluster) -> None:
    name = f"compacted-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: {"cleanup.policy": "compact"}}, partitions=1)
    with _fleet(kafka, 1, topic=name, interval_s=0.5) as (one,):
        (lost,) = until(lambda: [line for line in one.log.read_text().splitlines() if "no contact with the" in line])
        (failed,) = until(lambda: one.logged("cannot use the fleet's topic"))
        for text in (lost, failed["error"]):
            assert "InvalidRecordError: Compacted topic cannot accept message without key" in text
