"""An address that leads to another cluster, as after a pod's address is used again: no record goes there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import yaml
from kafka.protocol.metadata import ApiVersionsRequest

from proxy.net.upstream.cluster import Access, Node, OtherNodeError, ask_brokers, check_node
from proxy.net.upstream.credentials import Credentials
from tests.lab.kafka.ports import free_ports
from tests.lab.kafka.properties import ExtraListener
from tests.support.faults import FaultyNetwork, Link
from tests.support.raw_client import RawClient
from tests.support.records import consume
from tests.support.secure_tools import own_login
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.lab.kafka import KafkaCluster

RECORDS = 60
LIMIT_S = 5.0


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[KafkaCluster, Link, Sidecar]]:
    """A cluster of one broker, which names the link as its address, and a sidecar that knows its true one."""
    from tests.lab.kafka import KafkaCluster

    own_port, told_port = free_ports(2)
    listener = ExtraListener("LINKED", own_port, told_port)
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster.start(1, progress=print, extra_listeners=[listener]))
        network = stack.enter_context(FaultyNetwork())
        link = network.link(("127.0.0.1", told_port), ("127.0.0.1", own_port))
        yield cluster, link, stack.enter_context(sidecar([f"127.0.0.1:{own_port}"]))


def test_records_never_reach_another_cluster(
    behind: tuple[KafkaCluster, Link, Sidecar], kafka: KafkaCluster, topic: str
) -> None:
    """The client is one that knows nothing of KIP-1242; its topic exists in both clusters."""
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, NewTopic

    cluster, link, proxy = behind
    for bootstrap in (cluster.bootstrap, kafka.bootstrap):
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.close()
    right, wrong = link.target, (kafka.nodes[0].host, kafka.nodes[0].port)
    with KafkaProducer(
        bootstrap_servers=proxy.bootstrap, client_id="old", linger_ms=0, acks="all", enable_idempotence=True,
        delivery_timeout_ms=60_000, request_timeout_ms=5_000, reconnect_backoff_max_ms=500,
    ) as producer:  # fmt: skip
        sent = [producer.send(topic, b"%d" % number) for number in range(RECORDS // 2)]
        producer.flush(30)
        # Its address is now that of the other cluster's broker.
        link.target = wrong
        link.cut(reset=True)
        sent += [producer.send(topic, b"%d" % number) for number in range(RECORDS // 2, RECORDS)]
        flushed = threading.Thread(target=producer.flush, args=(60,))
        flushed.start()
        until(lambda: proxy.metric("kquota_upstream_node_checks_total", outcome="other") >= 2, "it is refused")
        assert not any(future.is_done for future in sent[RECORDS // 2 :])
        link.target = right
        flushed.join()
        assert all(future.succeeded() for future in sent)
    assert [record.value for record in consume(cluster.bootstrap, topic, RECORDS)] == [
        b"%d" % number for number in range(RECORDS)
    ]
    assert end_offset(kafka.bootstrap, topic) == 0
    # Scrapes within a moment share one answer.
    until(lambda: proxy.metric("kquota_upstream_node_checks_total", outcome="same") >= 2, "it is asked again")
    assert "a broker's address leads to another broker" in proxy.log.read_text()


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_broker_says_which_one_it_is(listener: str, kafka_secure: KafkaCluster, tmp_path: Path) -> None:
    """With SASL after a login only; so the sidecar, which has one, logs in."""
    login, sasl = None, {}
    (address,) = kafka_secure.bootstrap
    if listener != "PLAINTEXT":
        (address,) = kafka_secure.bootstrap_of(listener)
        sasl = {"sasl": own_login(tmp_path, "PLAIN")}
        login = Credentials("PLAIN", "kquota", tmp_path / "secret")
    host, _, port = address.rpartition(":")
    cluster_id = trio.run(ask_brokers, host, int(port), Access(LIMIT_S, None, login)).cluster_id
    assert cluster_id is not None
    ask = partial(trio.run, check_node, host, int(port), Access(LIMIT_S, None, login))
    assert ask(Node(cluster_id, 1)) is True
    for node, others, found in ((Node(cluster_id, 9), (3, 1), 1), (Node("other", 1), (1, 2), None)):
        with pytest.raises(OtherNodeError) as refused:
            ask(node, others)
        assert refused.value.found == found
    with sidecar([], upstream={"bootstrap": [address], **sasl}) as proxy:
        with RawClient(port_of_broker_1(proxy)) as client:
            client.ask(ApiVersionsRequest(version=0))
        assert proxy.metric("kquota_upstream_node_checks_total", outcome="same") == 1


def port_of_broker_1(proxy: Sidecar) -> str:
    first = yaml.safe_load(proxy.config.read_text())["listen"]["broker_ports"].partition("-")[0]
    return f"127.0.0.1:{int(first) + 1}"


def end_offset(bootstrap: list[str], topic: str) -> int:
    from kafka import KafkaConsumer, TopicPartition

    with KafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        return int(consumer.end_offsets([partition])[partition])
