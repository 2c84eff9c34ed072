"""Real clients under load, for tests that hold them to a quota: each is `(Load) -> Timeline`, blocking, thread-safe."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import selectors
import subprocess
import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from tests.lab.kafka import GuardedProcess, start_tool
from tests.support.raw_client import RawClient
from tests.support.records import subscribed

JAVA_VERSION = "4.4.0"  # the Java client speaks with older brokers, too
HEAD_BYTES = 22  # "000000000042 1a2b3c4d " before the filler
SAMPLE_S = 0.1
CLOSE_LIMIT_S = 10.0
_filler = base64.b64encode(random.Random(1).randbytes(3 << 18))


@dataclass(frozen=True)
class Load:
    """What a client is to do. `records` times `record_bytes` is the payload, 20 MB by default."""

    bootstrap: Sequence[str]
    topic: str
    client_id: str
    records: int = 2_000
    record_bytes: int = 10_000
    limit_s: float = 120.0
    """After this the client is stopped and the timeline has an error "not done after ..."."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The client's own settings, in its own spelling, applied last."""
    direct: Sequence[str] = ()
    """Brokers' real addresses, for a watcher next to the sidecar (Java console producer); `bootstrap` if empty."""

    @property
    def total_bytes(self) -> int:
        return self.records * self.record_bytes


@dataclass
class Timeline:
    """What a client did, in seconds of the monotonic clock and bytes of payload."""

    client: str
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    points: list[tuple[float, int]] = field(default_factory=list)
    """(when, payload bytes acknowledged or received so far)."""
    numbers: list[int] = field(default_factory=list)
    """Numbers of the records received, in order; their contents were compared. Empty for producers."""
    errors: list[str] = field(default_factory=list)
    throttle: dict[str, float] = field(default_factory=dict)
    """The client's own measurements of throttling, by the client's names, in ms where they are times."""

    @property
    def total_bytes(self) -> int:
        return self.points[-1][1] if self.points else 0

    @property
    def duration_s(self) -> float:
        return self.ended - self.began

    def bytes_until(self, when: float) -> int:
        behind = bisect_right(self.points, when, key=lambda point: point[0])
        return self.points[behind - 1][1] if behind else 0

    def rate(self, start: float, end: float) -> float:
        return (self.bytes_until(end) - self.bytes_until(start)) / (end - start)

    def add(self, count: int) -> None:
        self.points.append((time.monotonic(), self.total_bytes + count))

    def receive(self, value: bytes) -> None:
        self.add(len(value))
        try:
            self.numbers.append(check_record(value))
        except ValueError as error:
            self.errors.append(str(error))

    def assert_complete(self, load: Load) -> None:
        """Every record once and in order, nothing went wrong."""
        assert self.errors == []
        assert self.total_bytes == load.total_bytes
        assert self.numbers in ([], list(range(load.records)))


Client = Callable[[Load], Timeline]


def record(number: int, size: int) -> bytes:
    """One record: its number, a checksum, and printable filler that differs from record to record."""
    start = number * 7919 % (len(_filler) - size) if size < len(_filler) else 0
    body = (_filler[start : start + size] * (size // len(_filler) + 1))[: size - HEAD_BYTES]
    return b"%012d %08x %s" % (number, zlib.crc32(body, number), body)


def check_record(value: bytes) -> int:
    number, checksum = int(value[:12]), int(value[13:21], 16)
    if zlib.crc32(value[HEAD_BYTES:], number) != checksum:
        raise ValueError(f"record {number} is damaged")
    return number


@contextmanager
def _timeline(name: str, load: Load) -> Iterator[Timeline]:
    """The frame around every client: what it raises becomes an error in the timeline."""
    timeline = Timeline(f"{name} {load.client_id}")
    try:
        yield timeline
    except Exception as error:  # a test wants to see all of a client's troubles, not the first one
        timeline.errors.append(f"{type(error).__name__}: {error}")
    finally:
        timeline.ended = time.monotonic()


def _late(timeline: Timeline, load: Load) -> bool:
    if time.monotonic() < timeline.began + load.limit_s:
        return False
    timeline.errors.append(f"not done after {load.limit_s:g} s: {timeline.total_bytes} of {load.total_bytes} bytes")
    return True


def _ended(timeline: Timeline, load: Load) -> bool:
    return len(timeline.numbers) >= load.records or _late(timeline, load)


def _python_settings(load: Load) -> dict[str, Any]:
    return {"bootstrap_servers": list(load.bootstrap), "client_id": load.client_id, **load.settings}


def _throttle_of(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {
        name: value
        for group, values in metrics.items()
        for name, value in values.items()
        if "throttle" in name and ".node-" not in group
    }


def produce_kafka_python(load: Load) -> Timeline:
    from kafka import KafkaProducer

    with _timeline("kafka-python", load) as timeline:
        producer = KafkaProducer(**_python_settings(load))
        try:
            for number in range(load.records):
                future = producer.send(load.topic, record(number, load.record_bytes))
                future.add_callback(lambda _metadata: timeline.add(load.record_bytes))
                future.add_errback(lambda error: timeline.errors.append(repr(error)))
            producer.flush(timeout=load.limit_s)
            timeline.throttle = _throttle_of(producer.metrics())
        finally:
            producer.close(timeout=5)
    return timeline


def consume_kafka_python(load: Load) -> Timeline:
    with _timeline("kafka-python", load) as timeline:
        group = {"group_id": f"group-{load.client_id}"}
        consumer = subscribed(load.bootstrap, load.topic, **group | _python_settings(load))
        try:
            while not _ended(timeline, load):
                for records in consumer.poll(timeout_ms=500).values():
                    for each in records:
                        timeline.receive(each.value)
            timeline.throttle = _throttle_of(consumer.metrics())
        finally:
            consumer.close()
    return timeline


def _run_asyncio(work: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, and waits until the loop has no sockets any more: TLS says goodbye in its background."""

    async def closed() -> None:
        until = time.monotonic() + CLOSE_LIMIT_S
        # The loop itself has one. Nothing reports when a socket goes.
        while len(selector.get_map()) > 1 and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    with (
        selectors.DefaultSelector() as selector,
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
    ):
        try:
            runner.run(work)
        finally:
            runner.run(closed())


def produce_aiokafka(load: Load) -> Timeline:
    from aiokafka import AIOKafkaProducer

    async def run(timeline: Timeline) -> None:
        producer = AIOKafkaProducer(**_python_settings(load))
        try:  # not `async with`: that leaves a producer open which could not start
            await producer.start()
            async with asyncio.timeout(load.limit_s):
                sent = []
                for number in range(load.records):
                    future = await producer.send(load.topic, record(number, load.record_bytes))
                    future.add_done_callback(done)
                    sent.append(future)
                await asyncio.gather(*sent, return_exceptions=True)
        finally:
            await producer.stop()

    def done(future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception():
            timeline.errors.append("cancelled" if future.cancelled() else repr(future.exception()))
        else:
            timeline.add(load.record_bytes)

    with _timeline("aiokafka", load) as timeline:
        _run_asyncio(run(timeline))
    return timeline


def consume_aiokafka(load: Load) -> Timeline:
    from aiokafka import AIOKafkaConsumer

    async def run(timeline: Timeline) -> None:
        group = {"group_id": f"group-{load.client_id}", "auto_offset_reset": "earliest"}
        consumer = AIOKafkaConsumer(load.topic, **group | _python_settings(load))
        try:
            await consumer.start()
            while not _ended(timeline, load):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for each in records:
                        timeline.receive(each.value)
        finally:
            with suppress(asyncio.CancelledError):  # its own, of a fetch that waits after a connection has ended
                await consumer.stop()

    with _timeline("aiokafka", load) as timeline:
        _run_asyncio(run(timeline))
    return timeline


def _librdkafka_settings(load: Load, timeline: Timeline) -> dict[str, Any]:
    def throttled(event: Any) -> None:
        delay_ms = event.throttle_time * 1000
        timeline.throttle["throttle-events"] = timeline.throttle.get("throttle-events", 0) + 1
        timeline.throttle["throttle-time-max"] = max(timeline.throttle.get("throttle-time-max", 0.0), delay_ms)

    return {
        "bootstrap.servers": ",".join(load.bootstrap),
        "client.id": load.client_id,
        "throttle_cb": throttled,
        "error_cb": lambda error: timeline.errors.append(str(error)),
    }


def produce_confluent(load: Load) -> Timeline:
    from confluent_kafka import Producer

    def delivered(error: Any, _message: Any) -> None:
        if error is None:
            timeline.add(load.record_bytes)
        else:
            timeline.errors.append(str(error))

    with _timeline("confluent-kafka", load) as timeline:
        producer = Producer({**_librdkafka_settings(load, timeline), **load.settings})
        for number in range(load.records):
            while True:
                try:
                    producer.produce(load.topic, record(number, load.record_bytes), on_delivery=delivered)
                    break
                except BufferError:  # its queue is full: wait for room
                    producer.poll(SAMPLE_S)
                if _late(timeline, load):
                    return timeline
            producer.poll(0)
        if left := producer.flush(max(0.1, timeline.began + load.limit_s - time.monotonic())):
            timeline.errors.append(f"{left} records not delivered after {load.limit_s:g} s")
    return timeline


def consume_confluent(load: Load) -> Timeline:
    from confluent_kafka import Consumer

    with _timeline("confluent-kafka", load) as timeline:
        settings = {"group.id": f"group-{load.client_id}", "auto.offset.reset": "earliest", **load.settings}
        consumer = Consumer({**_librdkafka_settings(load, timeline), **settings})
        try:
            consumer.subscribe([load.topic])
            while not _ended(timeline, load):
                for message in consumer.consume(500, SAMPLE_S):
                    if message.error():
                        timeline.errors.append(str(message.error()))
                    else:
                        timeline.receive(message.value() or b"")
        finally:
            consumer.close()
    return timeline


@contextmanager
def _java(
    load: Load, timeline: Timeline, main_class: str, *arguments: str, input_: bool = False
) -> Iterator[GuardedProcess]:
    """Run a tool with the load's client id and settings; warnings on its stderr and a failure become errors."""
    command = ["--bootstrap-server", ",".join(load.bootstrap), "--topic", load.topic, *arguments]
    command += ["--command-property", f"client.id={load.client_id}"]
    stdin = subprocess.PIPE if input_ else subprocess.DEVNULL
    with ExitStack() as stack:
        file, log = stack.enter_context(NamedTemporaryFile("w")), stack.enter_context(TemporaryFile("w+"))
        file.writelines(f"{name}={value}\n" for name, value in load.settings.items())
        file.flush()
        command += ["--command-config", file.name]
        tool = f"org.apache.kafka.tools.{main_class}"
        process = stack.enter_context(start_tool(tool, command, JAVA_VERSION, stdin=stdin, stderr=log))
        limit = threading.Timer(max(0.0, timeline.began + load.limit_s - time.monotonic()), process.kill)
        limit.start()
        try:
            yield process
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            limit.cancel()
            process.wait()
        log.seek(0)
        lines = log.readlines()
        complaints = [line.strip() for line in lines if "] WARN " in line or "] ERROR " in line]
        timeline.errors += filter(is_trouble, complaints)
        if process.returncode:
            timeline.errors.append(f"{main_class} ended with code {process.returncode}: {''.join(lines)[-2000:]}")


def is_trouble(text: str) -> bool:
    """Not of a topic that is just being created, nor of a throttle (in Kafka 4.4 a warning)."""
    usual = ("UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", " is throttled for ")
    return not any(one in text for one in usual)


def _java_metric(line: str) -> tuple[str, float] | None:
    """A line of --print-metrics, such as `producer-metrics:produce-throttle-time-avg:{client-id=c} : 12.3`."""
    found = re.match(r"[\w-]+-metrics:([\w-]*throttle[\w-]*):\{client-id=[^,}]*\}\s*: (\S+)", line)
    return (found[1], float(found[2])) if found else None


def produce_java_console(load: Load) -> Timeline:
    """Kafka's ConsoleProducer: its records can be compared. It has produced what the log of partition 0 has grown by,
    whatever it reports."""
    from kafka import KafkaConsumer, TopicPartition

    with (
        _timeline("java-console", load) as timeline,
        KafkaConsumer(
            bootstrap_servers=list(load.direct or load.bootstrap), client_id=f"watch-{load.client_id}"
        ) as watcher,
    ):
        partition = TopicPartition(load.topic, 0)
        watcher.partitions_for_topic(load.topic)  # creates it
        before = watcher.end_offsets([partition])[partition]
        # The console tool's own default of 1.5 s per request is not the Java client's (30 s).
        settings = ("--request-timeout-ms", "30000")
        with _java(load, timeline, "ConsoleProducer", *settings, input_=True) as process:
            assert process.stdin is not None
            for number in range(load.records):
                process.stdin.write(record(number, load.record_bytes).decode() + "\n")
            process.stdin.close()
        timeline.add((watcher.end_offsets([partition])[partition] - before) * load.record_bytes)
    return timeline


def produce_java_perf(load: Load) -> Timeline:
    """Kafka's ProducerPerformance: random contents (not to be compared), but throttle metrics."""
    with _timeline("java-perf", load) as timeline:
        with RawClient((load.direct or load.bootstrap)[0]) as client:
            client.topic(load.topic)  # a producer that comes before the leader of a new topic is ready logs warnings
        arguments = ["--num-records", str(load.records), "--record-size", str(load.record_bytes), "--throughput", "-1"]
        arguments += ["--print-metrics", "--reporting-interval", "250"]
        with _java(load, timeline, "ProducerPerformance", *arguments) as process:
            assert process.stdout is not None
            for line in process.stdout:
                # A line per interval with the records of that interval, and one at the end with all of them and
                # percentiles.
                if found := re.match(r"(\d+) records sent, ", line):
                    total = int(found[1]) * load.record_bytes
                    timeline.add(total - timeline.total_bytes if "99th" in line else total)
                elif metric := _java_metric(line):
                    timeline.throttle[metric[0]] = metric[1]
    return timeline


def consume_java_console(load: Load) -> Timeline:
    """Kafka's ConsoleConsumer: every record is compared as it is printed."""
    with _timeline("java-console", load) as timeline:
        arguments = ["--group", f"group-{load.client_id}", "--from-beginning", "--max-messages", str(load.records)]
        with _java(load, timeline, "consumer.ConsoleConsumer", *arguments) as process:
            assert process.stdout is not None
            for line in process.stdout:
                timeline.receive(line.removesuffix("\n").encode())
    return timeline


def consume_java_perf(load: Load) -> Timeline:
    """Kafka's ConsumerPerformance: counts only, but throttle metrics."""
    with _timeline("java-perf", load) as timeline:
        arguments = ["--group", f"group-{load.client_id}", "--num-records", str(load.records), "--print-metrics"]
        arguments += ["--show-detailed-stats", "--hide-header", "--reporting-interval", "250"]
        arguments += ["--timeout", str(int(load.limit_s * 1000))]
        with _java(load, timeline, "ConsumerPerformance", *arguments) as process:
            assert process.stdout is not None
            for line in process.stdout:
                # time, thread, MB so far, MB/s, records so far, records/s, ...; only a metric has the end
                cells = line.split(", ")
                total = re.match(r"[\w-]+-metrics:records-consumed-total:\{client-id=[^,}]*\}\s*: (\d+)", line)
                if (so_far := total[1] if total else cells[4] if len(cells) > 5 else "").isdigit():
                    timeline.add(int(so_far) * load.record_bytes - timeline.total_bytes)
                elif metric := _java_metric(line):
                    timeline.throttle[metric[0]] = metric[1]
    return timeline


PRODUCERS: dict[str, Client] = {
    "kafka-python": produce_kafka_python,
    "aiokafka": produce_aiokafka,
    "confluent-kafka": produce_confluent,
    "java-console": produce_java_console,
    "java-perf": produce_java_perf,
}
CONSUMERS: dict[str, Client] = {
    "kafka-python": consume_kafka_python,
    "aiokafka": consume_aiokafka,
    "confluent-kafka": consume_confluent,
    "java-console": consume_java_console,
    "java-perf": consume_java_perf,
}
LIBRARIES = ("kafka-python", "aiokafka", "confluent-kafka", "java-console")
"""One client of each."""
