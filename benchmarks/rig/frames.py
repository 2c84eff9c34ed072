"""Whole requests, size included: kio lays messages out, kafka-python batches of records."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.support.session_tools import kio_message
from tests.support.wire_tools import kio_frame

CLIENT_ID = "kquota-bench"
PRODUCE_VERSION = 11
"""The newest without topic ids, known to Kafka 3.9 and 4.x; flexible, as current clients speak it."""
TIMEOUT = datetime.timedelta(seconds=30)
MAX_WAIT = datetime.timedelta(milliseconds=500)
NO_PRODUCER = (-1, -1, -1)


def record_batch(
    value: bytes,
    *,
    compressed: bool = False,
    transactional: bool = False,
    producer: tuple[int, int, int] = NO_PRODUCER,
) -> bytes:
    """One record without key and headers, in a batch of format 2; `producer` is its id, epoch and sequence number."""
    codec = DefaultRecordBatchBuilder.CODEC_GZIP if compressed else DefaultRecordBatchBuilder.CODEC_NONE
    builder = DefaultRecordBatchBuilder(2, codec, transactional, *producer, batch_size=len(value) + 1024)
    builder.append(0, timestamp=0, key=None, value=value, headers=[])
    return bytes(builder.build())


def produce_frame(
    topic: str, batch: bytes, client_id: str = CLIENT_ID, *, acks: int = 1, transaction: str | None = None
) -> bytes:
    """Of partition 0; its correlation id stands at bytes 8 to 11."""
    kio = kio_message("produce", PRODUCE_VERSION, "request")
    partition = kio.PartitionProduceData(index=0, records=batch)
    data = kio.TopicProduceData(name=topic, partition_data=(partition,))
    message = kio.ProduceRequest(transactional_id=transaction, acks=acks, timeout=TIMEOUT, topic_data=(data,))
    return kio_frame(message, 0, client_id)


def fetch_frame(
    version: int,
    topic: str,
    topic_id: uuid.UUID,
    most_bytes: int,
    client_id: str = CLIENT_ID,
    *,
    partition_bytes: int | None = None,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    """Of partition 0 from its beginning. `session` is (id, epoch): (0, -1) is none; in one that has begun, nothing is
    changed."""
    kio = kio_message("fetch", version, "request")
    more: dict[str, Any] = {}
    if version >= 7:
        more = {"session_id": session[0], "session_epoch": session[1], "forgotten_topics_data": ()}
    partition = kio.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=partition_bytes or most_bytes)
    name = {"topic": topic} if version < 13 else {"topic_id": topic_id}
    topics = (kio.FetchTopic(**name, partitions=(partition,)),) if session[1] <= 0 else ()
    message = kio.FetchRequest(max_wait=MAX_WAIT, min_bytes=1, max_bytes=most_bytes, topics=topics, **more)
    return kio_frame(message, 0, client_id)
