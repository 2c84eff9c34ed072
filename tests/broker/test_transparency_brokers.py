"""Clients find brokers, and only through the sidecar, while the cluster changes: point 5 of the `rewrite` mode."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.corpus.job import Job, wait_for
from tests.corpus.records import Record, read_confluent, send_aiokafka, send_confluent, send_kafka_python
from tests.corpus.tools import create_topic_on, leaders, wait_until_known
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.probe import ProbeError, brokers_seen_by
from tests.support.clients import PRODUCERS, Load, check_record, in_background
from tests.support.fault_tools import at_work, least_held, nothing_left_behind
from tests.support.raw_client import RawClient, Topic, fetch_message, produce_message
from tests.support.session_tools import kio_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.wire_tools import kio_frame

NOT_LEADER_OR_FOLLOWER = 6
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
SHARE_FETCH = 78


@pytest.fixture(scope="module")
def proxy3(kafka3: KafkaCluster) -> Iterator[Sidecar]:
    """One sidecar before three brokers."""
    with sidecar(kafka3.bootstrap) as running:
        yield running


def job_for(cluster: KafkaCluster) -> Job:
    prefix = f"brokers-{uuid.uuid4().hex[:6]}"
    return Job(",".join(cluster.bootstrap), prefix, cluster.version, len(cluster.nodes))


def addresses(proxy: Sidecar) -> dict[int, tuple[str, int]]:
    """Node id -> the address that the sidecar advertises for it."""
    return {each.node_id: (each.host, each.port) for each in brokers_seen_by("127.0.0.1", proxy.port)}


def real_addresses(cluster: KafkaCluster) -> dict[int, tuple[str, int]]:
    return {node.node_id: (node.host, node.port) for node in cluster.nodes}


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_to_wrong_broker_names_leader_at_sidecar(
    version: int, kafka3: KafkaCluster, proxy3: Sidecar, led_by_1: Topic
) -> None:
    def ask(address: tuple[str, int]) -> tuple[int, set[tuple[int, str, int]]]:
        with RawClient(address) as client:
            answer = client.ask(produce_message(version, led_by_1, [b"for the leader"])).message
        endpoints = getattr(answer, "node_endpoints", None) or []
        (partition,) = answer.responses[0].partition_responses
        return partition.error_code, {(each.node_id, each.host, each.port) for each in endpoints}

    direct, through = ask(real_addresses(kafka3)[2]), ask(addresses(proxy3)[2])
    with_endpoints = version >= 10  # KIP-951
    assert direct == (NOT_LEADER_OR_FOLLOWER, {(1, *real_addresses(kafka3)[1])} if with_endpoints else set())
    assert through == (NOT_LEADER_OR_FOLLOWER, {(1, *addresses(proxy3)[1])} if with_endpoints else set())


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_from_the_wrong_broker_names_no_real_address(
    version: int, kafka3: KafkaCluster, proxy3: Sidecar, led_by_1: Topic
) -> None:
    def ask(address: tuple[str, int]) -> tuple[int, int | None, set[tuple[str, int]], bytes]:
        with RawClient(address) as client:
            frame = client.ask(fetch_message(version, led_by_1))
        answer = frame.message
        endpoints = getattr(answer, "node_endpoints", None) or []
        (partition,) = answer.responses[0].partitions
        leader = getattr(partition, "current_leader", None)
        found = {(each.host, each.port) for each in endpoints}
        return partition.error_code, leader and leader.leader_id, found, frame.payload

    error, leader, endpoints, _ = ask(real_addresses(kafka3)[2])
    assert error == NOT_LEADER_OR_FOLLOWER
    assert (leader, endpoints) == ((1, {real_addresses(kafka3)[1]}) if version >= 16 else (None, set()))
    # The broker is asked with version 15, whose answer has no leader: clients ask for Metadata, as they always
    # did before KIP-951.
    error, leader, endpoints, payload = ask(addresses(proxy3)[2])
    assert error == NOT_LEADER_OR_FOLLOWER
    assert (leader, endpoints) == (None, set())
    assert not real_ports_in(payload, kafka3)


def real_ports_in(payload: bytes, cluster: KafkaCluster) -> list[int]:
    """Ports of brokers that stand somewhere in these bytes as Kafka writes ports, in four bytes."""
    return [node.port for node in cluster.nodes if struct.pack(">i", node.port) in payload]


@pytest.mark.parametrize("version", [1, 2])
def test_share_fetch_from_the_wrong_broker_names_no_real_address(
    version: int, kafka3: KafkaCluster, proxy3: Sidecar, led_by_1: Topic
) -> None:
    from kio.index import load_response_schema
    from kio.serial import entity_reader

    def ask(address: tuple[str, int]) -> bytes:
        with RawClient(address) as client:
            client.send(share_fetch(version, led_by_1))
            return client.read_frame().payload

    direct, through = ask(real_addresses(kafka3)[2]), ask(addresses(proxy3)[2])
    answer, _ = entity_reader(load_response_schema(SHARE_FETCH, version))(direct[5:], 0)
    assert [int(each.error_code) for topic in answer.responses for each in topic.partitions] == [NOT_LEADER_OR_FOLLOWER]
    assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == [(1, *real_addresses(kafka3)[1])]
    # Through the sidecar the array of endpoints is empty, a tagged field fills its place, all before it is the same.
    (endpoint,) = answer.node_endpoints
    at = direct.index(b"\x02" + struct.pack(">i", endpoint.node_id) + bytes([1 + len(endpoint.host)]))
    assert len(through) == len(direct)
    assert through[:at] == direct[:at]
    assert through[at] == 1  # compact arrays count from one
    assert endpoint.host.encode() in direct
    assert endpoint.host.encode() not in through
    assert real_ports_in(direct, kafka3)
    assert not real_ports_in(through, kafka3)


@pytest.fixture(scope="module")
def led_by_1(kafka3: KafkaCluster) -> Topic:
    """A topic with one partition, on broker 1 alone: followers would answer Fetch 11 and newer (KIP-392)."""
    name = create_topic_on(job_for(kafka3), "led-by-1", {0: [1]})
    with RawClient(real_addresses(kafka3)[1]) as client:
        return client.topic(name)


def share_fetch(version: int, topic: Topic) -> bytes:
    """The frame of a ShareFetch by a member that no group knows; kio has this message, kafka-python has not."""
    fetch = kio_message("share_fetch", version, "request")
    only_new = {"share_acquire_mode": 0, "is_renew_ack": False} if version >= 2 else {}
    partition = fetch.FetchPartition(partition_index=0, acknowledgement_batches=())
    request = fetch.ShareFetchRequest(
        group_id="nobody",
        member_id=str(uuid.uuid4()),
        share_session_epoch=0,
        max_wait=timedelta(),
        min_bytes=0,
        max_bytes=1_000_000,
        max_records=10,
        batch_size=10,
        topics=(fetch.FetchTopic(topic_id=topic.id, partitions=(partition,)),),
        forgotten_topics_data=(),
        **only_new,
    )
    return kio_frame(request, client_id="raw")


def move_leader(job: Job, topic: str, replicas: list[int]) -> None:
    """Make the first of these brokers the leader, all of them alive: the old one answers NOT_LEADER from now on."""
    from kafka import KafkaAdminClient, TopicPartition

    admin = KafkaAdminClient(bootstrap_servers=job.bootstrap)
    try:
        admin.alter_partition_reassignments({TopicPartition(topic, 0): replicas})
        wait_for("the end of the move", lambda: not admin.list_partition_reassignments({topic: [0]}))

        def elected() -> bool:
            # Refused while the wanted broker, just started again, is not in sync: asked again then.
            admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
            return leaders(job, topic) == {0: replicas[0]}

        wait_for("the election", elected)
    finally:
        admin.close()
    wait_until_known(job, topic, {0: replicas})


@pytest.mark.long
def test_new_broker_gets_listener_and_moved_one_keeps_it() -> None:
    with KafkaCluster.start(1, progress=print) as cluster, sidecar(cluster.bootstrap) as proxy:
        (first,) = addresses(proxy).values()
        cluster.add_broker(2)
        # The one that comes first opens the listener: the sidecar's own look at the cluster, or a client's Metadata.
        outcome = addresses(proxy)
        assert outcome[1] == first
        assert set(outcome) == {1, 2}
        assert outcome[2] in proxy.broker_addresses()
        job = Job(proxy.bootstrap, f"grows-{uuid.uuid4().hex[:6]}", cluster.version, 1)
        topic = create_topic_on(job, "on-2", {0: [2]})
        assert send_aiokafka(job, topic, [Record(None, b"one")]) == [0]

        old = cluster.node(2).port
        cluster.stop_broker(2)
        assert cluster.start_broker(2, move=True).port != old
        wait_until_known(Job(cluster.bootstrap[0], "", cluster.version, 2), topic, {0: [2]})
        assert addresses(proxy) == outcome, "clients need not hear of it"
        wait_for("the sidecar to find the new address", lambda: answers(outcome[2]))
        for send, offset in ((send_confluent, 1), (send_aiokafka, 2)):
            assert send(job, topic, [Record(None, b"more")]) == [offset]
        assert [each.value for each in read_confluent(job, topic, 1, 3)] == [b"one", b"more", b"more"]
        assert addresses(proxy) == outcome


def answers(address: tuple[str, int]) -> bool:
    try:
        return bool(brokers_seen_by(*address, timeout_s=2.0))
    except ProbeError:
        return False


@pytest.mark.long
def test_producers_of_other_kinds_follow_leaders(kafka3: KafkaCluster) -> None:
    """aiokafka and Java, idempotent: leadership moves under load, a leader is killed, and each record comes once."""
    direct, records = job_for(kafka3), 2000
    leader, *others = (node.node_id for node in kafka3.nodes)
    settings: dict[str, dict[str, Any]] = {
        "aiokafka": {"enable_idempotence": True, "request_timeout_ms": 200_000},
        "java-perf": {"enable.idempotence": "true", "delivery.timeout.ms": "200000"},
    }
    topics = {name: create_topic_on(direct, name, {0: [leader, *others]}) for name in settings}

    def written(topic: str) -> int:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=list(kafka3.bootstrap))
        try:
            (end,) = consumer.end_offsets([TopicPartition(topic, 0)]).values()
        finally:
            consumer.close()
        return int(end)

    def more_come() -> None:
        """Wait until each has written more; none has ended."""
        before = {topic: written(topic) for topic in topics.values()}
        for topic, count in before.items():
            wait_for(f"more than {count} in {topic}", lambda topic=topic, count=count: written(topic) > count, 120)
            assert count < records, "too few records for this test"

    slow = [{"client-id": name, "producer_byte_rate": 30_000} for name in settings]
    with sidecar(kafka3.bootstrap, slow) as running:
        loads = {
            name: Load([running.bootstrap], topics[name], name, records, 1000, 240, settings[name], kafka3.bootstrap)
            for name in settings
        }
        futures = {name: in_background(PRODUCERS[name], load) for name, load in loads.items()}
        more_come()
        for topic in topics.values():
            move_leader(direct, topic, [*others, leader])
        more_come()
        kafka3.stop_broker(others[0], kill=True)
        try:
            more_come()
        finally:
            kafka3.start_broker(others[0])
        more_come()
        running.set_quotas([])
        for name, future in futures.items():
            timeline = future.result(240)
            failed = [error for error in timeline.errors if "] WARN " not in error]
            assert failed == [], name
    values = {name: [each.value or b"" for each in read_confluent(direct, topics[name], 1, records)] for name in topics}
    assert [check_record(value) for value in values["aiokafka"]] == list(range(records))
    assert len(set(values["java-perf"])) == written(topics["java-perf"]) == records, "random values"


@pytest.mark.long
def test_a_leader_that_dies_under_load_loses_nothing(kafka3: KafkaCluster, proxy3: Sidecar) -> None:
    """Leadership moves, then the leader is killed: what was acknowledged by all replicas in sync is there, once."""
    direct = job_for(kafka3)
    leader, *others = (node.node_id for node in kafka3.nodes)
    topic = create_topic_on(direct, "dies", {0: [leader, *others]}, {"min.insync.replicas": "2"})
    at_rest = least_held(proxy3)
    with nothing_left_behind(proxy3, at_rest), at_work(proxy3.bootstrap, topic, kafka3.bootstrap[0]) as work:
        move_leader(direct, topic, [*others, leader])
        work.wait_for_progress()
        kafka3.stop_broker(others[0], kill=True)
        try:
            work.wait_for_progress()
            # Who starts now, with one of the bootstrap servers gone, is served, too.
            through = Job(proxy3.bootstrap, direct.prefix, kafka3.version, 3)
            late = create_topic_on(through, "late", {0: [leader]})
            assert send_kafka_python(through, late, [Record(None, b"late")]) == [0]
        finally:
            kafka3.start_broker(others[0])
        move_leader(direct, topic, [others[0], leader, others[1]])  # back to the one that was away
        work.wait_for_progress()
