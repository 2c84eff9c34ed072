"""The demo's clients, each a process of its own: `python -m tests.lab.demo.clients PROGRAM TASK` (TASK: JSON).

They connect, say so, wait for a line on stdin, work until stopped and report as JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

REPORT_EVERY_S = 0.25
CONNECT_LIMIT_S = 30
RECORD_BYTES = 4096
LATE_S = 0.25
"""Records that are later than this are not made up for."""
VALUE = os.urandom(RECORD_BYTES)
"""Of every record: bytes that do not compress."""


@dataclass
class Task:
    bootstrap: str
    client_id: str
    topic: str
    wanted: float | None
    """Bytes/s of record values; None: as many as it can."""


class Tally:
    def __init__(self, version: str, refresh: Callable[[Tally], None] | None = None) -> None:
        """Say that the client is connected, wait for the sign to start, and report from then on."""
        self.moved = 0
        self.failed = 0
        self.problem = ""
        self.throttle_max_ms: float | None = None
        self._lock = threading.Lock()
        say(event="ready", version=version)
        if not sys.stdin.readline():
            os._exit(1)  # the parent is gone
        threading.Thread(target=self._report, args=(refresh,), daemon=True).start()

    def add(self, problem: object = None, size: int = RECORD_BYTES) -> None:
        with self._lock:
            if problem is None:
                self.moved += size
            else:
                self.failed += 1
                self.problem = f"{type(problem).__name__}: {problem}"

    def throttled(self, throttle_ms: float) -> None:
        if throttle_ms > 0:
            self.throttle_max_ms = max(self.throttle_max_ms or 0.0, throttle_ms)

    def _report(self, refresh: Callable[[Tally], None] | None) -> None:
        while True:
            if refresh is not None:
                refresh(self)
            counts = {name: getattr(self, name) for name in ("moved", "failed", "problem", "throttle_max_ms")}
            say(event="tally", at=time.monotonic(), **counts)  # one clock for all processes of a Linux machine
            time.sleep(REPORT_EVERY_S)


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def waits(wanted: float | None) -> Iterator[float]:
    assert wanted is not None
    due = time.monotonic()
    while True:
        now = time.monotonic()
        due = max(due, now - LATE_S)
        yield max(due - now, 0.0)
        due += RECORD_BYTES / wanted


def aiokafka_producer(task: Task) -> None:
    """Greedy: sends as fast as the library can, and knows nothing of throttle times."""
    import aiokafka

    async def produce() -> None:
        # One request at a time to a broker: with batches of 16 KB, as they are, a busy machine would be the limit.
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=task.bootstrap, client_id=task.client_id, max_batch_size=64 * 1024
        )
        await producer.start()
        await producer.partitions_for(task.topic)
        tally = Tally(aiokafka.__version__)
        while True:  # waits while the batch is full
            future = await producer.send(task.topic, VALUE)
            future.add_done_callback(lambda future: tally.add(future.exception()))

    asyncio.run(produce())


def kafka_python_producer(task: Task) -> None:
    """Polite: wants a steady rate, and waits for the throttle time of a response (KIP-219)."""
    import kafka

    logging.getLogger("kafka").setLevel(logging.ERROR)  # it logs every throttle as a warning
    producer = kafka.KafkaProducer(
        bootstrap_servers=task.bootstrap, client_id=task.client_id, linger_ms=20, batch_size=64 * 1024
    )
    producer.partitions_for(task.topic)

    def refresh(tally: Tally) -> None:
        for group in producer.metrics().values():
            tally.throttled(float(group.get("throttle-time-max", 0.0)))

    tally = Tally(kafka.__version__, refresh)
    room = threading.Semaphore((1 << 20) // RECORD_BYTES)  # the library's own buffer is unbounded

    def done(problem: Exception | None) -> None:
        room.release()
        tally.add(problem)

    for wait_s in waits(task.wanted):
        room.acquire()
        time.sleep(wait_s)
        producer.send(task.topic, VALUE).add_callback(lambda _: done(None)).add_errback(done)


def _librdkafka(task: Task, tallies: list[Tally]) -> dict[str, Any]:
    def throttled(event: Any) -> None:
        for tally in tallies:
            tally.throttled(event.throttle_time * 1000)

    own = {"bootstrap.servers": task.bootstrap, "client.id": task.client_id}
    return own | {"log_level": 3, "throttle_cb": throttled}


def librdkafka_producer(task: Task) -> None:
    import confluent_kafka

    tallies: list[Tally] = []
    producer = confluent_kafka.Producer(_librdkafka(task, tallies) | {"acks": 1, "linger.ms": 20})
    producer.list_topics(task.topic, timeout=CONNECT_LIMIT_S)
    tallies.append(tally := Tally(confluent_kafka.libversion()[0]))
    for wait_s in waits(task.wanted):
        end = time.monotonic() + wait_s
        producer.poll(0)
        while (left_s := end - time.monotonic()) > 0.001:  # poll returns at the first event
            producer.poll(left_s)
        try:
            producer.produce(task.topic, VALUE, on_delivery=lambda error, _: tally.add(error))
        except BufferError:
            producer.poll(0.1)


def librdkafka_consumer(task: Task) -> None:
    """In a group; it receives throttle times and fetches on regardless."""
    import confluent_kafka

    tallies: list[Tally] = []
    own = {"group.id": task.client_id, "auto.offset.reset": "earliest", "allow.auto.create.topics": True}
    consumer = confluent_kafka.Consumer(_librdkafka(task, tallies) | own)
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while not any(one.leader >= 0 for one in consumer.list_topics(task.topic).topics[task.topic].partitions.values()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {task.topic} has no leader after {CONNECT_LIMIT_S} s")
        time.sleep(0.1)
    tallies.append(tally := Tally(confluent_kafka.libversion()[0]))
    consumer.subscribe([task.topic])
    while True:
        for message in consumer.consume(1000, timeout=0.1):
            tally.add(message.error(), len(message))


if __name__ == "__main__":
    globals()[sys.argv[1]](Task(**json.loads(sys.argv[2])))
