"""Limits of a whole fleet: real sidecars, a real broker with the topic, real clients."""

from __future__ import annotations

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
from tests.support.certificates import Authority
from tests.support.precedence import precedence
from tests.support.secure_tools import own_login
from tests.support.sidecars import FLEET_KEY, Sidecar, sidecar
from tests.support.waiting import until

LIMIT = 1_000_000
VALUE = b"x" * 5000


class Load:
    """A producer of librdkafka, which ignores throttle times, in front of one sidecar: as much as it can, while on."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "etl",
                "acks": 1,
                "linger.ms": 0,
                "batch.size": 20_000,
                "batch.num.messages": 4,
                "queue.buffering.max.messages": 40,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 60_000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self.on = False
        self._done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done:
            if not self.on:
                self._producer.poll(0.05)
                continue
            try:
                self._producer.produce(self._topic, VALUE)
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.02)

    def stop(self) -> None:
        self._done = True
        self._thread.join()
        self._producer.purge()
        self._producer.flush(1)


def _group(one: Sidecar) -> dict[str, Any] | None:
    return next((group for group in one.get("/quotas")["groups"] if group["kind"] == "produce"), None)


def _amount(one: Sidecar) -> float:
    group = _group(one)
    return 0.0 if group is None else float(group["totals"]["amount"])


def _share(one: Sidecar) -> float:
    group = _group(one)
    return 0.0 if group is None or group["fleet"] is None else float(group["fleet"]["share"])


def _reading(one: Sidecar) -> tuple[float, float]:
    """When (a busy machine may take its time for the answer), and how many bytes have gone through until then."""
    asked = time.monotonic()
    amount = _amount(one)
    return (asked + time.monotonic()) / 2, amount


def _rates(fleet: list[Sidecar], seconds: float) -> list[float]:
    """What goes through each, over the limit, measured for so long."""
    before = [_reading(one) for one in fleet]
    time.sleep(seconds)
    after = [_reading(one) for one in fleet]
    return [(sent - was) / (at - began) / LIMIT for (began, was), (at, sent) in zip(before, after, strict=True)]


@contextmanager
def _fleet(kafka: KafkaCluster, count: int, **settings: Any) -> Iterator[list[Sidecar]]:
    fleet = {"id": uuid.uuid4().hex, "default_scope": "fleet"} | settings
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                sidecar(kafka.bootstrap, [{"client-id": "etl", "producer_byte_rate": LIMIT}], fleet=fleet)
            )
            for _ in range(count)
        ]
        yield found


def test_three_sidecars_share_one_limit(kafka: KafkaCluster, topic: str) -> None:
    with _fleet(kafka, 3) as fleet:
        loads = [Load(one.bootstrap, topic) for one in fleet]
        try:
            until(lambda: all(one.metric("kquota_fleet_instances") == 3 for one in fleet))
            # One alone has all of it.
            loads[0].on = True
            until(lambda: _share(fleet[0]) > 0.98)
            # All: a third each; the sum of the shares is never above the limit.
            for load in loads:
                load.on = True

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
                    rates = _rates(fleet, 12.0)
                    seen.append(rates)
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
        finally:
            for load in loads:
                load.stop()


def test_a_client_behind_a_sidecar_cannot_change_the_topic(kafka: KafkaCluster, topic: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.errors import KafkaError, TopicAuthorizationFailedError

    name = f"guarded-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=2)
    with _fleet(kafka, 1, topic=name) as (one,):
        until(lambda: "reading the fleet's topic" in one.log.read_text())
        direct, behind = (KafkaAdminClient(bootstrap_servers=there) for there in (kafka.bootstrap, one.bootstrap))
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
        for admin in (direct, behind):
            admin.close()


def test_keys_are_rotated_while_all_run(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    old, new = FLEET_KEY, "the key that comes after it, for all"
    files = [tmp_path / f"key-{number}" for number in range(2)]
    for file in files:
        file.write_text(old)
    limits = [{"client-id": "etl", "producer_byte_rate": LIMIT}]
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics([NewTopic(topic, 1, 1)])  # without what the fleet sets
    admin.close()
    common = {"id": uuid.uuid4().hex, "default_scope": "fleet", "interval_s": 0.5, "topic": topic}
    with (
        sidecar(kafka.bootstrap, limits, fleet=common | {"key_file": str(files[0])}) as one,
        sidecar(kafka.bootstrap, limits, fleet=common | {"key_file": str(files[1])}) as other,
    ):
        until(lambda: one.metric("kquota_fleet_instances") == other.metric("kquota_fleet_instances") == 2)
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
    """As by a broker that creates topics automatically: the fleet counts on the partitions that there were."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic
    from kafka.errors import TopicAlreadyExistsError

    name = f"anew-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=3)
    with _fleet(kafka, 2, topic=name) as fleet:

        def has_partitions_back() -> bool:
            texts = [one.log.read_text() for one in fleet]
            return any("topic restored" in text or "topic was created" in text for text in texts)

        load = Load(fleet[0].bootstrap, topic)
        load.on = True
        try:
            until(lambda: all(one.metric("kquota_fleet_instances") == 2 for one in fleet))
            until(lambda: _share(fleet[0]) > 0.98)
            admin.delete_topics([name])
            # The fleet may have it back before this test has seen it gone.
            until(lambda: name not in admin.list_topics() or has_partitions_back())
            with suppress(TopicAlreadyExistsError):  # the broker made it, with its one partition
                admin.create_topics([NewTopic(name, 1, 1)])
            until(has_partitions_back, limit_s=60.0)
            until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3)
            until(lambda: all(one.metric("kquota_fleet_lost") == 0 for one in fleet), limit_s=60.0)
            until(lambda: _share(fleet[0]) > 0.98, limit_s=60.0)
            until(lambda: all(one.metric("kquota_fleet_instances") == 2 for one in fleet))
        finally:
            load.stop()
            admin.close()


def test_deleted_topic_is_created_as_it_was_and_by_no_broker(kafka: KafkaCluster) -> None:
    """The brokers of tests create any topic that a client names, with one partition and their own settings."""
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    name = f"deleted-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=3)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    with _fleet(kafka, 1, topic=name) as (one,):
        until(lambda: "reading the fleet's topic" in one.log.read_text())
        admin.delete_topics([name])
        (made,) = until(lambda: one.logged("the fleet's topic was created"))
        assert made["partitions"] == 3
        until(lambda: len(one.logged("reading the fleet's topic")) == 2)
        assert len(admin.describe_topics([name])[0]["partitions"]) == 3
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        found = admin.describe_configs([resource], config_filter="all")["topic"][name]
        assert found["retention.ms"]["value"] == TOPIC_CONFIG["retention.ms"]
    admin.close()


def test_warns_of_partitions_that_were_added(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances that start now divide groups among all of them, and have no contact with the others about most."""
    from kafka import KafkaAdminClient

    monkeypatch.setattr(member, "METADATA_AGE_MS", 200)
    name = f"more-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: TOPIC_CONFIG}, partitions=2)
    settings = FleetSection(key_file="/not/read", topic=name)
    exchange, warning = Exchange(settings, kafka.bootstrap), "the fleet's topic has a different number of partitions"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    with structlog.testing.capture_logs() as logs:
        exchange.start()
        until(lambda: exchange.partitions == 2)
        admin.create_partitions({name: 3})
        until(lambda: any(warning in line["event"] for line in logs))
        time.sleep(1.0)
        exchange.stop()
        exchange.join(30.0)
    assert [line["partitions"] for line in logs if warning in line["event"]] == [3]
    assert exchange.partitions == 2
    admin.close()


def test_names_the_reason_why_no_record_is_written(kafka: KafkaCluster) -> None:
    name = f"compacted-{uuid.uuid4().hex}"
    create_topics(kafka.bootstrap, {name: {"cleanup.policy": "compact"}}, partitions=1)
    with _fleet(kafka, 1, topic=name, interval_s=0.5) as (one,):
        (lost,) = until(lambda: [line for line in one.log.read_text().splitlines() if "no contact with the" in line])
        (failed,) = until(lambda: one.logged("cannot use the fleet's topic"))
        for text in (lost, failed["error"]):
            assert "InvalidRecordError: Compacted topic cannot accept message without key" in text


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_the_topic_is_reached_by_tls_with_the_own_login(
    mechanism: str, kafka_secure: KafkaCluster, authority: Authority, tmp_path: Path
) -> None:
    upstream = {
        "bootstrap": kafka_secure.bootstrap_of("SASL_SSL"),
        "sasl": own_login(tmp_path, mechanism),
        "tls": {"ca_file": str(authority.certificate)},
    }
    fleet = {"id": uuid.uuid4().hex, "default_scope": "fleet"}
    with sidecar([], upstream=upstream, fleet=fleet) as one, sidecar([], upstream=upstream, fleet=fleet) as other:
        until(lambda: one.metric("kquota_fleet_instances") == other.metric("kquota_fleet_instances") == 2)
        assert one.metric("kquota_fleet_lost") == 0


def test_forbidden_topic_creation_names_the_command(kafka_secure: KafkaCluster, tmp_path: Path) -> None:
    sasl = own_login(tmp_path, "SCRAM-SHA-512", "alice")
    upstream = {"bootstrap": kafka_secure.bootstrap_of("SASL_PLAINTEXT"), "sasl": sasl}
    with sidecar([], upstream=upstream, fleet={"topic": "closed-fleet"}) as one:
        until(lambda: one.metric("kquota_fleet_lost") == 1, limit_s=40.0)
        text = one.log.read_text()
        assert "closed-fleet is missing and cannot be created" in text
        assert "kafka-topics.sh" in text
