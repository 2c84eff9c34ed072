"""Real clients at work while something breaks, the answers they get, and what a sidecar holds when they are gone."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import clear_frames
from typing import Any, NamedTuple, Self

from tests.support.history import Event, History, assert_clean
from tests.support.sidecars import Sidecar
from tests.support.waiting import in_background, until

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


class Working:
    def __init__(self, topic: str, history: History | None) -> None:
        self.topic = topic
        self.history: History = [] if history is None else history
        self.name = uuid.uuid4().hex[:8]
        self.done = 0
        """Records acknowledged or read; transactions committed."""
        self.refused: dict[str, str] = {}
        self._stop = threading.Event()

    def _run(self) -> None:
        raise NotImplementedError

    def wait_for_progress(self, count: int = 100) -> None:
        wanted = self.done + count
        until(lambda: self.done >= wanted, f"{count} more of {type(self).__name__}", PROGRESS_S)

    def finish(self) -> None:
        """Begin nothing more, and wait for the end of what was begun."""
        self._stop.set()
        self._ended.result(FINISH_S)

    def __enter__(self) -> Self:
        self._ended = in_background(self._run)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        wait([self._ended], 30)

    def _produce(self, producer: Any, partition: int, value: str, transaction: str | None = None) -> None:
        def note(error: Any, message: Any) -> None:
            if error is None:
                # None: the broker has the batch already (DUPLICATE_SEQUENCE_NUMBER), its answer has no offset.
                self.history.append(Event("acknowledged", self.name, value, partition, message.offset()))
                self.done += transaction is None
            else:
                what: Any = "failed" if error.name() == "_PURGE_QUEUE" else "unknown"
                self.history.append(Event(what, self.name, value))
                self.refused[value] = error.name()

        self.history.append(Event("sent", self.name, value, transaction=transaction))
        data = value.ljust(VALUE_BYTES, ".").encode()
        producer.produce(self.topic, data, partition=partition, on_delivery=note)


class Producing(Working):
    """An idempotent librdkafka producer of partition 0: numbered values at a steady rate."""

    def __init__(
        self, bootstrap: str, topic: str, client_id: str = "writes", history: History | None = None, **settings: Any
    ) -> None:
        from confluent_kafka import Producer

        super().__init__(topic, history)
        own = {"bootstrap.servers": bootstrap, "client.id": client_id, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(own | {"message.timeout.ms": 120_000} | IMPATIENT | settings)

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            while sent < (time.monotonic() - began) * PER_S and len(self._producer) < 5000:
                self._produce(self._producer, 0, f"{self.name}-{sent:07d}")
                sent += 1
            self._producer.poll(0.01)

    def finish(self) -> None:
        super().finish()
        self._producer.flush(FINISH_S)
        del self._producer  # librdkafka closes its connections when the last reference goes


class Transacting(Working):
    """A transactional librdkafka producer of partition 1: five values each time, of which every third is aborted."""

    def __init__(self, bootstrap: str, topic: str, direct: str, history: History, client_id: str = "writes") -> None:
        from confluent_kafka import Consumer

        super().__init__(topic, history)
        own = {"bootstrap.servers": bootstrap, "client.id": client_id, "transactional.id": f"t-{self.name}"}
        self._settings = own | IMPATIENT
        reads = {"bootstrap.servers": direct, "group.id": self.name, "isolation.level": "read_uncommitted"}
        self._log = Consumer(reads | {"log_level": 0})

    def _run(self) -> None:
        from confluent_kafka import KafkaException, Producer

        number = 0
        while True:
            # A fatal error ends a producer; the next one fences it. Once more at the end: to begin with takes until all
            # that belongs to the transaction before has been written.
            producer = Producer(self._settings)
            refused = len(self.refused)
            try:
                self._patiently(producer.init_transactions)
                while not self._stop.is_set():
                    if len(self.refused) > refused:
                        # After an abort librdkafka 2.16 reuses the sequence numbers of purged records. If the broker
                        # wrote those, it acknowledges the next records as repeats of them, and drops them.
                        refused, producer = len(self.refused), Producer(self._settings)
                        self._patiently(producer.init_transactions)
                    number += 1
                    self._transaction(producer, number)
                    producer.poll(0.05)
                self._patiently(Producer(self._settings).init_transactions)
            except KafkaException as error:
                self.refused[f"transaction {number}"] = error.args[0].name()
                producer.purge()
                with suppress(KafkaException):  # a fatal error is raised once more
                    producer.flush(1.0)  # reports what becomes of the rest
                # confluent-kafka never releases a fatal error, whose frames refer to the producer, and that keeps its
                # connections open until the last reference goes.
                clear_frames(error.__traceback__)
                del producer
            else:
                del producer
                break
        self._log.close()

    def _transaction(self, producer: Any, number: int) -> None:
        from confluent_kafka import KafkaException

        name, keeps = f"{self.name}-{number:05d}", number % 3 > 0
        producer.begin_transaction()
        try:
            for each in range(5):
                self._produce(producer, 1, f"{name}-{each}", name)
            if keeps:
                self._patiently(producer.commit_transaction)
            elif number % 2:
                producer.flush(1.0)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            keeps = False
        if not keeps:
            self._patiently(producer.abort_transaction)
        self.history.append(Event("committed" if keeps else "aborted", self.name, name, 1, self._end(), name))
        self.done += keeps

    def _patiently(self, call: Callable[[float], object]) -> None:
        """Again until it is done."""
        from confluent_kafka import KafkaException

        until_s = time.monotonic() + PROGRESS_S
        while True:
            try:
                call(5.0)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until_s:
                    raise
            else:
                return

    def _end(self) -> int | None:
        """Where the partition ends, if its broker can be asked at the moment."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            return int(self._log.get_watermark_offsets(TopicPartition(self.topic, 1), timeout=1)[1])
        except KafkaException:
            return None


def reader(bootstrap: str, topic: str, partitions: int, history: History, who: str, **settings: Any) -> Any:
    """A librdkafka consumer at the beginning of these partitions; of transactions it reads what was committed."""
    from confluent_kafka import Consumer, TopicPartition

    own = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(own | settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    history.extend(Event("assigned", who, partition=number, offset=0) for number in range(partitions))
    return consumer


def polled(who: str, message: Any) -> Event:
    return Event("polled", who, message.value().decode().rstrip("."), message.partition(), message.offset())


class Consuming(Working):
    """A librdkafka consumer of a topic from its beginning, which goes on whatever happens."""

    def __init__(self, bootstrap: str, topic: str, client_id: str, history: History, partitions: int) -> None:
        super().__init__(topic, history)
        waits = {"client.id": client_id, "fetch.wait.max.ms": 200, "fetch.error.backoff.ms": 100}
        self._consumer = reader(bootstrap, topic, partitions, self.history, self.name, **waits, **IMPATIENT)
        self.last: dict[Any, int | None] = {}

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.history.append(event := polled(self.name, message))
                self.last[event.partition] = event.offset
                self.done += 1
        self._consumer.close()


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """On one broker, kept for ever; straight at the brokers."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (future,) = admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})]).values()
    future.result(30)


def read_log(bootstrap: str, topic: str, partitions: int = 1) -> History:
    """All that is there, or was committed, straight from the brokers."""
    history: History = []
    consumer = reader(bootstrap, topic, partitions, history, "log", **{"enable.partition.eof": True})
    left, until_s = set(range(partitions)), time.monotonic() + FINISH_S
    try:
        while left:  # however many they are: it ends when none come any more
            assert time.monotonic() < until_s, f"{len(history)} records, and then no more"
            for message in consumer.consume(1000, 0.2):
                until_s = time.monotonic() + FINISH_S
                if message.error() is None:
                    history.append(polled("log", message))
                else:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    left.discard(message.partition())
    finally:
        consumer.close()
    return history


@dataclass
class Work:
    producers: list[Working]
    consuming: Consuming
    history: History

    @property
    def acknowledged(self) -> int:
        return sum(event.what == "acknowledged" for event in self.history)

    @property
    def refused(self) -> dict[str, str]:
        return {value: error for each in self.producers for value, error in each.refused.items()}

    def wait_for_progress(self, count: int = 100) -> None:
        """Of each: so many records, a twentieth of that in transactions."""
        for client in (*self.producers, self.consuming):
            client.wait_for_progress(max(count // 20, 1) if isinstance(client, Transacting) else count)


@contextmanager
def at_work(
    bootstrap: str, topic: str, direct: str, *, transactions: bool = False, client_id: str = ""
) -> Iterator[Work]:
    """Clients at work from before the block, when something has been acknowledged and read, to its end; then the log is
    read straight from the brokers, and there may be no anomaly: what was acknowledged stands where the answer said,
    once, in order; readers saw exactly what is there. With `transactions` the topic has two partitions, and the caller
    looks at the history."""
    history: History = []
    partitions = 1 + transactions
    writes, reads = (client_id, client_id) if client_id else ("writes", "reads")
    with ExitStack() as stack:
        producers: list[Working] = [stack.enter_context(Producing(bootstrap, topic, writes, history))]
        if transactions:
            producers.append(stack.enter_context(Transacting(bootstrap, topic, direct, history, writes)))
        work = Work(producers, stack.enter_context(Consuming(bootstrap, topic, reads, history, partitions)), history)
        work.wait_for_progress()
        yield work
        for producer in producers:
            producer.finish()
        log = read_log(direct, topic, partitions)
        last = {event.partition: event.offset for event in log if event.what == "polled"}
        until(lambda: work.consuming.last == last, f"the records up to {last}", FINISH_S)
        work.consuming.finish()
    history += log
    if not transactions:
        assert_clean(history)


class Held(NamedTuple):
    """What a sidecar holds, apart from what it keeps in store."""

    descriptors: int
    """Without those of pooled pipes, two each."""
    tasks: int
    reservations: int
    connections: int

    def within(self, other: Held) -> bool:
        return all(here <= there for here, there in zip(self, other, strict=True))


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


def least_held(proxy: Sidecar, looks: int = 5, enough: Held | None = None) -> Held:
    """The least of some looks, as its own questions to the cluster come and go; no more of them than it takes."""
    least = held(proxy)
    for _ in range(looks - 1):
        if enough is not None and least.within(enough):
            break
        time.sleep(LOOK_EVERY_S)
        least = Held(*map(min, least, held(proxy)))
    return least


def held_again(proxy: Sidecar, before: Held) -> Held:
    """The least that is held, once it is no more than before; or after a minute and a half."""
    return least_held(proxy, 70, before)


@contextmanager
def nothing_left_behind(proxy: Sidecar, before: Held) -> Iterator[None]:
    """Afterwards descriptors, tasks, reservations and connections come back to what they were."""
    yield
    after = held_again(proxy, before)
    assert after.within(before), f"before {before}, still {after}: {proxy.get('/connections')}"


class Charged(NamedTuple):
    """Bytes that a sidecar has charged so far."""

    produce: float
    fetch: float


def charged(proxy: Sidecar) -> Charged:
    return Charged(proxy.metric("kquota_bytes_total", kind="produce"), proxy.metric("kquota_bytes_total", kind="fetch"))
