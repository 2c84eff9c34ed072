"""The few requests that the world's clients send, as bytes: Kafka's own versions without tagged fields.

A batch of records is an identity, where a real batch has it, and filling, so that the log can be checked; brokers here
do not look into it further.
"""

import struct
from typing import Final, NamedTuple

PRODUCE, FETCH, METADATA, JOIN, HEARTBEAT, INIT, ADD, END = 0, 1, 3, 11, 12, 22, 24, 26
VERSIONS: Final = {PRODUCE: 7, FETCH: 11, METADATA: 5, JOIN: 5, HEARTBEAT: 3, INIT: 1, ADD: 1, END: 1}
"""All responses but Produce's begin with the throttle time."""
NOT_LEADER, UNKNOWN_MEMBER, OUT_OF_ORDER, FENCED, BAD_TXN, BAD_SESSION, BAD_EPOCH = 6, 25, 45, 47, 48, 70, 71
TIMEOUT_MS: Final = 30_000
TOPIC: Final = b"t"
FILLING: Final = b"r" * (1 << 20)
_ONE: Final = struct.pack(">ih1si", 1, len(TOPIC), TOPIC, 1)  # one topic with one partition, whose fields follow
_HEAD: Final = struct.Struct(">ihhih")
_ANSWER: Final = struct.Struct(">ii")
_PRODUCE: Final = struct.Struct(f">hhi{len(_ONE)}sii")
_BATCH: Final = struct.Struct(">16xc26xqhiii")
_MAGIC: Final = b"\2"
MIN_BATCH_BYTES: Final = _BATCH.size
_PRODUCED: Final = struct.Struct(f">{len(_ONE)}sihqqqi")
_FETCH: Final = struct.Struct(">iiiibii")
_ASKED: Final = struct.Struct(f">{len(_ONE)}siiqqi")
_FETCHED: Final = struct.Struct(">ihi")
_RECORDS: Final = struct.Struct(f">{len(_ONE)}sihqqqiii")
_METADATA: Final = struct.Struct(">hiihh1s?i")
_LEADER: Final = struct.Struct(">hiiiiiii")
_SIMPLE: Final = struct.Struct(">qhi")
_JOIN: Final = struct.Struct(">hqi")
_SIMPLE_ANSWER: Final = struct.Struct(">ihqh")


class Batch(NamedTuple):
    producer: int
    epoch: int
    number: int  # its sequence
    transaction: int  # 0: none
    size_bytes: int


class Head(NamedTuple):
    """The head of a request; its body begins at `body`."""

    api: int
    correlation: int
    body: int


def head_of(frame: bytes) -> Head:
    _, api, _, correlation, length = _HEAD.unpack_from(frame)
    return Head(api, correlation, _HEAD.size + length)


def request(api: int, correlation: int, client_id: bytes, body: bytes) -> bytes:
    size = _HEAD.size - 4 + len(client_id) + len(body)
    return _HEAD.pack(size, api, VERSIONS[api], correlation, len(client_id)) + client_id + body


def answer(correlation: int, body: bytes) -> bytes:
    return _ANSWER.pack(4 + len(body), correlation) + body


def produce(
    correlation: int, client_id: bytes, acks: int, partition: int, batch: Batch, timeout_ms: int = TIMEOUT_MS
) -> bytes:
    body = _PRODUCE.pack(-1, acks, timeout_ms, _ONE, partition, batch.size_bytes)
    return request(PRODUCE, correlation, client_id, body + batch_bytes(batch))


def produced(frame: bytes, body: int) -> tuple[int, int, Batch]:
    """Acks, partition and batch of a request."""
    _, acks, _, _, partition, size = _PRODUCE.unpack_from(frame, body)
    batch = Batch(*_BATCH.unpack_from(frame, body + _PRODUCE.size)[1:])
    if not size == batch.size_bytes == len(frame) - body - _PRODUCE.size:
        raise AssertionError(f"{batch} came as {len(frame) - body - _PRODUCE.size} bytes")
    return acks, partition, batch


def produce_answer(correlation: int, partition: int, error: int, offset: int, throttle_ms: int) -> bytes:
    return answer(correlation, _PRODUCED.pack(_ONE, partition, error, offset, -1, 0, throttle_ms))


def produce_answered(frame: bytes) -> tuple[int, int, int]:
    """Error, offset and throttle time of a response."""
    _, _, error, offset, _, _, throttle_ms = _PRODUCED.unpack_from(frame, _ANSWER.size)
    return error, offset, throttle_ms


class Wanted(NamedTuple):
    """What a fetch asks for. Outside a session `epoch` is -1; in one without news `partition` is -1."""

    max_wait_ms: int
    max_bytes: int
    session: int
    epoch: int
    partition: int
    offset: int


def fetch(correlation: int, client_id: bytes, wanted: Wanted) -> bytes:
    """A request for one partition, or for what the session knows."""
    body = _FETCH.pack(-1, wanted.max_wait_ms, 1, wanted.max_bytes, 0, wanted.session, wanted.epoch)
    asked = bytes(4) if wanted.partition < 0 else _ASKED.pack(_ONE, wanted.partition, -1, wanted.offset, -1, 1 << 20)
    return request(FETCH, correlation, client_id, body + asked + bytes(6))


def wanted_of(frame: bytes, body: int) -> Wanted:
    _, max_wait_ms, _, max_bytes, _, session, epoch = _FETCH.unpack_from(frame, body)
    partition, offset, at = -1, 0, body + _FETCH.size
    if frame.startswith(_ONE, at):
        _, partition, _, offset, _, _ = _ASKED.unpack_from(frame, at)
    return Wanted(max_wait_ms, max_bytes, session, epoch, partition, offset)


def fetch_answer(
    correlation: int, error: int, session: int, partition: int, partition_error: int, records: bytes, throttle_ms: int
) -> bytes:
    """A response; with no partition if that is -1."""
    body = _FETCHED.pack(throttle_ms, error, session)
    if partition < 0:
        return answer(correlation, body + bytes(4))
    one = _RECORDS.pack(_ONE, partition, partition_error, 1 << 40, 1 << 40, 0, -1, -1, len(records))
    return answer(correlation, body + one + records)


def fetch_answered(frame: bytes) -> tuple[int, int, int, int, list[Batch]]:
    """Throttle time, error, session, the partition's error (0 without one), and the batches that came whole."""
    throttle_ms, error, session = _FETCHED.unpack_from(frame, _ANSWER.size)
    at, batches = _ANSWER.size + _FETCHED.size, []
    if not frame.startswith(_ONE, at):
        return throttle_ms, error, session, 0, []
    _, _, partition_error, *_, size = _RECORDS.unpack_from(frame, at)
    at += _RECORDS.size
    if at + size != len(frame):
        raise AssertionError(f"records of {size} bytes in a response of {len(frame)}")
    while at + _BATCH.size <= len(frame):
        batch = Batch(*_BATCH.unpack_from(frame, at)[1:])
        at += batch.size_bytes
        if at > len(frame):
            break
        batches.append(batch)
    return throttle_ms, error, session, partition_error, batches


def batch_bytes(batch: Batch) -> bytes:
    """A batch as it is in a log."""
    return _BATCH.pack(_MAGIC, *batch) + FILLING[: batch.size_bytes - _BATCH.size]


def metadata(correlation: int, client_id: bytes) -> bytes:
    return request(METADATA, correlation, client_id, struct.pack(">ih1s?", 1, len(TOPIC), TOPIC, False))


def metadata_answer(correlation: int, nodes: list[tuple[int, str, int]], leaders: dict[int, int]) -> bytes:
    """Its response: brokers with their addresses, and each partition's leader."""
    body = _ANSWER.pack(0, len(nodes))
    for node, host, port in nodes:
        body += struct.pack(f">ih{len(host)}sih", node, len(host), host.encode(), port, -1)
    body += _METADATA.pack(-1, nodes[0][0], 1, 0, len(TOPIC), TOPIC, False, len(leaders))
    for partition, leader in leaders.items():
        body += _LEADER.pack(0, partition, leader, 1, leader, 1, leader, 0)
    return answer(correlation, body)


def metadata_answered(frame: bytes) -> tuple[dict[int, tuple[str, int]], dict[int, int]]:
    """Addresses by node, and leaders by partition."""
    (count,), at, nodes = struct.unpack_from(">i", frame, 12), 16, {}
    for _ in range(count):
        node, length = struct.unpack_from(">ih", frame, at)
        host, port = struct.unpack_from(f">{length}si", frame, at + 6)
        nodes[node] = (host.decode(), port)
        at += 6 + length + 6
    leaders = {partition: leader for _, partition, leader, *_ in _LEADER.iter_unpack(frame[at + _METADATA.size :])}
    return nodes, leaders


def simple(api: int, correlation: int, client_id: bytes, who: int, epoch: int = 0, number: int = 0) -> bytes:
    """A request about a member of a group or a producer."""
    return request(api, correlation, client_id, _SIMPLE.pack(who, epoch, number))


def join(correlation: int, client_id: bytes, who: int, session_ms: int) -> bytes:
    """A member joins: its number stands for the group's name, and its session for the epoch."""
    return request(JOIN, correlation, client_id, _JOIN.pack(_JOIN.size - 6, who, session_ms))


def simple_of(frame: bytes, head: Head) -> tuple[int, int, int]:
    if head.api == JOIN:
        _, who, session_ms = _JOIN.unpack_from(frame, head.body)
        return who, session_ms, 0
    who, epoch, number = _SIMPLE.unpack_from(frame, head.body)
    return who, epoch, number


def simple_answer(correlation: int, error: int, who: int = 0, epoch: int = 0, throttle_ms: int = 0) -> bytes:
    return answer(correlation, _SIMPLE_ANSWER.pack(throttle_ms, error, who, epoch))


def simple_answered(frame: bytes) -> tuple[int, int, int, int]:
    """Throttle time, error, id and epoch of a response."""
    throttle_ms, error, who, epoch = _SIMPLE_ANSWER.unpack_from(frame, _ANSWER.size)
    return throttle_ms, error, who, epoch
