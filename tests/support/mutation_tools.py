"""A cluster of topics without sockets, speaking through kafka-python's messages, and the mutation quota before it."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from proxy.core.interceptors.intercept import AdminRequest, Answer, Ask, Forward, Outcome
from proxy.core.interceptors.mutations import MutationQuota
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from quota.entity import Kind
from quota.ledger import Account, Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import finished

METADATA = 3
NO_ID = uuid.UUID(int=0)
THROTTLED = 89
UNKNOWN_TOPIC, EXISTS, INVALID_PARTITIONS, INVALID_REQUEST, UNKNOWN_ID = 3, 36, 37, 42, 100
POLICY_VIOLATION = 44

CREATE_VERSIONS, DELETE_VERSIONS, PARTITIONS_VERSIONS, METADATA_VERSIONS = range(8), range(7), range(4), range(14)
MESSAGES: dict[int, tuple[Any, Any]] = {
    METADATA: (MetadataRequest, MetadataResponse),
    CREATE_TOPICS: (CreateTopicsRequest, CreateTopicsResponse),
    DELETE_TOPICS: (DeleteTopicsRequest, DeleteTopicsResponse),
    CREATE_PARTITIONS: (CreatePartitionsRequest, CreatePartitionsResponse),
}


def create(version: int, topics: dict[str, int] | list[tuple[str, int]], *, validate_only: bool = False) -> Any:
    """A CreateTopics request; a count of -1 is the broker's default."""
    pairs = topics.items() if isinstance(topics, dict) else topics
    cls = partial(CreateTopicsRequest.CreatableTopic, version=version, replication_factor=1, assignments=[], configs=[])
    asked = [cls(name=name, num_partitions=count) for name, count in pairs]
    return CreateTopicsRequest(version=version, topics=asked, timeout_ms=30_000, validate_only=validate_only)


def create_assigned(version: int, name: str, partitions: int) -> Any:
    """A CreateTopics request that places each partition on broker 1."""
    cls = CreateTopicsRequest.CreatableTopic
    place = cls.CreatableReplicaAssignment
    assignments = [place(version=version, partition_index=index, broker_ids=[1]) for index in range(partitions)]
    counts = {"num_partitions": -1, "replication_factor": -1}
    topic = cls(version=version, name=name, assignments=assignments, configs=[], **counts)
    return CreateTopicsRequest(version=version, topics=[topic], timeout_ms=30_000, validate_only=False)


def delete(version: int, names: list[str], topic_ids: list[uuid.UUID] | None = None) -> Any:
    if version < 6:
        return DeleteTopicsRequest(version=version, topic_names=names, timeout_ms=30_000)
    cls = DeleteTopicsRequest.DeleteTopicState
    topics = [cls(version=version, name=name, topic_id=NO_ID) for name in names]
    topics += [cls(version=version, name=None, topic_id=topic_id) for topic_id in topic_ids or []]
    return DeleteTopicsRequest(version=version, topics=topics, timeout_ms=30_000)


def partitions(version: int, topics: dict[str, int] | list[tuple[str, int]]) -> Any:
    cls = CreatePartitionsRequest.CreatePartitionsTopic
    pairs = topics.items() if isinstance(topics, dict) else topics
    asked = [cls(version=version, name=name, count=count, assignments=None) for name, count in pairs]
    return CreatePartitionsRequest(version=version, topics=asked, timeout_ms=30_000, validate_only=False)


def metadata(version: int, names: list[str] | None, *, creates: bool = True, ids: tuple[uuid.UUID, ...] = ()) -> Any:
    """A Metadata request about topics by name, and (from version 10) by id; None: about all."""
    cls = MetadataRequest.MetadataRequestTopic
    topics = None if names is None else [cls(version=version, name=name, topic_id=NO_ID) for name in names]
    topics = topics if topics is None else topics + [cls(version=version, name=None, topic_id=one) for one in ids]
    return MetadataRequest(version=version, topics=topics, allow_auto_topic_creation=creates)


def encoded(message: Any) -> bytes:
    return bytes(message.encode(version=message.API_VERSION))


@dataclass
class Cluster:
    """Topics, as a KRaft controller keeps them; errors as it gives them."""

    default_count: int = 3
    topics: dict[str, tuple[uuid.UUID, int]] = field(default_factory=dict)
    seen: list[tuple[int, int]] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    fail: dict[str, int] = field(default_factory=dict)
    auto_create: bool = True
    describe_configs: bool = True
    """Whether the client may know how many partitions its new topic has."""
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def add(self, **topics: int) -> None:
        for name, count in topics.items():
            self.topics[name] = (uuid.UUID(int=next(self._ids)), count)

    @property
    def counts(self) -> dict[str, int]:
        return {name: count for name, (_, count) in self.topics.items()}

    def handle(self, api_key: int, version: int, body: bytes) -> bytes:
        self.seen.append((api_key, version))
        request_class, response_class = MESSAGES[api_key]
        message = request_class.decode(body, version=version)
        methods = (self._metadata, self._create, self._delete, self._extend)
        answer = dict(zip(MESSAGES, methods, strict=True))[api_key](version, message)
        response = response_class(version=version, throttle_time_ms=0, **answer)
        return bytes(response.encode(version=version))

    def _name_of(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, (known, _) in self.topics.items() if known == topic_id), None)

    def _metadata(self, version: int, message: Any) -> dict[str, Any]:
        creates = self.auto_create and message.allow_auto_topic_creation
        cls, topics = MetadataResponse.MetadataResponseTopic, []
        led = {"leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1], "offline_replicas": []}
        part = partial(cls.MetadataResponsePartition, version=version, error_code=0, **led)
        for one in message.topics or ():
            by_id = version >= 10 and one.name is None
            name = self._name_of(one.topic_id) if by_id else one.name
            if name in self.topics and name not in self.hidden:
                (topic_id, count), error = self.topics[name], 0
            else:
                topic_id, count, error = (one.topic_id, 0, UNKNOWN_ID) if by_id else (NO_ID, 0, UNKNOWN_TOPIC)
                if creates and name and not by_id and name not in self.topics:
                    self.add(**{name: self.default_count})  # as the controller does, after the answer
                name = None if by_id else name
            parts = [part(partition_index=index) for index in range(count)]
            known = {"name": name, "topic_id": topic_id, "is_internal": False, "partitions": parts}
            topics.append(cls(version=version, error_code=error, **known))
        return {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": topics}

    def _create(self, version: int, message: Any) -> dict[str, Any]:
        names = [topic.name for topic in message.topics]
        cls = CreateTopicsResponse.CreatableTopicResult
        results = []
        for topic in message.topics:
            count = len(topic.assignments) or topic.num_partitions
            count = self.default_count if count == -1 else count
            error, topic_id = self.fail.get(topic.name, 0), NO_ID
            if names.count(topic.name) > 1:
                error = INVALID_REQUEST
            elif topic.name in self.topics:
                error = EXISTS
            elif count < 1:
                error = INVALID_PARTITIONS
            if not error:
                topic_id = uuid.UUID(int=next(self._ids))
                if not message.validate_only:
                    self.topics[topic.name] = (topic_id, count)
            count, copies = (count, 1) if not error and self.describe_configs else (-1, -1)
            shown = {"num_partitions": count, "replication_factor": copies}
            shown["topic_config_error_code"] = 0 if self.describe_configs else 29
            done = {"name": topic.name, "topic_id": topic_id, "error_code": error, "error_message": None}
            results.append(cls(version=version, configs=[], **done, **shown))
        return {"topics": results}

    def _delete(self, version: int, message: Any) -> dict[str, Any]:
        cls = DeleteTopicsResponse.DeletableTopicResult
        if version < 6:
            asked: list[tuple[str | None, uuid.UUID]] = [(name, NO_ID) for name in message.topic_names]
        else:
            asked = [(topic.name, topic.topic_id) for topic in message.topics]
        results, before = [], dict(self.topics)
        resolved = [name if name is not None else self._name_of(topic_id) for name, topic_id in asked]
        for (name, topic_id), real in zip(asked, resolved, strict=True):
            error = self.fail.get(real or "", 0)
            if real not in before:
                error = UNKNOWN_TOPIC if name is not None else UNKNOWN_ID
            elif resolved.count(real) > 1:
                error = INVALID_REQUEST
            if not error and real is not None:
                del self.topics[real]
            told_id = before[real][0] if real in before else topic_id
            results.append(cls(version=version, name=real, topic_id=told_id, error_code=error, error_message=None))
        return {"responses": results}

    def _extend(self, version: int, message: Any) -> dict[str, Any]:
        cls = CreatePartitionsResponse.CreatePartitionsTopicResult
        names, results = [topic.name for topic in message.topics], []
        for topic in message.topics:
            error = self.fail.get(topic.name, 0)
            if names.count(topic.name) > 1:
                error = INVALID_REQUEST
            elif topic.name not in self.topics:
                error = UNKNOWN_TOPIC
            elif topic.count <= self.topics[topic.name][1]:
                error = INVALID_PARTITIONS
            if not error and not message.validate_only:
                self.topics[topic.name] = (self.topics[topic.name][0], topic.count)
            results.append(cls(version=version, name=topic.name, error_code=error, error_message=None))
        return {"results": results}


@dataclass
class Done:
    message: Any
    body: bytes
    delay_ms: int
    forwarded: Any
    """The request as the cluster got it, decoded; None if it did not."""
    forwarded_body: bytes | None

    @property
    def errors(self) -> dict[str | None, int]:
        """Error by topic; by the last result if there are several."""
        names = [name for name in ("topics", "responses", "results") if hasattr(self.message, name)]
        return {one.name: one.error_code for one in getattr(self.message, names[0])}


class Client:
    """One client, (user u, client-id c), of a cluster behind the mutation quota; the clock is set by hand."""

    def __init__(self, rate: float | None, cluster: Cluster | None = None, **entry: Any) -> None:
        entries = [] if rate is None else [Entry(user="u", controller_mutation_rate=rate, **entry)]
        self.ledger = Ledger(QuotaTable(entries), mutation_num_samples=10, max_throttle_ms=None)
        self.account: Account = self.ledger.account("u", "c")
        self.quota = MutationQuota(self.ledger)
        self.cluster = cluster or Cluster()
        self.now_ms = 0.0

    @property
    def tokens(self) -> float:
        return self.ledger.observed(self.account, Kind.MUTATION, self.now_ms)

    @property
    def charged(self) -> float:
        return self.account.meters[Kind.MUTATION].amount

    def judge(self, request: AdminRequest) -> Outcome:
        outcome: Outcome = finished(self.quota.request(request, self.now_ms), self.now_ms)
        return outcome

    def send(self, message: Any) -> Done:
        key, version = message.API_KEY, message.API_VERSION
        body = encoded(message)
        request_class, response_class = MESSAGES[key]
        outcome = self.judge(AdminRequest(key, version, "u", self.account, body))
        while isinstance(outcome, Ask):
            answer = self.cluster.handle(outcome.api_key, outcome.api_version, outcome.body)
            outcome = finished(outcome.then(answer, self.now_ms), self.now_ms)
        if isinstance(outcome, Answer):
            message = response_class.decode(outcome.body, version=version)
            return Done(message, outcome.body, outcome.delay_ms, None, None)
        assert isinstance(outcome, Forward)
        forwarded = body if outcome.body is None else outcome.body
        answer, delay_ms = self.cluster.handle(key, version, forwarded), outcome.delay_ms
        if outcome.on_response is not None:
            reply = finished(outcome.on_response(answer, self.now_ms), self.now_ms)
            delay_ms = max(delay_ms, reply.delay_ms)
            answer = answer if reply.body is None else reply.body
        message = response_class.decode(answer, version=version)
        return Done(message, answer, delay_ms, request_class.decode(forwarded, version=version), forwarded)
