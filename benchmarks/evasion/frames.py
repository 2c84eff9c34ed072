"""The attacks' requests as bytes, built once: what is sent again and again differs in a few patched bytes only."""

from __future__ import annotations

import base64
import gzip
import os
import struct

from crc32c import crc32c

from proxy.core.wire.primitives import uvarint

PRODUCE, FETCH, METADATA, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS = 0, 1, 3, 19, 20, 32
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, CONSUMER_GROUP_HEARTBEAT = 11, 12, 13, 14, 68
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, CREATE_PARTITIONS, RENEW_DELEGATION_TOKEN, SHARE_FETCH = 22, 24, 37, 39, 78
PRODUCE_VERSION = 11
"""The newest without topic ids; flexible, as current clients speak it."""
GZIP = 1
TRANSACTIONAL = 0x10
TIMEOUT_MS = 30_000
NO_PRODUCER = (-1, -1, -1)
TRANSACTION_TIMEOUT_MS = 600_000
EMPTY_FETCH_BYTES = 300
"""Fetch answers up to this size hold no records."""


def framed(payload: bytes) -> bytes:
    """With its size in front."""
    return struct.pack(">i", len(payload)) + payload


def header(api_key: int, version: int, client_id: str, *, flexible: bool, correlation_id: int = 1) -> bytes:
    """A request's header."""
    name = client_id.encode()
    return struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name + (b"\0" if flexible else b"")


def compact(data: bytes) -> bytes:
    """A compact string or compact bytes."""
    return uvarint(len(data) + 1) + data


def _zigzag(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 31))


def record_batch(value: bytes, *, attributes: int = 0, producer: tuple[int, int, int] = NO_PRODUCER) -> bytes:
    """One record in a batch of format 2; `producer` is its id, epoch and sequence number. GZIP has to be applied."""
    record = b"\0" + _zigzag(0) + _zigzag(0) + _zigzag(-1) + _zigzag(len(value)) + value + _zigzag(0)
    records = _zigzag(len(record)) + record
    if attributes & 7 == GZIP:
        records = gzip.compress(records, 1)
    checked = b"".join((struct.pack(">hiqqqhii", attributes, 0, 0, 0, *producer, 1), records))
    after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


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
    attributes = (GZIP if compressed else 0) | (TRANSACTIONAL if transaction else 0)
    batch = record_batch(value, attributes=attributes, producer=producer)
    body = b"".join(
        (
            b"\0" if transaction is None else compact(transaction.encode()),
            struct.pack(">hi", acks, TIMEOUT_MS),
            uvarint(2) + compact(topic.encode()),
            uvarint(2) + struct.pack(">i", 0) + uvarint(len(batch) + 1),
            batch,
            b"\0\0\0",
        )
    )
    return framed(header(PRODUCE, PRODUCE_VERSION, client_id, flexible=True) + body)


def produce_error(topic: str, payload: bytes) -> int:
    """The error code of the one partition in a Produce answer (without its size)."""
    # correlation id 4, tags 1, topics 1, name length 1, name, partitions 1, index 4
    (error,) = struct.unpack_from(">h", payload, 12 + len(topic.encode()))
    return int(error)


def init_producer_id(client_id: str, transaction: str | None = None) -> bytes:
    """InitProducerId 4."""
    name = b"\0" if transaction is None else compact(transaction.encode())
    body = name + struct.pack(">iqh", TRANSACTION_TIMEOUT_MS, -1, -1) + b"\0"
    return framed(header(INIT_PRODUCER_ID, 4, client_id, flexible=True) + body)


def producer_of(payload: bytes) -> tuple[int, int, int]:
    """(error, id, epoch) of its answer."""
    error, producer_id, epoch = struct.unpack_from(">hqh", payload, 9)
    return error, producer_id, epoch


def add_partition(client_id: str, transaction: str, producer: tuple[int, int], topic: str) -> bytes:
    """AddPartitionsToTxn 3, for partition 0."""
    body = compact(transaction.encode()) + struct.pack(">qh", *producer)
    body += uvarint(2) + compact(topic.encode()) + uvarint(2) + struct.pack(">i", 0) + b"\0\0"
    return framed(header(ADD_PARTITIONS_TO_TXN, 3, client_id, flexible=True) + body)


def fetch(
    version: int,
    topic: str,
    topic_id: bytes,
    most_bytes: int,
    client_id: str,
    *,
    session: tuple[int, int] = (0, -1),
    offset: int = 0,
    named: bool = True,
) -> bytes:
    """Fetch 4 to 17 of partition 0, from `offset`; `named=False` is an incremental fetch that names no partition."""
    flexible = version >= 12
    head = b"" if version >= 15 else struct.pack(">i", -1)
    head += struct.pack(">iiib", 500, 1, most_bytes, 0)
    if version >= 7:
        head += struct.pack(">ii", *session)
    partition = struct.pack(">i", 0)
    if version >= 9:
        partition += struct.pack(">i", -1)
    partition += struct.pack(">q", offset)
    if version >= 12:
        partition += struct.pack(">i", -1)  # last fetched epoch
    if version >= 5:
        partition += struct.pack(">q", -1)  # log start offset
    partition += struct.pack(">i", most_bytes)
    if flexible:
        name = topic_id if version >= 13 else compact(topic.encode())
        topics = uvarint(2) + name + uvarint(2) + partition + b"\0\0" if named else uvarint(1)
        body = head + topics + uvarint(1) + compact(b"") + b"\0"
    else:
        raw = topic.encode()
        topics = struct.pack(">ih", 1, len(raw)) + raw + struct.pack(">i", 1) + partition if named else bytes(4)
        body = head + topics + (bytes(4) if version >= 7 else b"") + (struct.pack(">h", 0) if version >= 11 else b"")
    return framed(header(FETCH, version, client_id, flexible=flexible) + body)


def fetch_session(version: int, payload: bytes) -> int:
    """The session's id in a Fetch answer of version 7 or later."""
    # correlation id 4, (tags 1), throttle 4, error 2
    (session,) = struct.unpack_from(">i", payload, 11 if version >= 12 else 10)
    return int(session)


def describe_broker(client_id: str) -> bytes:
    """DescribeConfigs 4 of broker 1: some milliseconds of work for it."""
    resource = b"\4" + compact(b"1") + b"\0\0"  # all keys
    return framed(header(DESCRIBE_CONFIGS, 4, client_id, flexible=True) + uvarint(2) + resource + b"\1\0\0")


def create_topics(
    version: int, names: list[str], partitions: int, client_id: str, *, validate_only: bool = False
) -> bytes:
    """CreateTopics 2 to 7."""
    flexible = version >= 5
    end = struct.pack(">ib", TIMEOUT_MS, validate_only)
    if flexible:
        each = (
            compact(name.encode()) + struct.pack(">ih", partitions, 1) + uvarint(1) + uvarint(1) + b"\0"
            for name in names
        )
        body = uvarint(len(names) + 1) + b"".join(each) + end + b"\0"
    else:
        old = (
            struct.pack(">h", len(name)) + name.encode() + struct.pack(">ihii", partitions, 1, 0, 0) for name in names
        )
        body = struct.pack(">i", len(names)) + b"".join(old) + end
    return framed(header(CREATE_TOPICS, version, client_id, flexible=flexible) + body)


def delete_topics_by_id(ids: list[bytes], client_id: str) -> bytes:
    """DeleteTopics 6, of topics that are named by their ids alone."""
    body = uvarint(len(ids) + 1) + b"".join(b"\0" + one + b"\0" for one in ids)
    return framed(header(DELETE_TOPICS, 6, client_id, flexible=True) + body + struct.pack(">i", TIMEOUT_MS) + b"\0")


def delete_topics(names: list[str], client_id: str, version: int = 4) -> bytes:
    """DeleteTopics 4 or 5, by name."""
    body = uvarint(len(names) + 1) + b"".join(compact(name.encode()) for name in names)
    return framed(
        header(DELETE_TOPICS, version, client_id, flexible=True) + body + struct.pack(">i", TIMEOUT_MS) + b"\0"
    )


def create_partitions(version: int, topic: str, count: int, client_id: str) -> bytes:
    """CreatePartitions 1 or 3: `count` in all."""
    flexible, name = version >= 2, topic.encode()
    if flexible:
        body = uvarint(2) + compact(name) + struct.pack(">i", count) + b"\0\0"
    else:
        body = struct.pack(">ih", 1, len(name)) + name + struct.pack(">ii", count, -1)
    body += struct.pack(">ib", TIMEOUT_MS, 0) + (b"\0" if flexible else b"")
    return framed(header(CREATE_PARTITIONS, version, client_id, flexible=flexible) + body)


def one_error(payload: bytes, *, flexible: bool = True) -> int:
    """The error code of the only topic in an answer of CreatePartitions, or of DeleteTopics up to 5."""
    if not flexible:  # correlation id, throttle time, number of topics, name
        (size,) = struct.unpack_from(">h", payload, 12)
        return int(struct.unpack_from(">h", payload, 14 + size)[0])
    reader = _Reader(payload, 9)  # correlation id, tags, throttle time
    reader.uvarint()
    reader.compact()
    return reader.take(">h")[0]


def metadata_of_nothing(client_id: str) -> bytes:
    """Metadata 1 for no topics: as little as a broker can be asked."""
    return framed(header(METADATA, 1, client_id, flexible=False) + bytes(4))


def metadata(version: int, names: list[str], client_id: str) -> bytes:
    """Metadata 1 or 12 about topics that the broker may create."""
    if version == 12:
        body = uvarint(len(names) + 1) + b"".join(bytes(16) + compact(name.encode()) + b"\0" for name in names)
        body += b"\1\0\0"
    else:
        body = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)
    return framed(header(METADATA, version, client_id, flexible=version == 12) + body)


def share_fetch(
    group: str, member: str, epoch: int, topic_id: bytes, most_bytes: int, client_id: str, accepted: tuple[int, int]
) -> bytes:
    """ShareFetch 1; acknowledges what was acquired before (`accepted`, first and last offset; (0, -1) is nothing)."""
    acknowledged = uvarint(1)
    if accepted[1] >= accepted[0]:
        acknowledged = uvarint(2) + struct.pack(">qq", *accepted) + uvarint(2) + b"\1" + b"\0"
    partition = struct.pack(">i", 0) + acknowledged + b"\0"
    body = compact(group.encode()) + compact(member.encode())
    body += struct.pack(">iiiiii", epoch, 500, 1, most_bytes, 500, 500)
    body += uvarint(2) + topic_id + uvarint(2) + partition + b"\0" + uvarint(1) + b"\0"
    return framed(header(SHARE_FETCH, 1, client_id, flexible=True) + body)


def renew_token(secret: str, client_id: str) -> bytes:
    """RenewDelegationToken 2, by a quarter of an hour."""
    body = compact(base64.b64decode(secret)) + struct.pack(">q", 900_000) + b"\0"
    return framed(header(RENEW_DELEGATION_TOKEN, 2, client_id, flexible=True) + body)


def renewal_error(payload: bytes) -> int:
    """Error code of its answer."""
    return int(struct.unpack_from(">h", payload, 5)[0])


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def join_group(group: str, session_ms: int, client_id: str) -> bytes:
    """JoinGroup 3: the newest version in which a broker names a new member at once."""
    body = _text(group) + struct.pack(">ii", session_ms, max(session_ms, 1)) + _text("") + _text("consumer")
    body += struct.pack(">i", 1) + _text("range") + struct.pack(">i", 0)
    return framed(header(JOIN_GROUP, 3, client_id, flexible=False) + body)


def joined(payload: bytes) -> tuple[int, int, str]:
    """(error, generation, member) in an answer to it."""
    error, generation, size = struct.unpack_from(">hih", payload, 8)  # correlation id, throttle time
    at = 16 + size  # protocol
    at += 2 + struct.unpack_from(">h", payload, at)[0]  # leader
    (size,) = struct.unpack_from(">h", payload, at)
    return error, generation, payload[at + 2 : at + 2 + size].decode()


def sync_group(group: str, generation: int, member: str, client_id: str) -> bytes:
    """SyncGroup 1, as the leader that assigns nothing."""
    body = _text(group) + struct.pack(">i", generation) + _text(member) + struct.pack(">i", 0)
    return framed(header(SYNC_GROUP, 1, client_id, flexible=False) + body)


def heartbeat(group: str, generation: int, member: str, client_id: str) -> bytes:
    """Heartbeat 1."""
    body = _text(group) + struct.pack(">i", generation) + _text(member)
    return framed(header(HEARTBEAT, 1, client_id, flexible=False) + body)


def leave_group(group: str, member: str, client_id: str) -> bytes:
    """LeaveGroup 1."""
    return framed(header(LEAVE_GROUP, 1, client_id, flexible=False) + _text(group) + _text(member))


def consumer_heartbeat(group: str, member: str, epoch: int, topic: str, client_id: str) -> bytes:
    """ConsumerGroupHeartbeat 0 (KIP-848); epoch 0 joins."""
    body = compact(group.encode()) + compact(member.encode()) + struct.pack(">i", epoch) + b"\0\0"
    body += struct.pack(">i", TIMEOUT_MS) + uvarint(2) + compact(topic.encode()) + b"\0" + uvarint(1) + b"\0"
    return framed(header(CONSUMER_GROUP_HEARTBEAT, 0, client_id, flexible=True) + body)


class _Reader:
    """A flexible answer, field by field."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return values

    def skip(self, count: int) -> bytes:
        found = self.data[self.position : self.position + count]
        self.position += count
        return found

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def compact(self) -> bytes:
        """Empty for null as well."""
        return self.skip(max(self.uvarint() - 1, 0))

    def tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.skip(self.uvarint())


def created_ids(payload: bytes) -> list[bytes]:
    """Ids of the topics that a CreateTopics 7 answer says were created."""
    reader = _Reader(payload, 9)  # correlation id, tags, throttle time
    found = []
    for _ in range(reader.uvarint() - 1):
        reader.compact()
        topic_id = reader.skip(16)
        (error,) = reader.take(">h")
        reader.compact()
        reader.take(">ih")
        for _ in range(max(reader.uvarint() - 1, 0)):
            reader.compact(), reader.compact()
            reader.take(">bbb")
            reader.tags()
        reader.tags()
        if not error:
            found.append(topic_id)
    return found


def deleted_count(payload: bytes) -> int:
    """How many topics a DeleteTopics 6 answer says were deleted."""
    reader, count = _Reader(payload, 9), 0
    for _ in range(reader.uvarint() - 1):
        reader.compact()
        reader.skip(16)
        (error,) = reader.take(">h")
        reader.compact()
        reader.tags()
        count += not error
    return count


def acquired(payload: bytes) -> tuple[int, int]:
    """First and last offset that a ShareFetch 1 answer hands over, of its one partition; (0, -1) for none."""
    reader = _Reader(payload, 11)  # correlation id, tags, throttle time, error
    reader.compact()
    reader.take(">i")
    offsets: list[int] = []
    for _ in range(reader.uvarint() - 1):
        reader.skip(16)
        for _ in range(reader.uvarint() - 1):
            reader.take(">ih")
            reader.compact()
            reader.take(">h")
            reader.compact()
            reader.take(">ii")
            reader.tags()
            reader.compact()
            for _ in range(reader.uvarint() - 1):
                offsets += reader.take(">qq")
                reader.take(">h")
                reader.tags()
            reader.tags()
        reader.tags()
    return (min(offsets), max(offsets)) if offsets else (0, -1)
