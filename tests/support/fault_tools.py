"""Real clients at work while something breaks, what they were told, and what a sidecar holds when they are gone."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.corpus.job import wait_for
from tests.support.sidecars import Sidecar

VALUE_BYTES = 1000
PER_S = 150
IMPATIENT: dict[str, Any] = {
    "socket.timeout.ms": 3000,
    "socket.connection.setup.timeout.ms": 3000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1000,
    "log_level": 0,
}
"""librdkafka waits a minute for an answer before it believes a connection dead; here three seconds."""
PROGRESS_S = 120.0
FINISH_S = 120.0
LOOK_EVERY_S = 1.3
"""Longer than the second that an exposition may be old, and a look's own connection is held after its end."""


class Producing:
    """An idempotent librdkafka producer: numbered values at a steady rate, and what it was told about each."""

    def __init__(self, bootstrap: str, topic: str, client_id: str = "writes", **settings: Any) -> None:
        from confluent_kafka import Producer

        self.name = uuid.uuid4().hex[:8]
        self.topic = topic
        self.sent = 0
        self.told: dict[str, int] = {}
        """Value -> the offset that it was acknowledged with."""
        self.refused: dict[str, str] = {}
        """Value -> the error instead."""
        self._settings = settings
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
            }
            | IMPATIENT
            | settings
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producing", daemon=True)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            while self.sent < (time.monotonic() - began) * PER_S and len(self._producer) < 5000:
                value = f"{self.name}-{self.sent:07d}"
                self._producer.produce(
                    self.topic, value=value.ljust(VALUE_BYTES, ".").encode(), on_delivery=self._note(value)
                )
                self.sent += 1
            self._producer.poll(0.01)

    def _note(self, value: str) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is None:
                self.told[value] = message.offset()
            else:
                self.refused[value] = error.name()

        return note

    def wait_for_progress(self, count: int = 100) -> None:
        """Until some more have been acknowledged."""
        wanted = len(self.told) + count
        wait_for(f"{count} more acknowledged", lambda: len(self.told) >= wanted, PROGRESS_S)

    def finish(self) -> None:
        """Send no more, and wait until something was said about each."""
        self._stop.set()
        self._thread.join(10)
        self._producer.flush(FINISH_S)
        assert len(self._producer) == 0, f"{len(self._producer)} records that were neither confirmed nor refused"
        del self._producer  # librdkafka closes its connections when the last reference goes

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(10)


class Consuming:
    """A librdkafka consumer of one partition from its beginning, which goes on whatever happens."""

    def __init__(self, bootstrap: str, topic: str, client_id: str = "reads") -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.seen: dict[int, str] = {}
        """Offset -> value."""
        self.order: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 200,
                "fetch.error.backoff.ms": 100,
            }
            | IMPATIENT
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consuming", daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self.order.append(message.offset())
            self.seen[message.offset()] = message.value().decode().rstrip(".")
        self._consumer.close()

    def wait_for_progress(self, count: int = 100) -> None:
        """Until some more have come."""
        wanted = len(self.seen) + count
        wait_for(f"{count} more records", lambda: len(self.seen) >= wanted, PROGRESS_S)

    def finish(self, *, until: int) -> None:
        """Read up to this offset (exclusive), then end."""
        wait_for(f"the records up to {until}", lambda: max(self.seen, default=-1) >= until - 1, FINISH_S)
        self._stop.set()
        self._thread.join(30)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(30)


def create_topic(bootstrap: str, topic: str, replicas: int = 1) -> None:
    """One partition, kept for ever; straight at the brokers."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (future,) = admin.create_topics(
        [NewTopic(topic, 1, replicas, config={"retention.ms": "-1", "min.insync.replicas": str(min(replicas, 2))})]
    ).values()
    future.result(30)


def stored(bootstrap: str, topic: str) -> dict[int, str]:
    """Offset -> value, read straight from the brokers, everything there is."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "log_level": 0})
    found: dict[int, str] = {}
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        came_s, last = time.monotonic(), -1
        while last < end - 1:  # however many they are: it ends when none come any more
            assert time.monotonic() < came_s + FINISH_S, f"{len(found)} of {end} records, and then no more"
            for message in consumer.consume(5000, 1.0):
                if message.error() is None:
                    came_s, last = time.monotonic(), message.offset()
                    found[last] = message.value().decode().rstrip(".")
    finally:
        consumer.close()
    return found


def check_promises(found: dict[int, str], producers: Sequence[Producing], consumers: Sequence[Consuming]) -> None:
    """What was acknowledged stands where the client was told, once, in order; readers saw exactly what is there.

    What was not acknowledged may be there or not: the client was told nothing. Kafka itself promises no more.
    """
    times = Counter(found.values())
    for producer in producers:
        assert producer.told, "nothing was acknowledged: this has shown nothing"
        misplaced = {value: at for value, at in producer.told.items() if found.get(at) != value}
        assert not misplaced, f"{len(misplaced)} acknowledged records are not where they should be: {misplaced}"
        repeated = {value: times[value] for value in producer.told if times[value] != 1}
        assert not repeated, f"acknowledged once, stored several times: {repeated}"
        offsets = [producer.told[value] for value in sorted(producer.told)]
        assert offsets == sorted(offsets), "out of order"
        unknown = producer.sent - len(producer.told) - len(producer.refused)
        assert not unknown, f"{unknown} records of which nothing was said"
    sent = {value for producer in producers for value in (*producer.told, *producer.refused)}
    assert set(found.values()) <= sent
    for consumer in consumers:
        assert consumer.seen == {offset: found[offset] for offset in range(max(consumer.seen) + 1) if offset in found}
        assert consumer.order == sorted(consumer.order), "a reader went back"


@dataclass(frozen=True)
class Held:
    """What a sidecar holds, apart from what it keeps in store."""

    descriptors: int
    """Without those of pooled pipes, two each."""
    tasks: int
    reservations: int
    connections: int

    def within(self, other: Held) -> bool:
        """No more of anything than there."""
        return all(getattr(self, name) <= getattr(other, name) for name in Held.__dataclass_fields__)


def held(proxy: Sidecar) -> Held:
    """At this moment; the connection that asks is part of it."""
    samples = {sample.name: sample.value for sample in proxy.samples() if not sample.labels}
    descriptors = len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))
    return Held(
        descriptors - 2 * int(samples["kquota_pipes_open"]),
        int(samples["kquota_tasks"]),
        int(samples["kquota_fetch_reservations"]),
        int(samples["kquota_connections_open"]),
    )


def least_held(proxy: Sidecar, looks: int = 5) -> Held:
    """What it holds at rest: the least of some looks, as its own questions to the cluster come and go."""
    seen = []
    for _ in range(looks):
        seen.append(held(proxy))
        time.sleep(LOOK_EVERY_S)
    return Held(*(min(getattr(one, name) for one in seen) for name in Held.__dataclass_fields__))


def held_again(proxy: Sidecar, before: Held, limit_s: float = 90.0) -> Held:
    """The least that is held, once it is no more than before; or after the limit."""
    deadline, least = time.monotonic() + limit_s, held(proxy)
    while not least.within(before) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        now = held(proxy)
        least = Held(*(min(getattr(least, name), getattr(now, name)) for name in Held.__dataclass_fields__))
    return least


@contextmanager
def nothing_left_behind(proxy: Sidecar, before: Held) -> Iterator[None]:
    """Afterwards descriptors, tasks, reservations and connections come back to what they were."""
    yield
    after = held_again(proxy, before)
    assert after.within(before), f"before {before}, still {after}: {proxy.get('/connections')}"


@dataclass
class Charged:
    """Bytes that a sidecar has charged so far."""

    produce: float
    fetch: float
    took_s: float = field(default_factory=time.monotonic)


def charged(proxy: Sidecar) -> Charged:
    """By kind, of all clients."""
    return Charged(proxy.metric("kquota_bytes_total", kind="produce"), proxy.metric("kquota_bytes_total", kind="fetch"))
