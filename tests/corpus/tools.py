"""Small things that many items do."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tests.corpus.job import Job
from tests.support.raw_client import RawClient
from tests.support.waiting import until

FOREVER = {"retention.ms": "-1"}
"""Records here have old timestamps, and half a minute after its start a broker begins to delete what is too old."""
GROUP_CONFIGS = 32  # ConfigResource.Type.GROUP


def create_topic(job: Job, suffix: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
    nodes = list(range(1, job.brokers + 1))
    # Chosen here, so that both processes get the same leaders: broker 1 leads partition 0 and so on.
    turns = range(job.brokers)
    assignments = {number: [nodes[(number + turn) % len(nodes)] for turn in turns] for number in range(partitions)}
    return create_topic_on(job, suffix, assignments, configs)


def create_topic_on(
    job: Job, suffix: str, assignments: Mapping[int, list[int]], configs: Mapping[str, str] | None = None
) -> str:
    from kafka import KafkaAdminClient

    name = job.name(suffix)
    with closing(KafkaAdminClient(bootstrap_servers=job.bootstrap)) as admin:
        admin.create_topics({name: {"assignments": dict(assignments), "configs": {**FOREVER, **(configs or {})}}})
    wait_until_known(job, name, assignments)
    return name


def wait_until_known(job: Job, topic: str, assignments: Mapping[int, list[int]]) -> None:
    expected = {partition: (nodes[0], sorted(nodes), sorted(nodes)) for partition, nodes in sorted(assignments.items())}
    for node, address in broker_addresses(job).items():
        with RawClient(address) as client:
            until(lambda: _partitions(client, topic) == expected, f"{expected} for {topic} on broker {node}")


def leaders(job: Job, topic: str) -> dict[int, int]:
    with RawClient(job.bootstrap.split(",")[0]) as client:
        return {partition: found[0] for partition, found in _partitions(client, topic).items()}


def broker_addresses(job: Job) -> dict[int, tuple[str, int]]:
    from kafka.protocol.metadata import MetadataRequest

    with RawClient(job.bootstrap.split(",")[0]) as client:
        answer = client.ask(MetadataRequest(version=8, topics=[])).message
    found = {each.node_id: (each.host, each.port) for each in answer.brokers}
    job.learn("MetadataRequest v8", found.values())
    return found


def _partitions(client: RawClient, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    from kafka.protocol.metadata import MetadataRequest

    wanted = MetadataRequest.MetadataRequestTopic(version=8, name=topic)
    (found,) = client.ask(MetadataRequest(version=8, topics=[wanted])).message.topics
    return {
        each.partition_index: (each.leader_id, sorted(each.replica_nodes), sorted(each.isr_nodes))
        for each in found.partitions
    }


def committed(job: Job, group: str, topic: str, partitions: int = 1) -> dict[int, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(partitions)])

    def stable() -> dict[int, int] | None:
        # A transaction is committed before its markers are everywhere. Until then its offsets are pending, and asking
        # for stable ones gives the error UNSTABLE_OFFSET_COMMIT next to an offset that means nothing.
        found = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(60).topic_partitions
        return None if any(each.error for each in found) else {each.partition: each.offset for each in found}

    return dict(until(stable, "stable offsets"))


def leave_out(value: Any, *names: str) -> Any:
    if isinstance(value, Mapping):
        return {key: leave_out(each, *names) for key, each in value.items() if key not in names}
    if isinstance(value, list | tuple):
        return [leave_out(each, *names) for each in value]
    return value


def read_from_the_start(job: Job, group: str) -> None:
    """Let a share group begin at the first record: an option of the group, not of its members."""
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    configs = {"share.auto.offset.reset": "earliest"}
    with closing(KafkaAdminClient(bootstrap_servers=job.bootstrap)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs)], raise_on_unknown=False)
    for node, address in broker_addresses(job).items():
        with RawClient(address) as client:
            until(lambda: _reset(client, group) == "earliest", f"the option of {group} on broker {node}")


def _reset(client: RawClient, group: str) -> str | None:
    from kafka.protocol.admin import DescribeConfigsRequest

    name = "share.auto.offset.reset"
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        version=4, resource_type=GROUP_CONFIGS, resource_name=group, configuration_keys=[name]
    )
    asked = {"include_synonyms": False, "include_documentation": False}
    (result,) = client.ask(DescribeConfigsRequest(version=4, resources=[resource], **asked)).message.results
    (value,) = [each.value for each in result.configs if each.name == name] or [None]
    return value
