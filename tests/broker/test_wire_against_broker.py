"""The table against what real brokers of every supported release advertise and answer."""

import struct
from collections.abc import Callable

import pytest

from proxy.core.wire import apis, messages, responses, schema
from tests.lab.kafka import KafkaCluster
from tests.lab.releases import BETWEEN, NEW, OLD
from tests.support.raw_client import RawClient
from tests.support.wire_tools import read_api_versions


@pytest.fixture(params=[NEW, OLD, *(pytest.param(version, marks=pytest.mark.long) for version in BETWEEN)])
def cluster(request: pytest.FixtureRequest, kafka_of: Callable[[str], KafkaCluster]) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka") if request.param == NEW else kafka_of(request.param)
    return found


def connect(cluster: KafkaCluster) -> RawClient:
    return RawClient(cluster.bootstrap[0])


def advertised(cluster: KafkaCluster) -> dict[int, tuple[int, int]]:
    with connect(cluster) as peer:
        frame = peer.exchange(messages.api_versions_request(3, 1, "kquota-test"))
    return read_api_versions(3, frame)


def test_every_advertised_version_is_in_the_table(cluster: KafkaCluster) -> None:
    offered = advertised(cluster)
    assert len(offered) > 50
    assert cluster.version in schema.SOURCES
    assert offered[apis.API_VERSIONS][1] == (5 if cluster.version >= "4.4" else 4)
    for api_key, (lowest, highest) in offered.items():
        for version in range(lowest, highest + 1):
            assert apis.is_known(api_key, version), (apis.api_name(api_key), version)
    for api_key in schema.ADDRESS_WALKS:
        if api_key in offered:
            assert offered[api_key][1] <= schema.APIS[api_key][2]


def test_clamps_no_version_this_broker_offers(cluster: KafkaCluster) -> None:
    with connect(cluster) as peer:
        for version in range(schema.APIS[apis.API_VERSIONS][2] + 1):
            frame = peer.exchange(messages.api_versions_request(version, 1, "kquota-test"))
            assert responses.rewrite(18, version, frame, 0, len(frame), lambda *_: ("h", 1)) is None


def test_reads_brokers_from_real_metadata(cluster: KafkaCluster) -> None:
    offered = advertised(cluster)
    with connect(cluster) as peer:
        for version in range(1, offered[apis.METADATA][1] + 1):
            frame = peer.exchange(messages.metadata_request(version, 5, "kquota-test"))
            (broker,), _ = responses.read_cluster(version, frame)
            node = cluster.nodes[0]
            assert broker == (node.node_id, node.host, node.port)


def test_answers_unsupported_api_versions_as_broker(cluster: KafkaCluster) -> None:
    header = struct.pack(">hhih", 18, 99, 77, -1) + b"\0"
    payload = header + b"\2a\2b\0"
    with connect(cluster) as peer:
        frame = peer.exchange(struct.pack(">i", len(payload)) + payload)
    assert frame[:-2] == messages.unsupported_api_versions_response(77)[:-2]  # behind it, the highest known version
