"""Clients find brokers, and only through the sidecar, whatever ids these have, however many, and while they change."""

import struct
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.corpus.job import Job
from tests.corpus.records import SENDERS, Record, read_confluent, send_aiokafka, send_confluent, send_kafka_python
from tests.corpus.tools import create_topic_on, leaders, wait_until_known
from tests.lab.kafka import KafkaCluster, run_tool
from tests.lab.kafka.probe import ProbeError, brokers_seen_by
from tests.support.clients import PRODUCERS, Load, check_record
from tests.support.fault_tools import Producing, at_work, least_held, nothing_left_behind, read_log
from tests.support.raw_client import RawClient, Topic, fetch_message, produce_message
from tests.support.session_tools import kio_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import in_background, until
from tests.support.wire_tools import kio_frame

NOT_LEADER_OR_FOLLOWER, SHARE_FETCH = 6, 78
IDS = FIRST, SECOND, THIRD = 1001, 1002, 1003
"""Beyond the range of the sidecar's ports; other tests have brokers 1, 2 and 3."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster.start(3, first_id=FIRST, progress=print) as started:
        yield started


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(cluster.bootstrap) as running:
        yield running


def job_for(cluster: KafkaCluster) -> Job:
    return Job(",".join(cluster.bootstrap), f"b-{uuid.uuid4().hex[:6]}", cluster.version, len(cluster.nodes))


def advertised(port: int) -> dict[int, tuple[str, int]]:
    """Node id -> the address that the sidecar advertises for it, as it is asked on this port."""
    return {each.node_id: (each.host, each.port) for each in brokers_seen_by("127.0.0.1", port)}


def real_addresses(cluster: KafkaCluster) -> dict[int, tuple[str, int]]:
    return {node.node_id: (node.host, node.port) for node in cluster.nodes}


def shown(proxy: Sidecar) -> dict[int, int | None]:
    """Node id -> its port's place in the range, by `GET /brokers`; None: it has no port."""
    first = min(port for _, port in proxy.broker_addresses() if port != proxy.port)
    found = {each["id"]: each["local_port"] for each in proxy.get("/brokers")["brokers"]}
    return {node_id: None if port is None else port - first for node_id, port in found.items()}


def log_directory(port: int) -> str:
    """Of the broker behind this port: no two have the same."""
    from kafka.protocol.admin import DescribeLogDirsRequest

    with RawClient(f"127.0.0.1:{port}") as client:
        (found,) = client.ask(DescribeLogDirsRequest(version=1, topics=[])).message.results
        return str(found.log_dir)


def test_ids_beyond_the_range_have_ports_of_their_own(cluster: KafkaCluster, proxy: Sidecar) -> None:
    assert shown(proxy) == {FIRST: 1, SECOND: 2, THIRD: 3}
    addresses = advertised(proxy.port)
    assert len(set(addresses.values()) & proxy.broker_addresses()) == 3
    for node_id, (_, port) in addresses.items():
        assert log_directory(port) == log_directory(cluster.node(node_id).port)
        assert advertised(port) == addresses, "who bootstraps there finds that address among the brokers'"
    assert proxy.metric("kquota_brokers") == 3


def test_a_broker_without_a_port_costs_its_own_partitions_only(cluster: KafkaCluster) -> None:
    """Three brokers and two ports: whoever produces to the other two does not notice, in any client library."""
    direct = job_for(cluster)
    topics = {node_id: create_topic_on(direct, f"on-{node_id}", {0: [node_id]}) for node_id in IDS}
    both = create_topic_on(direct, "both", {0: [FIRST], 1: [SECOND], 2: [THIRD]})
    with sidecar(cluster.bootstrap, broker_ports=2) as proxy:
        assert shown(proxy) == {FIRST: 1, SECOND: 0, THIRD: None}
        assert advertised(proxy.port).keys() == {FIRST, SECOND}
        assert proxy.metric("kquota_brokers_without_port") == 1
        assert f'"node_ids": [{THIRD}]' in proxy.log.read_text()
        through = Job(proxy.bootstrap, direct.prefix, cluster.version, 3)
        assert leaders(through, topics[THIRD]) == {0: -1}
        with Producing(proxy.bootstrap, topics[FIRST]) as producing:
            for name, send in SENDERS.items():
                for topic, partition in ((topics[FIRST], 0), (topics[SECOND], 0), (both, 0), (both, 1)):
                    assert len(send(through, topic, [Record(None, name.encode(), partition=partition)])) == 1, name
            for topic in (topics[SECOND], both):  # the Java client picks a partition that has a leader
                tool = ["--bootstrap-server", proxy.bootstrap, "--topic", topic, "--request-timeout-ms", "30000"]
                run_tool("org.apache.kafka.tools.ConsoleProducer", tool, cluster.version, stdin="java\n")
            producing.wait_for_progress()
            producing.finish()
        assert producing.refused == {}
        assert "java" in {event.value for event in read_log(direct.bootstrap, topics[SECOND])}


@pytest.fixture(scope="module")
def led_by_first(cluster: KafkaCluster) -> Topic:
    """A topic with one partition, on one broker alone: followers would answer Fetch 11 and newer (KIP-392)."""
    name = create_topic_on(job_for(cluster), "led-by-first", {0: [FIRST]})
    with RawClient(real_addresses(cluster)[FIRST]) as client:
        return client.topic(name)


def real_ports_in(payload: bytes, cluster: KafkaCluster) -> list[int]:
    """Ports of brokers that stand somewhere in these bytes as Kafka writes ports, in four bytes."""
    return [node.port for node in cluster.nodes if struct.pack(">i", node.port) in payload]


def produce(version: int, topic: Topic) -> Any:
    return produce_message(version, topic, [b"for the leader"])


@pytest.mark.parametrize(
    ("message", "version"), [*((produce, one) for one in range(3, 14)), *((fetch_message, one) for one in range(4, 19))]
)
def test_wrong_broker_names_leader_at_sidecar(
    message: Callable[[int, Topic], Any], version: int, cluster: KafkaCluster, proxy: Sidecar, led_by_first: Topic
) -> None:
    """Produce names it (KIP-951). Fetch is asked for with version 15, which names none: clients ask for Metadata."""

    def ask(address: tuple[str, int]) -> tuple[int, int | None, set[tuple[int, str, int]], bytes]:
        with RawClient(address) as client:
            frame = client.ask(message(version, led_by_first))
        endpoints = getattr(frame.message, "node_endpoints", None) or []
        (topic,) = frame.message.responses
        (partition,) = topic.partition_responses if message is produce else topic.partitions
        leader = getattr(partition, "current_leader", None)
        found = {(each.node_id, each.host, each.port) for each in endpoints}
        return partition.error_code, leader and leader.leader_id, found, frame.payload

    real, addresses = real_addresses(cluster), advertised(proxy.port)
    named = version >= (10 if message is produce else 16)
    *direct, _ = ask(real[SECOND])
    *through, payload = ask(addresses[SECOND])
    nothing = [NOT_LEADER_OR_FOLLOWER, None, set()]
    assert direct == ([NOT_LEADER_OR_FOLLOWER, FIRST, {(FIRST, *real[FIRST])}] if named else nothing)
    named_here = named and message is produce
    assert through == ([NOT_LEADER_OR_FOLLOWER, FIRST, {(FIRST, *addresses[FIRST])}] if named_here else nothing)
    assert not real_ports_in(payload, cluster)


@pytest.mark.parametrize("version", [1, 2])
def test_share_fetch_from_the_wrong_broker_names_no_real_address(
    version: int, cluster: KafkaCluster, proxy: Sidecar, led_by_first: Topic
) -> None:
    from kio.index import load_response_schema
    from kio.serial import entity_reader

    def ask(address: tuple[str, int]) -> bytes:
        with RawClient(address) as client:
            client.send(share_fetch(version, led_by_first))
            return client.read_frame().payload

    real = real_addresses(cluster)
    direct, through = ask(real[SECOND]), ask(advertised(proxy.port)[SECOND])
    answer, _ = entity_reader(load_response_schema(SHARE_FETCH, version))(direct[5:], 0)
    assert [int(each.error_code) for topic in answer.responses for each in topic.partitions] == [NOT_LEADER_OR_FOLLOWER]
    assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == [(FIRST, *real[FIRST])]
    # Through the sidecar the array of endpoints is empty, a tagged field fills its place, all before it is the same.
    (endpoint,) = answer.node_endpoints
    at = direct.index(b"\x02" + struct.pack(">i", endpoint.node_id) + bytes([1 + len(endpoint.host)]))
    assert len(through) == len(direct)
    assert through[:at] == direct[:at]
    assert through[at] == 1  # compact arrays count from one
    assert endpoint.host.encode() in direct
    assert endpoint.host.encode() not in through
    assert real_ports_in(direct, cluster)
    assert not real_ports_in(through, cluster)


def share_fetch(version: int, topic: Topic) -> bytes:
    """The frame of a ShareFetch by a member that no group knows; kio has this message, kafka-python has not."""
    fetch = kio_message("share_fetch", version, "request")
    only_new = {"share_acquire_mode": 0, "is_renew_ack": False} if version >= 2 else {}
    partition = fetch.FetchPartition(partition_index=0, acknowledgement_batches=())
    limits = {"max_wait": timedelta(), "min_bytes": 0, "max_bytes": 1_000_000, "max_records": 10, "batch_size": 10}
    request = fetch.ShareFetchRequest(
        group_id="nobody",
        member_id=str(uuid.uuid4()),
        share_session_epoch=0,
        topics=(fetch.FetchTopic(topic_id=topic.id, partitions=(partition,)),),
        forgotten_topics_data=(),
        **limits,
        **only_new,
    )
    return kio_frame(request, client_id="raw")


def move_leader(job: Job, topic: str, replicas: list[int]) -> None:
    """Make the first of these brokers the leader, all of them alive: the old one answers NOT_LEADER from now on."""
    from kafka import KafkaAdminClient, TopicPartition

    with KafkaAdminClient(bootstrap_servers=job.bootstrap) as admin:
        admin.alter_partition_reassignments({TopicPartition(topic, 0): replicas})
        until(lambda: not admin.list_partition_reassignments({topic: [0]}), "the end of the move")

        def elected() -> bool:
            # Refused while the wanted broker, just started again, is not in sync: asked again then.
            admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
            return leaders(job, topic) == {0: replicas[0]}

        until(elected, "the election")
    wait_until_known(job, topic, {0: replicas})


@pytest.mark.long
def test_new_broker_gets_listener_and_moved_one_keeps_it() -> None:
    with KafkaCluster.start(1, progress=print) as cluster, sidecar(cluster.bootstrap) as proxy:
        (first,) = advertised(proxy.port).values()
        cluster.add_broker(2)
        # The one that comes first opens the listener: the sidecar's own look at the cluster, or a client's Metadata.
        outcome = advertised(proxy.port)
        assert outcome == {1: first, 2: outcome[2]}
        assert outcome[2] in proxy.broker_addresses()
        job = Job(proxy.bootstrap, f"grows-{uuid.uuid4().hex[:6]}", cluster.version, 1)
        topic = create_topic_on(job, "on-2", {0: [2]})
        assert send_aiokafka(job, topic, [Record(None, b"one")]) == [0]

        old = cluster.node(2).port
        cluster.stop_broker(2)
        assert cluster.start_broker(2, move=True).port != old
        wait_until_known(Job(cluster.bootstrap[0], "", cluster.version, 2), topic, {0: [2]})
        assert advertised(proxy.port) == outcome, "clients need not hear of it"

        def answers() -> bool:
            try:
                return bool(brokers_seen_by(*outcome[2], timeout_s=2.0))
            except ProbeError:
                return False

        until(answers, "the sidecar to find the new address")
        for send, offset in ((send_confluent, 1), (send_aiokafka, 2)):
            assert send(job, topic, [Record(None, b"more")]) == [offset]
        assert [each.value for each in read_confluent(job, topic, 1, 3)] == [b"one", b"more", b"more"]
        assert advertised(proxy.port) == outcome


@pytest.mark.long
def test_producers_of_other_kinds_follow_leaders(cluster: KafkaCluster) -> None:
    """aiokafka and Java, idempotent: leadership moves under load, a leader is killed, and each record comes once."""
    direct, records = job_for(cluster), 2000
    settings: dict[str, dict[str, Any]] = {
        "aiokafka": {"enable_idempotence": True, "request_timeout_ms": 200_000},
        "java-perf": {"enable.idempotence": "true", "delivery.timeout.ms": "200000"},
    }
    topics = {name: create_topic_on(direct, name, {0: [*IDS]}) for name in settings}

    def written(topic: str) -> int:
        from kafka import KafkaConsumer, TopicPartition

        with KafkaConsumer(bootstrap_servers=list(cluster.bootstrap)) as consumer:
            (end,) = consumer.end_offsets([TopicPartition(topic, 0)]).values()
        return int(end)

    def more_come() -> None:
        """Wait until each has written more; none has ended."""
        for topic, count in {topic: written(topic) for topic in topics.values()}.items():
            until(lambda topic=topic, count=count: written(topic) > count, f"more than {count} in {topic}", 120)
            assert count < records, "too few records for this test"

    slow = [{"client-id": name, "producer_byte_rate": 30_000} for name in settings]
    with sidecar(cluster.bootstrap, slow) as running:
        futures = {}
        for name in settings:
            load = Load([running.bootstrap], topics[name], name, records, 1000, 240, settings[name], cluster.bootstrap)
            futures[name] = in_background(PRODUCERS[name], load)
        more_come()
        for topic in topics.values():
            move_leader(direct, topic, [SECOND, THIRD, FIRST])
        more_come()
        cluster.stop_broker(SECOND, kill=True)
        try:
            more_come()
        finally:
            cluster.start_broker(SECOND)
        more_come()
        running.set_quotas([])
        for name, future in futures.items():
            assert [error for error in future.result(240).errors if "] WARN " not in error] == [], name
    values = {name: [each.value or b"" for each in read_confluent(direct, topics[name], 1, records)] for name in topics}
    assert [check_record(value) for value in values["aiokafka"]] == list(range(records))
    assert len(set(values["java-perf"])) == written(topics["java-perf"]) == records, "random values"


@pytest.mark.long
def test_a_leader_that_dies_under_load_loses_nothing(cluster: KafkaCluster, proxy: Sidecar) -> None:
    """Leadership moves, then the leader is killed: what was acknowledged by all replicas in sync is there, once."""
    direct = job_for(cluster)
    topic = create_topic_on(direct, "dies", {0: [*IDS]}, {"min.insync.replicas": "2"})
    at_rest = least_held(proxy)
    with nothing_left_behind(proxy, at_rest), at_work(proxy.bootstrap, topic, cluster.bootstrap[0]) as work:
        move_leader(direct, topic, [SECOND, THIRD, FIRST])
        work.wait_for_progress()
        cluster.stop_broker(SECOND, kill=True)
        try:
            work.wait_for_progress()
            # Who starts now, with one of the bootstrap servers gone, is served, too.
            through = Job(proxy.bootstrap, direct.prefix, cluster.version, 3)
            late = create_topic_on(through, "late", {0: [FIRST]})
            assert send_kafka_python(through, late, [Record(None, b"late")]) == [0]
        finally:
            cluster.start_broker(SECOND)
        move_leader(direct, topic, [SECOND, FIRST, THIRD])  # back to the one that was away
        work.wait_for_progress()
