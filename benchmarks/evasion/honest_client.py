"""Honest clients on Python's libraries, each in a process of its own: `python -m benchmarks.evasion.honest_client`.

Work on stdin as JSON (the same as tests/go/honest reads), what became of it on stdout. Timeouts, batches and
acknowledgements are the libraries' defaults. What a library may hold back is bounded to `buffer_bytes`, so that the
application is held up by its own library as soon as the limit holds that up, and no record can wait longer than its
delivery timeout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Work:
    """What to do."""

    library: str
    bootstrap: list[str]
    topic: str
    client_id: str
    per_s: float
    seconds: float
    record_bytes: int
    buffer_bytes: int
    reads: int = 0
    """So many records are read as a member of a group; 0: it produces."""

    def record(self, number: int) -> bytes:
        """Twelve digits, then what libraries that compress cannot make much smaller, in characters of one line."""
        return b"%012d " % number + os.urandom(self.record_bytes // 2).hex()[: self.record_bytes - 13].encode()


@dataclass
class Result:
    """What became of it."""

    sent: int = 0
    acked: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When they were read, in seconds since 1970."""


class Pace:
    """The offer: numbers at their times; what was missed because sending blocked is not made up for."""

    def __init__(self, work: Work, result: Result) -> None:
        self._step_s, self._result = 1.0 / work.per_s, result
        self._begin = self._due = time.monotonic()
        self._end = self._begin + work.seconds

    def numbers(self) -> Iterator[tuple[int, float]]:
        """(number, seconds to wait before it is sent)."""
        while (now := time.monotonic()) < self._end:
            self._due = max(self._due + self._step_s, now - 1.0)
            yield self._result.sent, max(self._due - now, 0.0)
            self._result.sent += 1


def kafka_python(work: Work, result: Result) -> None:
    """kafka-python: its buffer has no bound, so the application waits for the oldest record before it sends more."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=work.bootstrap, client_id=work.client_id)
    most, waiting = work.buffer_bytes // work.record_bytes, deque[Any]()
    for number, wait_s in Pace(work, result).numbers():
        time.sleep(wait_s)
        if len(waiting) >= most:
            with suppress(Exception):  # reported below
                waiting.popleft().get(120)
        future = producer.send(work.topic, work.record(number))
        future.add_callback(lambda _told, number=number: result.acked.append(number))
        future.add_errback(lambda error: result.errors.append(repr(error)))
        waiting.append(future)
    producer.flush(120)
    producer.close(30)


def aiokafka(work: Work, result: Result) -> None:
    """aiokafka: `send` waits while a batch of its partition is on its way."""
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=work.bootstrap, client_id=work.client_id)
        await producer.start()
        waiting = set()

        def done(future: asyncio.Future[Any], number: int) -> None:
            waiting.discard(future)
            error = future.exception()
            if error is None:
                result.acked.append(number)
            else:
                result.errors.append(repr(error))

        for number, wait_s in Pace(work, result).numbers():
            await asyncio.sleep(wait_s)
            future = await producer.send(work.topic, work.record(number))
            waiting.add(future)
            future.add_done_callback(lambda future, number=number: done(future, number))
        await producer.stop()
        if waiting:
            await asyncio.wait(waiting, timeout=1)

    asyncio.run(run())


def confluent(work: Work, result: Result) -> None:
    """librdkafka: a full queue is an exception, after which an application waits and tries again."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": ",".join(work.bootstrap),
            "client.id": work.client_id,
            "queue.buffering.max.kbytes": work.buffer_bytes // 1024,
            "error_cb": lambda error: result.errors.append(str(error)),
        }
    )
    for number, wait_s in Pace(work, result).numbers():
        producer.poll(wait_s)

        def delivered(error: Any, _message: Any, number: int = number) -> None:
            if error is None:
                result.acked.append(number)
            else:
                result.errors.append(str(error))

        while True:
            try:
                producer.produce(work.topic, work.record(number), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(120):
        result.errors.append(f"{left} records were not delivered within two minutes of the last one")


def java(work: Work, result: Result) -> None:
    """Kafka's Java producer, in its ConsoleProducer: records are lines. It reports only failures, so all others count
    as acknowledged. Its own settings are those of the producer, save for the size of its memory; the tool's own limit
    of 1.5 s for a request is not the producer's."""
    import subprocess

    from tests.lab.kafka import start_tool
    from tests.support.clients import is_trouble

    arguments = ["--bootstrap-server", ",".join(work.bootstrap), "--topic", work.topic]
    arguments += ["--request-timeout-ms", "30000", "--max-memory-bytes", str(work.buffer_bytes)]
    arguments += ["--command-property", f"client.id={work.client_id}"]
    with start_tool("org.apache.kafka.tools.ConsoleProducer", arguments, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number, wait_s in Pace(work, result).numbers():
            time.sleep(wait_s)
            process.stdin.write(work.record(number).decode() + "\n")
        out, err = process.communicate(timeout=150)
    for line in (out + err).splitlines():
        if ("] WARN " in line or "] ERROR " in line) and is_trouble(line):
            result.errors.append(line)
    if process.returncode:
        result.errors.append(f"ConsoleProducer ended with code {process.returncode}: {err[-2000:]}")
    result.acked = list(range(result.sent))


LIBRARIES = {"kafka-python": kafka_python, "aiokafka": aiokafka, "confluent-kafka": confluent, "java": java}


def read(work: Work, result: Result) -> None:
    """As a member of a group, until all records have come."""
    from tests.support.clients import CONSUMERS, Load

    load = Load(work.bootstrap, work.topic, work.client_id, work.reads, work.record_bytes, work.seconds + 60)
    timeline = CONSUMERS[work.library](load)
    began = time.time() - time.monotonic()
    result.read, result.errors = timeline.numbers, timeline.errors
    result.times = [began + when for when, _ in timeline.points]


def main() -> int:
    """The command."""
    work, result = Work(**json.loads(sys.stdin.readline())), Result()
    if work.reads:
        read(work, result)
    else:
        LIBRARIES[work.library](work, result)
    print(json.dumps(vars(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
