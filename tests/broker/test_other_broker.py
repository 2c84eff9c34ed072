"""An address that leads to another cluster, as after a pod's address is used again: no record goes there."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_ports
from tests.lab.kafka.properties import ExtraListener
from tests.support.fault_tools import create_topic
from tests.support.faults import FaultyNetwork, Link
from tests.support.records import consume
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import in_background, until

pytestmark = pytest.mark.long  # a broker of its own; loopback/test_node_checks has the same with scripted ones

RECORDS = 60


@pytest.fixture
def behind() -> Iterator[tuple[KafkaCluster, Link, Sidecar]]:
    """A cluster of one broker, which names the link as its address, and a sidecar that knows its true one."""
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
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    cluster, link, proxy = behind
    for one in (cluster, kafka):
        create_topic(one.bootstrap[0], topic)
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
        flushed = in_background(producer.flush, 60)
        until(lambda: proxy.metric("kquota_upstream_node_checks_total", outcome="other") >= 2, "it is refused")
        assert not any(future.is_done for future in sent[RECORDS // 2 :])
        link.target = right
        flushed.result()
        assert all(future.succeeded() for future in sent)
    values = [record.value for record in consume(cluster.bootstrap, topic, RECORDS)]
    assert values == [b"%d" % number for number in range(RECORDS)]
    with KafkaConsumer(bootstrap_servers=kafka.bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        assert consumer.end_offsets([partition]) == {partition: 0}
    # Scrapes within a moment share one answer.
    until(lambda: proxy.metric("kquota_upstream_node_checks_total", outcome="same") >= 2, "it is asked again")
    assert "a broker's address leads to another broker" in proxy.log.read_text()
