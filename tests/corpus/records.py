"""Records: idempotent producers, compression, headers, odd keys and values, and messages of 20 MB."""

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tests.corpus.job import Job, digest, item
from tests.corpus.tools import create_topic

BATCH_RECORDS = 60
LARGE_BYTES = 20 * 1024 * 1024
MAX_BYTES = 32 * 1024 * 1024

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 1_700_000_000_000
    partition: int = 0

    def arguments(self) -> dict[str, Any]:
        return self._asdict() | {"headers": list(self.headers)}


class Read(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records(count: int, seed: int, value_bytes: int = 1000) -> list[Record]:
    source = random.Random(seed)
    return [
        Record(
            f"key-{number % 7}".encode(),
            f"{number:06d} ".encode() + source.randbytes(value_bytes // 4) + b"a" * (value_bytes - value_bytes // 4),
            [("number", str(number).encode())],
            1_700_000_000_000 + number,
        )
        for number in range(count)
    ]


def send_kafka_python(job: Job, topic: str, sent: Sequence[Record], **settings: Any) -> list[int]:
    from kafka import KafkaProducer

    with KafkaProducer(bootstrap_servers=job.bootstrap, linger_ms=20, **settings) as producer:
        futures = [producer.send(topic, **each.arguments()) for each in sent]
        producer.flush(60)
        return [future.get(60).offset for future in futures]


def send_aiokafka(job: Job, topic: str, sent: Sequence[Record], **settings: Any) -> list[int]:
    from aiokafka import AIOKafkaProducer

    async def run() -> list[int]:
        async with AIOKafkaProducer(bootstrap_servers=job.bootstrap, linger_ms=20, **settings) as producer:
            futures = [await producer.send(topic, **each.arguments()) for each in sent]
            return [(await future).offset for future in futures]

    return asyncio.run(run())


def send_confluent(job: Job, topic: str, sent: Sequence[Record], **settings: Any) -> list[int]:
    from confluent_kafka import KafkaException, Producer

    offsets: dict[int, int] = {}

    def delivered(number: int) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            if error is not None:
                raise KafkaException(error)
            offsets[number] = message.offset()

        return note

    producer = Producer({"bootstrap.servers": job.bootstrap, "linger.ms": 20} | settings)
    for number, each in enumerate(sent):
        arguments = each.arguments()
        timestamp_ms = arguments.pop("timestamp_ms")
        producer.produce(topic, **arguments, timestamp=timestamp_ms, on_delivery=delivered(number))
    assert producer.flush(60) == 0, "records not delivered"
    return [offsets[number] for number in range(len(sent))]


SENDERS = {"kafka-python": send_kafka_python, "aiokafka": send_aiokafka, "confluent-kafka": send_confluent}


def read_kafka_python(job: Job, topic: str, partitions: int, count: int, **settings: Any) -> list[Read]:
    from kafka import KafkaConsumer, TopicPartition

    found: list[Read] = []
    settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000} | settings
    with KafkaConsumer(bootstrap_servers=job.bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        for each in consumer:
            found.append(Read(each.partition, each.offset, each.timestamp, each.key, each.value, list(each.headers)))
            if len(found) == count:
                break
    return sorted(found)[:count] if len(found) == count else found


def read_aiokafka(job: Job, topic: str, partitions: int, count: int, **settings: Any) -> list[Read]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> list[Read]:
        found: list[Read] = []
        consumer = AIOKafkaConsumer(bootstrap_servers=job.bootstrap, auto_offset_reset="earliest", **settings)
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        async with consumer, asyncio.timeout(60):
            while len(found) < count:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    found += [
                        Read(each.partition, each.offset, each.timestamp, each.key, each.value, list(each.headers))
                        for each in batch
                    ]
        return sorted(found)

    return asyncio.run(run())


def read_confluent(job: Job, topic: str, partitions: int, count: int, **settings: Any) -> list[Read]:
    from confluent_kafka import Consumer, TopicPartition

    found: list[Read] = []
    own = {"bootstrap.servers": job.bootstrap, "group.id": job.name("reads"), "enable.auto.commit": False}
    consumer = Consumer(own | settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None, f"{len(found)} of {count} records after a minute"
            assert message.error() is None, message.error()
            place = message.partition(), message.offset(), message.timestamp()[1]
            found.append(Read(*place, message.key(), message.value(), message.headers() or []))
    finally:
        consumer.close()
    return sorted(found)


READERS = {"kafka-python": read_kafka_python, "aiokafka": read_aiokafka, "confluent-kafka": read_confluent}


def _compression(job: Job, codec: str) -> Any:
    """Every client writes to a partition of its own with this codec, every client reads all of them."""
    topic = create_topic(job, f"codec-{codec}", partitions=len(SENDERS))
    result: dict[str, Any] = {}
    for partition, (name, send) in enumerate(SENDERS.items()):
        sent = [each._replace(partition=partition) for each in records(BATCH_RECORDS, seed=partition)]
        setting = {"compression.type": codec} if name == "confluent-kafka" else {"compression_type": codec}
        result[f"sent by {name}"] = send(job, topic, sent, **(setting if codec != "none" else {}))
    total = BATCH_RECORDS * len(SENDERS)
    for name, read in READERS.items():
        seen = read(job, topic, len(SENDERS), total)
        assert len({(each.partition, each.offset) for each in seen}) == total
        result[f"read by {name}"] = digest(repr(each).encode() for each in seen)
    assert len({result[f"read by {name}"] for name in READERS}) == 1, result
    return result


for _codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    item(f"records.compression_{_codec}")(partial(_compression, codec=_codec))


ODD_RECORDS = [
    Record(None, b"no key"),
    Record(b"tombstone", None),
    Record(b"", b""),
    Record("ключ".encode(), "значение 値 🦀".encode()),
    Record(b"k", b"v", [("same", b"1"), ("same", b"2"), ("", b"empty name"), ("empty", b""), ("ü", b"\x00\xff")]),
    Record(b"k", b"null header", [("null", None)]),
    Record(b"k", b"many headers", [(f"h{number}", b"x" * number) for number in range(100)]),
    Record(b"k" * 10_000, b"long key", timestamp_ms=1),
    Record(b"k", bytes(range(256)) * 20, timestamp_ms=1_000),
]


@item()
def headers_and_odd_records(job: Job) -> Any:
    topic = create_topic(job, "odd", partitions=2)
    sent = {}
    for partition, name in enumerate(("confluent-kafka", "aiokafka")):
        odd = [each._replace(partition=partition) for each in ODD_RECORDS]
        sent[name] = SENDERS[name](job, topic, odd)
    seen = {name: read(job, topic, 2, 2 * len(ODD_RECORDS)) for name, read in READERS.items()}
    return {"sent": sent, "seen": seen}


def _large(seed: int) -> bytes:
    return random.Random(seed).randbytes(LARGE_BYTES)


@item()
def large_messages(job: Job) -> Any:
    """20 MB that nothing can compress, written and read by each client."""
    topic = create_topic(job, "large", partitions=3, configs={"max.message.bytes": str(MAX_BYTES)})
    sent: dict[str, Any] = {}
    python = {"max_request_size": MAX_BYTES}
    settings = {"kafka-python": python, "aiokafka": python, "confluent-kafka": {"message.max.bytes": MAX_BYTES}}
    for partition, (name, send) in enumerate(SENDERS.items()):
        large = Record(b"large", _large(partition), [("codec", b"none")], partition=partition)
        sent[name] = send(job, topic, [large, Record(b"small", b"after it", partition=partition)], **settings[name])
    python = {"max_partition_fetch_bytes": MAX_BYTES, "fetch_max_bytes": 2 * MAX_BYTES}
    confluent = {"fetch.message.max.bytes": MAX_BYTES, "fetch.max.bytes": 2 * MAX_BYTES}
    reading = {"kafka-python": python, "aiokafka": python, "confluent-kafka": confluent}
    seen: dict[str, Any] = {}
    for name, read in READERS.items():
        found = read(job, topic, 3, 6, **reading[name])
        seen[name] = [
            (each.partition, each.offset, each.key, len(each.value or b""), zlib.crc32(each.value or b""))
            for each in found
        ]
    expected = [(zlib.crc32(_large(partition)), zlib.crc32(b"after it")) for partition in range(3)]
    for name, rows in seen.items():
        assert [row[4] for row in rows] == [crc for pair in expected for crc in pair], name
    return {"sent": sent, "seen": seen}
