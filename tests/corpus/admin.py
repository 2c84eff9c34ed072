"""Admin calls of kafka-python and librdkafka: topics, configurations, offsets, groups, users, elections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.corpus.job import Job, item, outcome, wait_for
from tests.corpus.records import Record, send_confluent
from tests.corpus.tools import create_topic_on, leave_out, wait_until_known


@contextmanager
def _kafka_python(job: Job) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=job.bootstrap)
    try:
        yield admin
    finally:
        admin.close()


def _confluent(job: Job) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": job.bootstrap})


@item()
def cluster_kafka_python(job: Job) -> Any:
    with _kafka_python(job) as admin:
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
                {str(key): value for key, value in sorted(_versions(admin, node).items())}
                for node in range(1, job.brokers + 1)
            ],
        }


def _versions(admin: Any, node: int) -> dict[Any, Any]:
    found = admin.get_broker_version_data(node)
    return dict(found.api_versions)


@item()
def users_and_acls_kafka_python(job: Job) -> Any:
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    user = job.name("user")
    pattern = ResourcePatternFilter(ResourceType.TOPIC, "t", ACLResourcePatternType.LITERAL)
    rule = ACL("User:a", "*", ACLOperation.READ, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, "t"))
    with _kafka_python(job) as admin:
        upsert = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_256, "secret", iterations=4096)
        result: dict[str, Any] = {"upserted": admin.alter_user_scram_credentials([upsert])}

        def described() -> Any:
            found = outcome(lambda: admin.describe_user_scram_credentials([user]))
            return found if "4096" in repr(found) else None

        result["user"] = wait_for("the user", described)
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
        result["deleted"] = admin.alter_user_scram_credentials([deletion])
        # Without an authorizer the broker refuses all of these.
        wanted = ACLFilter("User:a", "*", ACLOperation.ANY, ACLPermissionType.ANY, pattern)
        result["acls"] = outcome(lambda: admin.describe_acls(wanted))
        result["create acl"] = outcome(lambda: repr(admin.create_acls([rule]).get("failed") is None))
        return result


@item()
def leaders_and_reassignments_kafka_python(job: Job) -> Any:
    """With three brokers a partition really moves, and clients are told of its new leader."""
    from kafka import TopicPartition

    second = list(range(1, job.brokers + 1))
    topic = create_topic_on(job, "moving", {0: second, 1: second})
    partition = TopicPartition(topic, 0)
    send_confluent(job, topic, [Record(None, b"before")])
    target = [job.brokers]
    with _kafka_python(job) as admin:

        def state() -> Any:
            found = admin.describe_topics([topic])[0]["partitions"]
            return sorted((each["partition_index"], each["leader_id"], each["replica_nodes"]) for each in found)

        result: dict[str, Any] = {"before": state()}
        result["moved"] = list(admin.alter_partition_reassignments({partition: target}).values())
        wait_for("the end of the move", lambda: not admin.list_partition_reassignments({topic: [0]}))
        wait_until_known(job, topic, {0: target, 1: second})
        result["after"] = state()
        result["elected"] = outcome(lambda: admin.elect_leaders(0, {topic: [0, 1]}, raise_errors=False))
        result["no such broker"] = list(admin.alter_partition_reassignments({partition: [77]}).values())
    result["written"] = send_confluent(job, topic, [Record(None, b"after")])
    return result


@item()
def everything_confluent(job: Job) -> Any:
    """librdkafka's admin client: topics, configurations, offsets, groups."""
    from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType, TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourceType,
    )

    admin = _confluent(job)
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

    result["configs"] = wait_for(
        "the change", lambda: (now := configs())["retention.ms"][0] == "80000000000000" and now
    )
    send_confluent(job, name, [Record(None, b"x", partition=number % 4) for number in range(40)])
    every = [TopicPartition(name, number) for number in range(4)]
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.for_timestamp(1_600_000_000_000)):
        found = admin.list_offsets(dict.fromkeys(every, spec))
        offsets = [(key.partition, value.result(60).offset) for key, value in found.items()]
        result[f"offsets {type(spec).__name__}"] = sorted(offsets)
    result["deleted records"] = [
        each.low_watermark for each in answer(admin.delete_records([TopicPartition(name, 0, 4)]))
    ]
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(name, number, number + 1) for number in range(4)])
    (altered,) = answer(admin.alter_consumer_group_offsets([asked]))
    result["group"] = [(each.partition, each.offset) for each in altered.topic_partitions]
    listed = admin.list_consumer_groups().result(60)
    result["listed"] = [
        (each.group_id, each.state.name, each.is_simple_consumer_group)
        for each in listed.valid
        if each.group_id == group
    ]
    result["elected"] = outcome(
        lambda: {
            key.partition: None if error is None else error.name()
            for key, error in admin.elect_leaders(ElectionType.PREFERRED, every).result(60).items()
        }
    )
    result["group deleted"] = answer(admin.delete_consumer_groups([group]))
    result["deleted"] = answer(admin.delete_topics([name], operation_timeout=30))
    result["deleted again"] = answer(admin.delete_topics([job.name("never-was")]))
    return result
