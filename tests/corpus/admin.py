"""Admin calls of kafka-python and librdkafka: topics, configurations, offsets, groups, users, elections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.corpus.job import Job, item, outcome, wait_for
from tests.corpus.records import Record, send_confluent
from tests.corpus.tools import create_topic, create_topic_on, leave_out, wait_until_known


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


def _spread(job: Job, partitions: int) -> dict[int, list[int]]:
    """Assignments that say who leads: brokers in turn."""
    return {number: [number % job.brokers + 1] for number in range(partitions)}


@item()
def topics_kafka_python(job: Job) -> Any:
    name, other = job.name("topics-kp"), job.name("topics-kp-2")

    def by_name(found: Any) -> Any:
        return leave_out(sorted(found, key=lambda topic: topic["name"]), "topic_id")

    def topics() -> Any:
        found = admin.describe_topics([name, other])
        for topic in found:
            topic["partitions"].sort(key=lambda partition: partition["partition_index"])
        return by_name(found)

    def create(wanted: Any, **options: Any) -> Any:
        return by_name(admin.create_topics(wanted, raise_errors=False, **options)["topics"])

    with _kafka_python(job) as admin:
        result: dict[str, Any] = {"only validated": create({name: {"num_partitions": 2}}, validate_only=True)}
        result["unknown"] = topics()
        wanted = {
            name: {"assignments": _spread(job, 3), "configs": {"retention.ms": "100000", "cleanup.policy": "compact"}},
            other: {"num_partitions": 1, "replication_factor": job.replicas},
        }
        result["created"] = create(wanted)
        wait_until_known(job, name, _spread(job, 3))
        result["again"] = create({name: {"num_partitions": 2}})
        result["bad name"] = create({job.name("bad name!"): {"num_partitions": 1}})
        result["bad config"] = create({job.name("bad-config"): {"configs": {"no.such": "1"}}})
        result["too many replicas"] = create({job.name("replicas"): {"num_partitions": 1, "replication_factor": 9}})
        result["allowed"] = admin.describe_topics([name])[0]["authorized_operations"]
        grow = {name: {"count": 5, "assignments": [[1], [job.brokers]]}}
        result["grown"] = admin.create_partitions(grow, raise_errors=False)
        wait_until_known(job, name, {**_spread(job, 3), 3: [1], 4: [job.brokers]})
        result["shrunk"] = admin.create_partitions({name: 2}, raise_errors=False)
        result["partitions"] = [
            (each["partition_index"], each["leader_id"], each["replica_nodes"])
            for topic in topics()
            if topic["name"] == name
            for each in topic["partitions"]
        ]
        result["listed"] = sorted(each for each in _names(admin.list_topics()) if each in (name, other))
        result["deleted"] = by_name(admin.delete_topics([name, other])["topics"])
        wait_for("gone", lambda: not {name, other} & set(_names(admin.list_topics())))
        result["deleted again"] = leave_out(admin.delete_topics([name], raise_errors=False), "topic_id")
    return result


def _names(topics: Any) -> list[str]:
    return [each if isinstance(each, str) else each["name"] for each in topics]


@item()
def configs_kafka_python(job: Job) -> Any:
    from kafka.admin import AlterConfigOp, ConfigFilterType, ConfigResource, ConfigResourceType

    topic = create_topic(job, "configs-kp")

    def resource(configs: Any = None) -> Any:
        return ConfigResource(ConfigResourceType.TOPIC, topic, configs)

    with _kafka_python(job) as admin:

        def described() -> Any:
            return admin.describe_configs([resource()], include_synonyms=True)

        changes = {"retention.ms": "5000", "cleanup.policy": (AlterConfigOp.APPEND, "compact")}
        result = {
            "altered": admin.alter_configs([resource(changes)]),
            "described": wait_for("the change", lambda: "'5000'" in repr(now := described()) and now),
            "refused": outcome(lambda: admin.alter_configs([resource({"retention.ms": "soon"})])),
            "reset": admin.reset_configs([resource({"retention.ms": None})]),
        }
        wait_for("the reset", lambda: "retention.ms" not in described()["topic"][topic])
        broker = ConfigResource(ConfigResourceType.BROKER, str(job.brokers))
        everything = admin.describe_configs([broker], config_filter=ConfigFilterType.ALL)
        return result | {"broker": everything}


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
def offsets_kafka_python(job: Job) -> Any:
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    topic = create_topic(job, "offsets-kp", partitions=3)
    send_confluent(
        job, topic, [Record(None, b"x", timestamp_ms=1_700_000_000_000 + n, partition=n % 3) for n in range(60)]
    )
    every = [TopicPartition(topic, number) for number in range(3)]
    with _kafka_python(job) as admin:

        def listed(spec: Any) -> Any:
            found = admin.list_partition_offsets(dict.fromkeys(every, spec))
            return {each.partition: found[each] for each in every}

        result = {
            str(name): listed(spec)
            for name, spec in {
                "earliest": OffsetSpec.EARLIEST,
                "latest": OffsetSpec.LATEST,
                "max timestamp": OffsetSpec.MAX_TIMESTAMP,
                "at a time": 1_700_000_000_030,
            }.items()
        }
        deleted = admin.delete_records({every[0]: 5, every[1]: 10})
        result["deleted"] = {key.partition: value for key, value in deleted.items()}
        result["earliest then"] = listed(OffsetSpec.EARLIEST)
        result["deleted too far"] = outcome(lambda: admin.delete_records({every[2]: 1_000}))
        dirs = admin.describe_log_dirs({topic: [0, 1, 2]})
        result["logs"] = sorted(
            (key["partition_index"], key["partition_size"] > 0, key["is_future_key"])
            for broker in (dirs.values() if isinstance(dirs, dict) else dirs)
            for key in _partitions_in(broker)
        )
        return result


def _partitions_in(value: Any) -> Iterator[Any]:
    """All dicts about a partition in a nested answer."""
    if isinstance(value, dict):
        if "partition_size" in value:
            yield value
        for each in value.values():
            yield from _partitions_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _partitions_in(each)


@item()
def groups_kafka_python(job: Job) -> Any:
    from kafka import OffsetAndMetadata, TopicPartition
    from kafka.admin import OffsetSpec

    topic, group = create_topic(job, "groups-kp", partitions=3), job.name("groups-kp")
    send_confluent(job, topic, [Record(None, b"x", partition=number % 3) for number in range(30)])
    every = [TopicPartition(topic, number) for number in range(3)]
    with _kafka_python(job) as admin:

        def by_partition(found: Any) -> Any:
            return {key.partition: value for key, value in sorted(found.items())}

        offsets = {each: OffsetAndMetadata(each.partition + 1, "note", -1) for each in every}
        result: dict[str, Any] = {"altered": by_partition(admin.alter_group_offsets(group, offsets))}
        result["offsets"] = by_partition(admin.list_group_offsets({group: None})[group])
        specs = {every[0]: OffsetSpec.EARLIEST, every[1]: OffsetSpec.LATEST, every[2]: 1_000}
        result["reset"] = by_partition(admin.reset_group_offsets(group, specs))
        result["deleted offsets"] = by_partition(admin.delete_group_offsets(group, [every[1]]))
        result["then"] = by_partition(admin.list_group_offsets({group: None})[group])
        result["listed"] = [each for each in admin.list_groups() if job.prefix in repr(each) and group in repr(each)]
        result["deleted"] = admin.delete_groups([group])
        result["deleted again"] = outcome(lambda: admin.delete_groups([group]))
        return result


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
