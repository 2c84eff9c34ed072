"""The table against what real brokers of every supported release advertise and answer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from proxy.core.wire import apis, responses, schema
from tests.lab import wire_schema
from tests.lab.releases import BETWEEN, NEW, OLD
from tests.support.raw_client import RawClient
from tests.support.wire_tools import kafka_python_frame, kafka_python_messages, read_api_versions

if TYPE_CHECKING:
    from tests.lab.kafka import KafkaCluster

# Questions that change nothing; asked with kafka-python's default values.
READ_ONLY = (
    "ListOffsets", "Metadata", "OffsetFetch", "FindCoordinator", "DescribeGroups", "ListGroups", "ApiVersions",
    "DescribeAcls", "DescribeConfigs", "DescribeLogDirs", "ListPartitionReassignments", "DescribeClientQuotas",
    "DescribeUserScramCredentials", "DescribeQuorum", "DescribeCluster", "DescribeProducers", "DescribeTransactions",
    "ListTransactions",
)  # fmt: skip


@pytest.fixture(params=[NEW, OLD, *(pytest.param(version, marks=pytest.mark.long) for version in BETWEEN)])
def cluster(request: pytest.FixtureRequest, kafka_of: Callable[[str], KafkaCluster]) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka") if request.param == NEW else kafka_of(request.param)
    return found


def connect(cluster: KafkaCluster) -> RawClient:
    return RawClient(cluster.bootstrap[0])


def advertised(cluster: KafkaCluster) -> dict[int, tuple[int, int]]:
    with connect(cluster) as peer:
        frame = peer.exchange(responses.api_versions_request(3, 1, "kquota-test"))
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
            frame = peer.exchange(responses.api_versions_request(version, 1, "kquota-test"))
            assert responses.rewrite(18, version, frame, 0, len(frame), lambda *_: ("h", 1)) is None


@pytest.mark.parametrize("name", READ_ONLY)
def test_broker_answers_match_the_wire_table(cluster: KafkaCluster, name: str) -> None:
    request_class, response_class = (
        next(cls for cls in kafka_python_messages() if cls.name == name + kind) for kind in ("Request", "Response")
    )
    offered = advertised(cluster)
    if request_class.API_KEY not in offered:
        pytest.skip(f"this broker has no {name}")
    lowest, highest = offered[request_class.API_KEY]
    checked = 0
    with connect(cluster) as peer:
        for version in range(lowest, min(highest, request_class.max_version) + 1):
            frame = peer.exchange(
                kafka_python_frame(request_class, version, 1000 + version, **arguments(name, version))
            )
            message = response_class.decode(frame, version=version, header=True, framed=True)
            assert message.header.correlation_id == 1000 + version
            patched = bytearray(frame)
            has = responses.patch_throttle(patched, 0, len(patched), request_class.API_KEY, version, 123_456)
            field: Any = next((f for f in response_class.json["fields"] if f["name"] == "ThrottleTimeMs"), None)
            assert has is (field is not None and version in wire_schema.versions(field["versions"])), version
            if has:
                after = response_class.decode(bytes(patched), version=version, header=True, framed=True)
                assert after.throttle_time_ms == 123_456
                assert after.to_dict() == message.to_dict() | {"throttle_time_ms": 123_456}
            checked += 1
    assert checked > 0


def arguments(name: str, version: int) -> dict[str, Any]:
    if name == "ApiVersions" and version >= 3:
        return {"client_software_name": "kquota-test", "client_software_version": "1"}
    if name == "FindCoordinator":
        return {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    if name == "OffsetFetch" and version >= 8:
        return {"groups": [{"group_id": "g", "topics": []}]}  # 3.9.1 never answers when there is no group
    if name == "DescribeAcls":
        anything = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
        return anything | ({"pattern_type_filter": 1} if version >= 1 else {})
    return {}


def test_reads_brokers_from_real_metadata(cluster: KafkaCluster) -> None:
    offered = advertised(cluster)
    with connect(cluster) as peer:
        for version in range(1, offered[apis.METADATA][1] + 1):
            frame = peer.exchange(responses.metadata_request(version, 5, "kquota-test"))
            (broker,) = responses.read_brokers(version, frame, 0, len(frame))
            node = cluster.nodes[0]
            assert broker == (node.node_id, node.host, node.port)


def test_answers_unsupported_api_versions_as_broker(cluster: KafkaCluster) -> None:
    header = struct.pack(">hhih", 18, 99, 77, -1) + b"\0"
    payload = header + b"\2a\2b\0"
    with connect(cluster) as peer:
        frame = peer.exchange(struct.pack(">i", len(payload)) + payload)
    assert frame[:-2] == responses.unsupported_api_versions_response(77)[:-2]  # behind it, the highest known version
