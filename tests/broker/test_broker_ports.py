"""Local ports of brokers, with real ones: any ids, brokers that come and go, fewer ports than brokers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.job import Job, wait_for
from tests.corpus.records import SENDERS, Record
from tests.corpus.tools import create_topic_on, leaders
from tests.lab.kafka import KafkaCluster, run_tool
from tests.lab.kafka.probe import brokers_seen_by
from tests.support.fault_tools import Producing, read_log
from tests.support.raw_client import RawClient
from tests.support.secure_tools import PASSWORDS, login
from tests.support.sidecars import Sidecar, sidecar

FIRST_ID = 1001


def advertised(proxy: Sidecar) -> dict[int, int]:
    """Broker id -> which port of the range is advertised, counted from 0."""
    first = min(port for _, port in proxy.broker_addresses() if port != proxy.port)
    return {each.node_id: each.port - first for each in brokers_seen_by("127.0.0.1", proxy.port)}


def shown(proxy: Sidecar) -> dict[int, int | None]:
    """The same as `GET /brokers` shows it; None: no port."""
    first = min(port for _, port in proxy.broker_addresses() if port != proxy.port)
    return {
        each["id"]: None if each["local_port"] is None else each["local_port"] - first
        for each in proxy.get("/brokers")["brokers"]
    }


@pytest.fixture(scope="module")
def from_1001() -> Iterator[KafkaCluster]:
    with KafkaCluster.start(3, first_id=FIRST_ID, progress=print) as cluster:
        yield cluster


def test_ids_beyond_the_range_have_ports_of_their_own(from_1001: KafkaCluster) -> None:
    with sidecar(from_1001.bootstrap, broker_ports=10) as proxy:
        assert advertised(proxy) == shown(proxy) == {1001: 1, 1002: 2, 1003: 3}
        first = min(port for _, port in proxy.broker_addresses() if port != proxy.port)
        for node_id, index in advertised(proxy).items():
            assert reached(first + index) == reached(from_1001.node(node_id).port)
            seen = {each.node_id: each.port for each in brokers_seen_by("127.0.0.1", first + index)}
            assert seen[node_id] == first + index, "who bootstraps there finds that address among the brokers'"
        assert proxy.metric("kquota_brokers") == 3


def reached(port: int) -> str:
    """The log directory of the broker behind this port: no two have the same."""
    from kafka.protocol.admin import DescribeLogDirsRequest

    with RawClient(f"127.0.0.1:{port}") as client:
        (found,) = client.ask(DescribeLogDirsRequest(version=1, topics=[])).message.results
        return str(found.log_dir)


def test_a_broker_without_a_port_costs_its_own_partitions_only(from_1001: KafkaCluster) -> None:
    """Three brokers and two ports: whoever produces to the other two does not notice, in any client library."""
    direct = Job(",".join(from_1001.bootstrap), f"ports-{uuid.uuid4().hex[:6]}", from_1001.version, 3)
    topics = {
        node.node_id: create_topic_on(direct, f"on-{node.node_id}", {0: [node.node_id]}) for node in from_1001.nodes
    }
    both = create_topic_on(direct, "both", {0: [1001], 1: [1002], 2: [1003]})
    with sidecar(from_1001.bootstrap, broker_ports=2) as proxy:
        assert shown(proxy) == {1001: 1, 1002: 0, 1003: None}
        assert advertised(proxy) == {1001: 1, 1002: 0}
        assert proxy.metric("kquota_brokers_without_port") == 1
        assert '"node_ids": [1003]' in proxy.log.read_text()
        through = Job(proxy.bootstrap, direct.prefix, from_1001.version, 3)
        assert leaders(through, topics[1003]) == {0: -1}
        with Producing(proxy.bootstrap, topics[1001]) as producing:
            for name, send in SENDERS.items():
                for topic, partition in ((topics[1001], 0), (topics[1002], 0), (both, 0), (both, 1)):
                    assert len(send(through, topic, [Record(None, name.encode(), partition=partition)])) == 1, name
            for topic in (topics[1002], both):  # the Java client picks a partition that has a leader
                tool = ["--bootstrap-server", proxy.bootstrap, "--topic", topic, "--request-timeout-ms", "30000"]
                run_tool("org.apache.kafka.tools.ConsoleProducer", tool, from_1001.version, stdin="java\n")
            producing.wait_for_progress()
            producing.finish()
        assert producing.refused == {}
        assert "java" in {event.value for event in read_log(direct.bootstrap, topics[1002])}


@pytest.mark.parametrize("keeps", [True, False])
def test_clients_that_know_only_a_broker_port_come_back(
    keeps: bool, kafka_secure: KafkaCluster, tmp_path: Path
) -> None:
    """kill -9 before brokers that want a login, which the sidecar itself does not have."""
    path = tmp_path / "ports.json"
    listen = {"state_file": str(path)} if keeps else {}
    topic = create_topic_on(
        Job(kafka_secure.bootstrap[0], uuid.uuid4().hex[:6], kafka_secure.version, 1), "t", {0: [1]}
    )
    credentials = login("confluent-kafka", "PLAIN", "alice", PASSWORDS["alice"])
    with sidecar(kafka_secure.bootstrap_of("SASL_PLAINTEXT"), listen=listen) as proxy:
        assert shown(proxy) == {}
        with Producing(proxy.bootstrap, topic, **credentials) as first:
            first.wait_for_progress()
            first.finish()
        (port,) = (each["local_port"] for each in proxy.get("/brokers")["brokers"])
        with Producing(f"127.0.0.1:{port}", topic, **credentials) as producing:
            producing.wait_for_progress()
            wait_for("the file", lambda: path.exists() or not keeps)
            proxy.kill()
            proxy.start_again()  # ready
            if keeps:
                producing.wait_for_progress()
                producing.finish()
                assert producing.refused == {}
            else:
                with pytest.raises(ConnectionRefusedError):
                    RawClient(f"127.0.0.1:{port}")
                proxy.kill()
