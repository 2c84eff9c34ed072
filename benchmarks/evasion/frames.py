"""The attacks' requests as whole frames, and what the answers to them say (given without their size)."""

from __future__ import annotations

import base64
import datetime
import os
import struct
import uuid
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from benchmarks.rig.frames import MAX_WAIT, NO_PRODUCER, TIMEOUT, produce_frame, record_batch
from proxy.core.wire.messages import framed
from tests.support.session_tools import kio_message
from tests.support.wire_tools import kio_frame, kio_read

CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, CREATE_PARTITIONS, RENEW_DELEGATION_TOKEN = 19, 20, 22, 37, 39
JOIN_GROUP, SASL_HANDSHAKE, SASL_AUTHENTICATE, SHARE_FETCH = 11, 17, 36, 78
TRANSACTION_TIMEOUT = datetime.timedelta(minutes=10)
RENEWED_FOR = datetime.timedelta(minutes=15)
THIS_BROKER = 4
"""DescribeConfigs: the type of a broker's resource."""
ACCEPTED = 1
"""ShareFetch: how records are acknowledged."""
EMPTY_FETCH_BYTES = 300
"""Fetch answers up to this size hold no records."""


def _request(name: str, version: int) -> Any:
    return kio_message(name, version, "request")


def _answer(api_key: int, version: int, payload: bytes) -> Any:
    return kio_read(framed(payload), api_key, version)


def _errors(results: Any) -> list[int]:
    return [int(one.error_code.value) for one in results]


def produce(
    topic: str,
    size: int,
    client_id: str,
    *,
    acks: int = 1,
    compressed: bool = False,
    producer: tuple[int, int, int] = NO_PRODUCER,
    transaction: str | None = None,
) -> bytes:
    """A Produce request with one record, about `size` bytes on the wire (exactly `len` of what is returned)."""
    if compressed:  # half of it cannot be compressed; the other half stands for ten times as much
        value = os.urandom(max(size - 300, 1)) + bytes(10 * size)
    else:
        value = bytes(max(size - 140 - len(topic) - len(client_id), 1))
    batch = record_batch(value, compressed=compressed, transactional=transaction is not None, producer=producer)
    return produce_frame(topic, batch, client_id, acks=acks, transaction=transaction)


def produce_error(topic: str, payload: bytes) -> int:
    """The error code of the one partition in a Produce answer."""
    # correlation id 4, tags 1, topics 1, name length 1, name, partitions 1, index 4
    (error,) = struct.unpack_from(">h", payload, 12 + len(topic.encode()))
    return int(error)


def init_producer_id(client_id: str, transaction: str | None = None) -> bytes:
    """InitProducerId 4."""
    kio = _request("init_producer_id", 4)
    message = kio.InitProducerIdRequest(transactional_id=transaction, transaction_timeout=TRANSACTION_TIMEOUT)
    return kio_frame(message, 1, client_id)


def producer_of(payload: bytes) -> tuple[int, int, int]:
    """(error, id, epoch) of its answer."""
    answer = _answer(INIT_PRODUCER_ID, 4, payload)
    return answer.error_code.value, answer.producer_id, answer.producer_epoch


def add_partition(client_id: str, transaction: str, producer: tuple[int, int], topic: str) -> bytes:
    """AddPartitionsToTxn 3, for partition 0."""
    kio = _request("add_partitions_to_txn", 3)
    message = kio.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=(kio.AddPartitionsToTxnTopic(name=topic, partitions=(0,)),),
    )
    return kio_frame(message, 1, client_id)


def fetch_session(version: int, payload: bytes) -> int:
    """The session's id in a Fetch answer of version 7 or later."""
    # correlation id 4, (tags 1), throttle 4, error 2
    (session,) = struct.unpack_from(">i", payload, 11 if version >= 12 else 10)
    return int(session)


@cache
def describe_broker(client_id: str) -> bytes:
    """DescribeConfigs 4 of broker 1: some milliseconds of work for it."""
    kio = _request("describe_configs", 4)
    broker = kio.DescribeConfigsResource(resource_type=THIS_BROKER, resource_name="1", configuration_keys=None)
    return kio_frame(kio.DescribeConfigsRequest(resources=(broker,), include_synonyms=True), 1, client_id)


def create_topics(version: int, names: list[str], client_id: str, *, validate_only: bool = False) -> bytes:
    """CreateTopics 2 to 7, of one partition each."""
    kio = _request("create_topics", version)
    topics = tuple(
        kio.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    return kio_frame(kio.CreateTopicsRequest(topics=topics, timeout=TIMEOUT, validate_only=validate_only), 1, client_id)


def created_ids(payload: bytes) -> list[uuid.UUID]:
    """Ids of the topics that a CreateTopics 7 answer says were created."""
    topics = _answer(CREATE_TOPICS, 7, payload).topics
    return [topic.topic_id for topic in topics if topic.error_code is ErrorCode.none]


def delete_topics_by_id(ids: list[uuid.UUID], client_id: str) -> bytes:
    """DeleteTopics 6, of topics that are named by their ids alone."""
    kio = _request("delete_topics", 6)
    topics = tuple(kio.DeleteTopicState(topic_id=one) for one in ids)
    return kio_frame(kio.DeleteTopicsRequest(topics=topics, timeout=TIMEOUT), 1, client_id)


def deleted_count(payload: bytes) -> int:
    """How many topics its answer says were deleted."""
    return _errors(_answer(DELETE_TOPICS, 6, payload).responses).count(0)


def delete_topic(version: int, name: str, client_id: str) -> bytes:
    """DeleteTopics 4 or 5, by name."""
    kio = _request("delete_topics", version)
    return kio_frame(kio.DeleteTopicsRequest(topic_names=(name,), timeout=TIMEOUT), 1, client_id)


def deletion_error(version: int, payload: bytes) -> int:
    """The error code of the only topic in its answer."""
    return _errors(_answer(DELETE_TOPICS, version, payload).responses)[0]


def create_partitions(version: int, topic: str, count: int, client_id: str) -> bytes:
    """CreatePartitions 1 or 3: `count` in all."""
    kio = _request("create_partitions", version)
    topics = (kio.CreatePartitionsTopic(name=topic, count=count, assignments=None),)
    return kio_frame(kio.CreatePartitionsRequest(topics=topics, timeout=TIMEOUT, validate_only=False), 1, client_id)


def partitions_error(version: int, payload: bytes) -> int:
    """The error code of the only topic in its answer."""
    return _errors(_answer(CREATE_PARTITIONS, version, payload).results)[0]


def metadata(version: int, names: list[str], client_id: str) -> bytes:
    """Metadata 1 or 12 about topics that the broker may create."""
    kio = _request("metadata", version)
    more: dict[str, Any] = {"topic_id": None} if version == 12 else {}
    authorized = {"include_topic_authorized_operations": False} if version == 12 else {}
    topics = tuple(kio.MetadataRequestTopic(name=name, **more) for name in names)
    return kio_frame(kio.MetadataRequest(topics=topics, **authorized), 1, client_id)


def share_fetch(
    group: str, member: str, epoch: int, topic_id: uuid.UUID, most_bytes: int, client_id: str, taken: tuple[int, int]
) -> bytes:
    """ShareFetch 1; acknowledges what was acquired before (`taken`, first and last offset; (0, -1) is nothing)."""
    kio = _request("share_fetch", 1)
    first, last = taken
    done = kio.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(ACCEPTED,))
    partition = kio.FetchPartition(partition_index=0, acknowledgement_batches=(done,) if last >= first else ())
    message = kio.ShareFetchRequest(
        group_id=group,
        member_id=member,
        share_session_epoch=epoch,
        max_wait=MAX_WAIT,
        min_bytes=1,
        max_bytes=most_bytes,
        max_records=500,
        batch_size=500,
        topics=(kio.FetchTopic(topic_id=topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return kio_frame(message, 1, client_id)


def acquired(payload: bytes) -> tuple[int, int]:
    """First and last offset that its answer hands over, of its one partition; (0, -1) for none."""
    answer = _answer(SHARE_FETCH, 1, payload)
    batches = [one for topic in answer.responses for each in topic.partitions for one in each.acquired_records]
    offsets = [offset for one in batches for offset in (one.first_offset, one.last_offset)]
    return (min(offsets), max(offsets)) if offsets else (0, -1)


def renew_token(secret: str, client_id: str) -> bytes:
    """RenewDelegationToken 2."""
    kio = _request("renew_delegation_token", 2)
    message = kio.RenewDelegationTokenRequest(hmac=base64.b64decode(secret), renew_period=RENEWED_FOR)
    return kio_frame(message, 1, client_id)


def renewal_error(payload: bytes) -> int:
    """Error code of its answer."""
    return _errors([_answer(RENEW_DELEGATION_TOKEN, 2, payload)])[0]


def join_group(group: str, session_ms: int, client_id: str) -> bytes:
    """JoinGroup 3: the newest version in which a broker names a new member at once."""
    kio = _request("join_group", 3)
    message = kio.JoinGroupRequest(
        group_id=group,
        session_timeout=datetime.timedelta(milliseconds=session_ms),
        rebalance_timeout=datetime.timedelta(milliseconds=session_ms),
        member_id="",
        protocol_type="consumer",
        protocols=(kio.JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    return kio_frame(message, 1, client_id)


def joined(payload: bytes) -> tuple[int, int, str]:
    """(error, generation, member) in an answer to it."""
    answer = _answer(JOIN_GROUP, 3, payload)
    return answer.error_code.value, answer.generation_id, answer.member_id


def sync_group(group: str, generation: int, member: str, client_id: str) -> bytes:
    """SyncGroup 1, as the leader that assigns nothing."""
    kio = _request("sync_group", 1)
    message = kio.SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=())
    return kio_frame(message, 1, client_id)


def heartbeat(group: str, generation: int, member: str, client_id: str) -> bytes:
    """Heartbeat 1."""
    kio = _request("heartbeat", 1)
    message = kio.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    return kio_frame(message, 1, client_id)


def leave_group(group: str, member: str, client_id: str) -> bytes:
    """LeaveGroup 1."""
    kio = _request("leave_group", 1)
    return kio_frame(kio.LeaveGroupRequest(group_id=group, member_id=member), 1, client_id)


def consumer_heartbeat(group: str, member: str, topic: str, client_id: str) -> bytes:
    """ConsumerGroupHeartbeat 0 (KIP-848) of a member that has joined."""
    kio = _request("consumer_group_heartbeat", 0)
    message = kio.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=1,
        rebalance_timeout=TIMEOUT,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
    )
    return kio_frame(message, 1, client_id)


def handshake(mechanism: str, client_id: str) -> bytes:
    """SaslHandshake 1."""
    return kio_frame(_request("sasl_handshake", 1).SaslHandshakeRequest(mechanism=mechanism), 1, client_id)


def handshake_error(payload: bytes) -> int:
    """Error code of its answer."""
    return _errors([_answer(SASL_HANDSHAKE, 1, payload)])[0]


def authenticate(token: bytes, client_id: str) -> bytes:
    """SaslAuthenticate 2."""
    return kio_frame(_request("sasl_authenticate", 2).SaslAuthenticateRequest(auth_bytes=token), 1, client_id)


def authenticated(payload: bytes) -> tuple[int, bytes]:
    """Error code and the broker's message in its answer."""
    answer = _answer(SASL_AUTHENTICATE, 2, payload)
    return answer.error_code.value, answer.auth_bytes
