"""Admin calls of kafka-python and librdkafka: topics, configurations, offsets, groups, elections."""

from contextlib import closing
from typing import Any

from tests.corpus.job import Job, item, outcome
from tests.corpus.records import Record, send_confluent
from tests.corpus.tools import leave_out, wait_until_known
from tests.support.waiting import until


@item()
def cluster_kafka_python(job: Job) -> Any:
    from kafka import KafkaAdminClient

    with closing(KafkaAdminClient(bootstrap_servers=job.bootstrap)) as admin:
        cluster = admin.describe_cluster()
        cluster["brokers"].sort(key=lambda broker: broker["broker_id"])
        addresses = {(each["host"], each["port"]) for each in cluster["brokers"]}
        job.learn("DescribeCluster, kafka-python", addresses)
        quorum = admin.describe_metadata_quorum()
        return {
            "cluster": leave_out(cluster, "host", "port", "controller_id"),
            "features": leave_out(admin.describe_features(), "finalized_epoch"),
            "addresses": len(addresses),
            "voters": sorted(
                each["replica_id"]
                for topic in quorum["topics"]
                for partition in topic["partitions"]
                for each in partition["current_voters"]
            ),
            "versions": [
                {str(key): value for key, value in sorted(admin.get_broker_version_data(node).api_versions.items())}
                for node in range(1, job.brokers + 1)
            ],
        }


@item()
def everything_confluent(job: Job) -> Any:
    from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType, TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    name, group = job.name("admin-c"), job.name("admin-c")

    def answer(futures: Any) -> Any:
        return [outcome(lambda future=future: future.result(60)) for future in futures.values()]

    def described() -> Any:
        found = admin.describe_topics(TopicCollection([name]))[name].result(60)
        return [(each.id, each.leader.id, [node.id for node in each.replicas]) for each in found.partitions]

    assignment = [[number % job.brokers + 1] for number in range(3)]
    new = NewTopic(name, 3, replica_assignment=assignment, config={"retention.ms": "70000000000000"})
    result: dict[str, Any] = {"created": answer(admin.create_topics([new]))}
    result["again"] = answer(admin.create_topics([NewTopic(name, 3, 1)]))
    result["validated"] = answer(admin.create_topics([NewTopic(job.name("no"), 1, 1)], validate_only=True))
    result["grown"] = answer(admin.create_partitions([NewPartitions(name, 4, [[1]])]))
    wait_until_known(job, name, {**dict(enumerate(assignment)), 3: [1]})
    result["described"] = described()
    metadata = admin.list_topics(timeout=60)
    job.learn("Metadata, librdkafka", {(each.host, each.port) for each in metadata.brokers.values()})
    result["metadata"] = (
        sorted(metadata.brokers),
        sorted((number, each.leader) for number, each in metadata.topics[name].partitions.items()),
    )
    cluster = admin.describe_cluster(include_authorized_operations=True).result(60)
    job.learn("DescribeCluster, librdkafka", {(each.host, each.port) for each in cluster.nodes})
    result["cluster"] = (
        cluster.cluster_id,
        sorted(each.id for each in cluster.nodes),
        sorted(each.name for each in cluster.authorized_operations),
    )
    resource = ConfigResource(ResourceType.TOPIC, name)
    entry = ConfigEntry("retention.ms", "80000000000000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    result["altered"] = answer(admin.incremental_alter_configs([change]))

    def configs() -> dict[str, Any]:
        found = admin.describe_configs([resource])[resource].result(60)
        return {each.name: (each.value, each.source, each.is_default) for each in found.values()}

    changed = until(lambda: (now := configs())["retention.ms"][0] == "80000000000000" and now, "the change")
    result["configs"] = changed
    send_confluent(job, name, [Record(None, b"x", partition=number % 4) for number in range(40)])
    every = [TopicPartition(name, number) for number in range(4)]
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.for_timestamp(1_600_000_000_000)):
        found = admin.list_offsets(dict.fromkeys(every, spec))
        offsets = [(key.partition, value.result(60).offset) for key, value in found.items()]
        result[f"offsets {type(spec).__name__}"] = sorted(offsets)
    deleted = answer(admin.delete_records([TopicPartition(name, 0, 4)]))
    result["deleted records"] = [each.low_watermark for each in deleted]
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(name, number, number + 1) for number in range(4)])
    (altered,) = answer(admin.alter_consumer_group_offsets([asked]))
    result["group"] = [(each.partition, each.offset) for each in altered.topic_partitions]
    listed = [each for each in admin.list_consumer_groups().result(60).valid if each.group_id == group]
    result["listed"] = [(each.group_id, each.state.name, each.is_simple_consumer_group) for each in listed]

    def elected() -> Any:
        found = admin.elect_leaders(ElectionType.PREFERRED, every).result(60)
        return {key.partition: None if error is None else error.name() for key, error in found.items()}

    result["elected"] = outcome(elected)
    result["group deleted"] = answer(admin.delete_consumer_groups([group]))
    result["deleted"] = answer(admin.delete_topics([name], operation_timeout=30))
    result["deleted again"] = answer(admin.delete_topics([job.name("never-was")]))
    return result
