"""Every version of the messages that carry broker addresses, and ApiVersions, asked for without a client's help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.corpus.job import Job, item, wait_for
from tests.corpus.tools import broker_addresses, create_topic, leave_out
from tests.support.raw_client import RawClient, fetch_message, fetched_values, produce_message

CHANGING = ("topic_id", "leader_epoch", "controller_id")


def _offered(client: RawClient, request_class: Any) -> range:
    """Versions that both the broker and kafka-python know. Kafka 4 advertises Produce 0 to 2 and refuses them."""
    from kafka.protocol.metadata import ApiVersionsRequest

    answer = client.ask(ApiVersionsRequest(version=0)).message
    (found,) = [each for each in answer.api_keys if each.api_key == request_class.API_KEY]
    oldest, newest = request_class.valid_versions
    return range(max(found.min_version, oldest), min(found.max_version, newest) + 1)


def _client(job: Job) -> RawClient:
    return RawClient(job.bootstrap.split(",")[0])


def _addresses(value: Any) -> Iterator[tuple[str, int]]:
    """All (host, port) in a decoded message; Kafka writes "none" as an empty host with port -1."""
    if isinstance(value, dict):
        if value.get("host"):
            yield value["host"], value["port"]
        for each in value.values():
            yield from _addresses(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _addresses(each)


def _answer(job: Job, client: RawClient, request: Any) -> Any:
    """The decoded answer without what may differ; its addresses are noted."""
    decoded = client.ask(request).message.to_dict()
    job.learn(f"{type(request).__name__} v{request.API_VERSION}", _addresses(decoded))
    for name, key in (("brokers", "node_id"), ("brokers", "broker_id"), ("topics", "name")):
        if decoded.get(name) and key in decoded[name][0]:
            decoded[name].sort(key=lambda each: each[key])
    for topic in decoded.get("topics", ()):
        topic.get("partitions", []).sort(key=lambda each: each["partition_index"])
    return leave_out(decoded, "port", *CHANGING)


@item()
def api_versions(job: Job) -> Any:
    """What the broker offers, at each version of the question; an unknown version is answered as version 0."""
    from kafka.protocol.metadata import ApiVersionsRequest

    result: dict[str, Any] = {}
    with _client(job) as client:
        for version in _offered(client, ApiVersionsRequest):
            request = ApiVersionsRequest(version=version, client_software_name="corpus", client_software_version="1.0")
            answer = client.ask(request).message.to_dict()
            result[f"v{version}"] = leave_out(answer, "finalized_features_epoch")
        # Version 9 does not exist: error 35 in a body of version 0, whatever was asked (KIP-511). At its end is
        # the newest version, which the sidecar says of itself.
        newest = ApiVersionsRequest(version=3, client_software_name="corpus", client_software_version="1.0")
        frame = bytearray(client.frame(newest))
        frame[6:8] = (9).to_bytes(2, "big")
        client.send(bytes(frame))
        payload = client.read_frame().payload
        result["v9"] = payload[4:-2].hex()
    return result


@item(ApiVersions=5)
def another_broker(job: Job) -> Any:
    """A broker says that it is not the one that the client wants (KIP-1242): error 129, to all ids but its own."""
    from kafka.protocol.metadata import MetadataRequest

    from proxy.core.wire.messages import api_versions_request

    with _client(job) as client:
        cluster = client.ask(MetadataRequest(version=9, topics=[])).message
        errors = []
        for node_id in (*(broker.node_id for broker in cluster.brokers), 99):
            client.send(api_versions_request(5, 1, "corpus", cluster_id=cluster.cluster_id, node_id=node_id))
            errors.append(int.from_bytes(client.read_frame().payload[4:6], "big"))
    return sorted(errors)


@item()
def metadata(job: Job) -> Any:
    from kafka.protocol.metadata import MetadataRequest

    topic, result = create_topic(job, "wire-metadata", partitions=3), {}
    with _client(job) as client:
        known = client.topic(topic)
        for version in _offered(client, MetadataRequest):
            wanted = MetadataRequest.MetadataRequestTopic
            named = [wanted(version=version, topic_id=known.id if version >= 12 else None, name=topic)]
            questions = {"named": named, "none": []}
            if version >= 10:  # by name only, and by a name that there is not
                questions["unknown"] = [wanted(version=version, name=job.name("wire-unknown"))]
            for name, topics in questions.items():
                if version == 0 and name == "none":
                    continue  # version 0 has no way to ask for none: an empty list means all
                request = MetadataRequest(
                    version=version,
                    topics=topics,
                    allow_auto_topic_creation=False,
                    include_cluster_authorized_operations=True,
                    include_topic_authorized_operations=True,
                )
                result[f"v{version} {name}"] = _answer(job, client, request)
    return result


@item()
def find_coordinator(job: Job) -> Any:
    from kafka.protocol.metadata import FindCoordinatorRequest

    result: dict[str, Any] = {}
    with _client(job) as client:
        for version in _offered(client, FindCoordinatorRequest):
            for kind, key_type in (("group", 0), ("transaction", 1)):
                if version == 0 and key_type:
                    continue  # groups only
                keys = [f"coordinated-{number}" for number in range(3)]  # the same ones in both processes
                if version < 4:
                    asked = [{"key": key, "key_type": key_type} for key in keys]
                else:
                    asked = [{"coordinator_keys": keys, "key_type": key_type}]

                def ask(fields: dict[str, Any], version: int = version) -> Any:
                    return _answer(job, client, FindCoordinatorRequest(version=version, **fields))

                for number, fields in enumerate(asked):
                    # Kafka's own topics are created by the first question; until then there is no coordinator.
                    result[f"v{version} {kind} {number}"] = wait_for(
                        "a coordinator", lambda fields=fields: (now := ask(fields)) and _found(now) and now
                    )
    return result


def _found(answer: Any) -> bool:
    errors = [each["error_code"] for each in answer["coordinators"]] if answer.get("coordinators") else []
    return not any(errors) and not answer.get("error_code")


@item()
def describe_cluster(job: Job) -> Any:
    from kafka.protocol.admin import DescribeClusterRequest

    result: dict[str, Any] = {}
    with _client(job) as client:
        for version in _offered(client, DescribeClusterRequest):
            # Controllers (endpoint type 2) are only told by controllers; the broker's refusal is the result.
            for endpoint in (1, 2) if version >= 1 else (1,):
                request = DescribeClusterRequest(
                    version=version,
                    include_cluster_authorized_operations=True,
                    endpoint_type=endpoint,
                    include_fenced_brokers=False,
                )
                answer = _answer(job, client, request)
                result[f"v{version} type {endpoint}"] = answer
    return result


@item()
def produce_and_fetch(job: Job) -> Any:
    """Every version of Produce and Fetch that kafka-python can write, asked of the partition's leader."""
    from kafka.protocol.consumer import FetchRequest
    from kafka.protocol.producer import ProduceRequest

    name, result = create_topic(job, "wire-records"), {}
    with RawClient(broker_addresses(job)[1]) as client:
        topic = client.topic(name)
        for offset, version in enumerate(_offered(client, ProduceRequest)):
            answer = client.ask(
                produce_message(version, topic, [f"by version {version}".encode()], acks=-1)
            ).message.to_dict()
            result[f"produce v{version}"] = leave_out(answer, "topic_id", "log_append_time_ms")
            assert answer["responses"][0]["partition_responses"][0]["base_offset"] == offset
        for version in _offered(client, FetchRequest):
            answer = client.ask(fetch_message(version, topic)).message
            result[f"fetch v{version}"] = fetched_values(answer)
    return result
