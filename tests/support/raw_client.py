"""A Kafka client with nothing automatic: frames go out on command, answers come back with the times of their bytes."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from proxy.core.wire.apis import ALTER_CLIENT_QUOTAS, FETCH, METADATA, PRODUCE

LIST_OFFSETS = 2
TIMEOUT_S = 30.0
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_FETCH_BYTES = 50 * 1024 * 1024
API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 99, -1)
"""ApiVersions v0, correlation id 99, null client-id: a small request that is not charged."""


class ClosedByPeerError(Exception):
    """The connection ended; `received` is what came of an unfinished frame."""

    def __init__(self, received: bytes, at: float) -> None:
        super().__init__(f"closed by the peer after {len(received)} bytes of a frame")
        self.received = received
        self.at = at


class Topic(NamedTuple):
    """A topic by both of its names: Produce 13 and Fetch 13 know it by its id only."""

    name: str
    id: uuid.UUID


@dataclass
class Frame:
    """A frame as it came in; times are of the monotonic clock."""

    payload: bytes
    """Without the size in front."""
    first_byte_at: float
    last_byte_at: float
    asked_at: float = 0.0
    """When the last byte of the request had been given to the kernel."""
    message: Any = None
    """The decoded answer, if it was asked for with `ask`."""

    @property
    def correlation_id(self) -> int:
        """As every answer's header begins."""
        (number,) = struct.unpack_from(">i", self.payload)
        return int(number)


class RawClient:
    """One connection. Requests may be pipelined with `send`; `read_frame` gives the answers in their order."""

    def __init__(
        self, address: str | tuple[str, int], client_id: str | None = "raw", *, timeout_s: float = TIMEOUT_S
    ) -> None:
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = (host, int(port))
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def frame(self, message: Any) -> bytes:
        self._correlation_id += 1
        message.with_header(self._correlation_id, self.client_id)
        return bytes(message.encode(header=True, framed=True))

    def send(self, frame: bytes) -> float:
        """Send bytes as they are; returns when the kernel had taken the last one."""
        self.socket.settimeout(self.timeout_s)
        self.socket.sendall(frame)
        return time.monotonic()

    def read_frame(self, timeout_s: float | None = None) -> Frame:
        self.socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        head = self._receive(1)
        first_byte_at = time.monotonic()
        self.socket.settimeout(self.timeout_s)
        head += self._receive(3, head)
        (size,) = struct.unpack(">i", head)
        assert 0 <= size <= MAX_FRAME_BYTES, f"a frame of {size} bytes"
        payload = self._receive(size)
        return Frame(payload, first_byte_at, time.monotonic())

    def exchange(self, frame: bytes) -> bytes:
        """Send a whole frame; the next one, with its size in front."""
        self.send(frame)
        payload = self.read_frame().payload
        return struct.pack(">i", len(payload)) + payload

    def ask(self, message: Any, timeout_s: float | None = None) -> Frame:
        asked_at = self.send(self.frame(message))
        answer = self.read_frame(timeout_s)
        assert answer.correlation_id == self._correlation_id
        answer.asked_at = asked_at
        answer.message = decode(message, answer.payload)
        return answer

    def topic(self, name: str) -> Topic:
        """A topic's name and id; the broker creates it if it is new, and this waits until its leader takes requests."""
        request = _request(METADATA, 10, topics=[{"name": name}], allow_auto_topic_creation=True)
        deadline, created = time.monotonic() + self.timeout_s, False
        while True:
            found = self.ask(request).message.topics[0]
            if found.error_code == 0 and all(partition.error_code == 0 for partition in found.partitions):
                break
            created = True
            assert time.monotonic() < deadline, f"no leader for {name}: error {found.error_code}"
            time.sleep(0.05)
        # A KRaft broker announces a new topic's leader a moment before the leader itself takes requests.
        while created and not self._leads(name):
            assert time.monotonic() < deadline, f"the leader of {name} takes no requests"
            time.sleep(0.05)
        return Topic(name, found.topic_id)

    def _leads(self, name: str) -> bool:
        topic = {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
        request = _request(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=[topic])
        return bool(self.ask(request).message.topics[0].partitions[0].error_code == 0)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _receive(self, size: int, before: bytes = b"") -> bytes:
        parts = bytearray()
        while len(parts) < size:
            chunk = self.socket.recv(min(size - len(parts), 1 << 20))
            if not chunk:
                raise ClosedByPeerError(before + bytes(parts), time.monotonic())
            parts += chunk
        return bytes(parts)


def _request(api_key: int, version: int, **fields: Any) -> Any:
    from tests.support.wire_tools import kafka_python_request  # imports much

    return kafka_python_request(api_key, version, **fields)


def decode(request: Any, payload: bytes) -> Any:
    response = request.header.get_response_class()
    return response.decode(payload, version=request.API_VERSION, header=True)


def batch(values: Sequence[bytes]) -> bytes:
    """A record batch (format 2, not compressed) of these values without keys, of now: retention deletes old times."""
    from kafka.record import MemoryRecordsBuilder

    size = sum(map(len, values)) + 1024 * len(values) + 1024
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=size)
    for value in values:
        assert builder.append(timestamp=int(time.time() * 1000), key=None, value=value, headers=[]) is not None
    builder.close()
    return bytes(builder.buffer())


def produce_message(version: int, topic: Topic, values: Sequence[bytes], *, acks: int = 1) -> Any:
    """A Produce request of kafka-python with one batch, for partition 0."""
    data = {"name": topic.name, "topic_id": topic.id, "partition_data": [{"index": 0, "records": batch(values)}]}
    return _request(PRODUCE, version, transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=[data])


def fetch_message(version: int, topic: Topic | None, *, offset: int = 0, session: tuple[int, int] = (0, -1)) -> Any:
    """Of partition 0, by kafka-python. `session` is (id, epoch): (0, -1) none, (0, 0) a new one, (id, 1) and so on."""
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": MAX_FETCH_BYTES}
    limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": MAX_FETCH_BYTES}
    ids = {"replica_id": -1, "session_id": session[0], "session_epoch": session[1]}
    topics = [] if topic is None else [{"topic": topic.name, "topic_id": topic.id, "partitions": [wanted]}]
    return _request(FETCH, version, topics=topics, **limits, **ids)


def fetched_values(answer: Any) -> list[bytes]:
    """The values of all records in a decoded Fetch answer; a batch cut off at the end counts for nothing."""
    from kafka.record import MemoryRecords

    values = []
    for topic in answer.responses:
        for partition in topic.partitions:
            records = MemoryRecords(bytes(partition.records or b""))
            while (found := records.next_batch()) is not None:
                values += [each.value for each in found]
    return values


Pairs = Sequence[tuple[str, str | None]]
"""An entity of quotas: its types and names; None: the default."""
Ops = Sequence[tuple[str, float | None]]
"""Limits by key; None: remove it."""


def alter_quotas(
    client: RawClient, entries: Sequence[tuple[Pairs, Ops]], *, version: int = 1, validate_only: bool = False
) -> list[tuple[int, str | None, dict[str, str | None]]]:
    """Ask for changed quotas; of each entity the error code, the message, and its names."""
    parts = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
        }
        for entity, ops in entries
    ]
    request = _request(ALTER_CLIENT_QUOTAS, version, entries=parts, validate_only=validate_only)
    answer = client.ask(request).message
    return [
        (entry.error_code, entry.error_message, {part.entity_type: part.entity_name for part in entry.entity})
        for entry in answer.entries
    ]


def set_brokers_quota(address: str, of: str | Mapping[str, str], key: str, value: float | None) -> None:
    """Set a quota that the broker itself enforces; None: remove it."""
    names = ({"client-id": of} if isinstance(of, str) else of).items()
    entity = [(kind, None if name == "<default>" else name) for kind, name in names]
    with RawClient(address) as client:
        assert [code for code, *_ in alter_quotas(client, [(entity, [(key, value)])])] == [0]
