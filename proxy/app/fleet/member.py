"""One instance of a fleet: its topic, by kafka-python in a thread of its own, connected to the brokers directly; and
the task that passes records to the arithmetic and shares to the ledger."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio
import trio.lowlevel

from config.model import Config
from config.sections import FleetSection as FleetSettings
from proxy.app.common.checkpoints import with_checkpoints
from proxy.app.sources.security import FleetKeys, Security
from quota.fleet.core import Fleet
from quota.fleet.record import MAX_BYTES, Seal
from quota.fleet.shares import Shares
from quota.fleet.timing import Timing
from quota.ledger import Ledger

log = structlog.get_logger("kquota.fleet")

CLIENT_ID: Final = "kquota-fleet"
POLL_INTERVAL_S: Final = 0.2
"""Records are sent and read this often, so there are at most five fetches per second from each broker."""
STALE_S: Final = 2.0
METADATA_AGE_MS: Final = 60_000
"""Partitions that were added are noticed after this time."""
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Queued for the event loop, a kilobyte for each record included; while there is more, nothing is read."""
_RECORD_BYTES: Final = 1024
MAX_FETCH_BYTES: Final = 4 * 1024 * 1024
"""Of one broker's answer."""
QUIET_INTERVALS: Final = 15
"""Every instance announces itself at least each tenth interval: when nothing is read for this many, connections are
reopened, as a client library does not report that a topic was deleted."""
RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 3.0
PARTITIONS: Final = 8
"""Of a topic that is created here for the first time. Groups are spread over them."""
RETENTION_MS: Final = 300_000
TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": str(RETENTION_MS),
    "segment.ms": str(RETENTION_MS),
    "segment.bytes": str(16 * 1024 * 1024),
    "max.message.bytes": str(MAX_BYTES + 1000),
    "compression.type": "uncompressed",  # what anybody writes is as small in memory as max.message.bytes says
}
TICKS: Final = 4
END_S: Final = 1.5
"""On a drain, how long the last record may take."""
WARN_INTERVAL_MS: Final = 60_000


class TopicError(Exception):
    """The topic cannot be used; the message says why and what helps."""


@dataclass(slots=True)
class ExchangeState:
    """For /metrics."""

    connected: bool = False
    error: str | None = None
    sent: int = 0
    sent_bytes: int = 0
    stale: int = 0
    received: int = 0
    received_bytes: int = 0


def _creating_no_topics(**settings: Any) -> Any:
    """A client for which brokers create no topic: a deleted one would have their one partition, and their settings.
    kafka-python 3.0 ignores its setting `allow_auto_create_topics`."""
    from kafka.net.compat import KafkaNetClient

    client = KafkaNetClient(**settings)
    client.cluster.config["allow_auto_create_topics"] = False
    return client


class Exchange:
    """Publishes records and collects those of all instances. Belongs to the event loop; `start` starts the thread."""

    def __init__(
        self, settings: FleetSettings, bootstrap: Sequence[str], security: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        """`security()` returns what kafka-python needs to connect, as of now."""
        self._settings = settings
        self._bootstrap = list(bootstrap)
        self._security = security
        self._outgoing: deque[tuple[float, int, bytes]] = deque(maxlen=1000)
        self._received: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = self._taken_bytes = 0
        """In all; each is written by one side only."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kquota-fleet", daemon=True)
        self._consumer: Any = None
        self._producer: Any = None
        self._assigned: frozenset[int] = frozenset()
        self._heard_s = 0.0
        self.wanted: frozenset[int] = frozenset()
        self._most = 0
        self.partitions = 0
        """The topic's number of partitions; 0 while that is unknown."""
        self.topic_id: bytes | None = None
        self.not_sent: str | None = None
        """Why the last record is not on the topic; None: it is."""
        self.state: Final = ExchangeState()

    # ---- the event loop's side --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, which imports kafka-python."""
        self._thread.start()

    def publish(self, partition: int, data: bytes) -> None:
        """Queue a record to be sent."""
        self._outgoing.append((time.monotonic(), partition, data))

    def take(self) -> list[tuple[int, bytes]]:
        """The records read since the last call."""
        found = [self._received.popleft() for _ in range(len(self._received))]
        self._taken_bytes += sum([len(data) + _RECORD_BYTES for _, data in found])
        return found

    def stop(self) -> None:
        """Send what is queued, then end; does not wait for it."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_s = RETRY_S
        while not self._stopping.is_set():
            try:
                self._connect()
                retry_s = RETRY_S
                while not self._stopping.is_set():
                    self._exchange_records()
                self._send()
                self._producer.flush(timeout=1.0)
            except Exception as error:  # mostly KafkaError; no error of the library may end the traffic
                self._failed(error)
            self._close_clients()
            self._stopping.wait(retry_s)
            retry_s = min(retry_s * 2, LONGEST_RETRY_S)

    def _connect(self) -> None:
        from kafka import KafkaConsumer, KafkaProducer

        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters of it comes back as an exception
        common = {
            "bootstrap_servers": self._bootstrap,
            "client_id": CLIENT_ID,
            "bootstrap_timeout_ms": 5_000,
            "reconnect_backoff_max_ms": 1_000,
            "request_timeout_ms": 10_000,
            **self._security(),
        }
        count = self._ensure_topic(common)
        self._producer = KafkaProducer(
            acks=1,
            enable_idempotence=False,  # needs a permission that producers usually lack; duplicates have their number
            retries=0,  # an old record is worth nothing, the next one supersedes it
            linger_ms=0,
            max_block_ms=2_000,
            metadata_max_age_ms=METADATA_AGE_MS,
            kafka_client=_creating_no_topics,
            delivery_timeout_ms=11_000,
            metrics_enabled=False,
            **common,
        )
        self._consumer = KafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            kafka_client=_creating_no_topics,
            fetch_max_wait_ms=200,  # a partition that becomes wanted is read at the latest after this time
            max_partition_fetch_bytes=512 * 1024,
            fetch_max_bytes=MAX_FETCH_BYTES,
            metrics_enabled=False,
            **common,
        )
        self._assigned = frozenset()
        self._heard_s = time.monotonic()
        self.partitions = self.partitions or count
        self._check_count(count)

    def _check_count(self, count: int) -> None:
        """Warn once of partitions that were added: instances that started since then use them all."""
        if count > max(self.partitions, self._most):
            self._most = count
            log.warning(
                "the fleet's topic has more partitions: restart all instances",
                topic=self._settings.topic,
                partitions=count,
                used=self.partitions,
            )

    def _ensure_topic(self, common: Mapping[str, Any]) -> int:
        """The topic's number of partitions; it is created if missing. Raises TopicError."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic
        from kafka.errors import KafkaError, TopicAlreadyExistsError

        settings, wanted = self._settings, self.partitions or PARTITIONS
        admin = KafkaAdminClient(**common)
        try:
            for _ in range(10):
                found = self._count(admin)
                if found and found < self.partitions:
                    found = self._restore_partitions(admin)
                if found:
                    self._check_compression(admin)
                    return found
                if not settings.create_topic:
                    raise TopicError(f"topic {settings.topic} not found. {self._command()}")
                copies = settings.replication_factor or -1
                try:
                    admin.create_topics([NewTopic(settings.topic, wanted, copies, topic_configs=dict(TOPIC_CONFIG))])
                    log.info("the fleet's topic was created", topic=settings.topic, partitions=wanted)
                except TopicAlreadyExistsError:
                    pass  # another instance was faster
                except KafkaError as error:
                    reason = f"topic {settings.topic} is missing and cannot be created: {type(error).__name__}: {error}"
                    raise TopicError(f"{reason}. {self._command()}") from error
                if self._stopping.wait(0.3):
                    break
            raise TopicError(f"topic {settings.topic} was created, but the brokers do not know it yet")
        finally:
            with suppress(Exception):
                admin.close()

    def _count(self, admin: Any) -> int:
        topic = self._settings.topic
        found = admin.describe_topics([topic]) if topic in admin.list_topics() else []
        if not found:
            return 0
        topic_id = uuid.UUID(found[0].get("topic_id") or "0" * 32)
        self.topic_id = topic_id.bytes if topic_id.int else None  # brokers older than 2.8 send none
        return len(found[0]["partitions"])

    def _restore_partitions(self, admin: Any) -> int:
        """The topic was recreated with fewer partitions. Raises TopicError if it may not be altered."""
        from kafka.errors import KafkaError

        topic, wanted = self._settings.topic, self.partitions
        try:
            admin.create_partitions({topic: wanted})
        except KafkaError as error:
            found = self._count(admin)
            if found >= wanted:  # another instance was faster
                return found
            raise TopicError(
                f"topic {topic} has {found} partitions and had {wanted}: {type(error).__name__}: {error}. To "
                f"restore them: kafka-topics.sh --bootstrap-server {self._bootstrap[0]} --alter "
                f"--topic {topic} --partitions {wanted}"
            ) from error
        log.info("partitions of the fleet's topic restored", topic=topic, partitions=wanted)
        return wanted

    def _check_compression(self, admin: Any) -> None:
        """Warn of a topic that takes compressed records: 300 kB of them may be 300 MB here."""
        from kafka.admin import ConfigResource, ConfigResourceType

        topic = self._settings.topic
        with suppress(Exception):  # without the permission to ask, nothing can be said
            resources = [ConfigResource(ConfigResourceType.TOPIC, topic)]
            found = admin.describe_configs(resources, config_filter="all")["topic"][topic]
            if found["compression.type"]["value"] != TOPIC_CONFIG["compression.type"]:
                log.warning(
                    "the fleet's topic accepts compressed records",
                    topic=topic,
                    command=f"kafka-configs.sh --bootstrap-server {self._bootstrap[0]} --alter --topic {topic} "
                    f"--add-config compression.type={TOPIC_CONFIG['compression.type']}",
                )

    def _command(self) -> str:
        settings = self._settings
        configs = " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIG.items())
        replication = settings.replication_factor
        copies = "" if replication is None else f" --replication-factor {replication}"
        return (
            "If it exists, grant Describe on it, else create it: "
            f"kafka-topics.sh --bootstrap-server {self._bootstrap[0]} --create "
            f"--topic {settings.topic} --partitions {self.partitions or PARTITIONS}{copies} {configs}"
        )

    def _exchange_records(self) -> None:
        if self.wanted != self._assigned:
            self._assign(self.wanted)
        self._send()
        self._check_count(len(self._producer.partitions_for(self._settings.topic)))
        start = time.monotonic()
        if self._assigned and self._queued_bytes - self._taken_bytes < MAX_WAITING_BYTES:
            self._poll()
            quiet_s = time.monotonic() - self._heard_s
            if quiet_s > QUIET_INTERVALS * self._settings.interval_s:
                text = f"nothing could be read from topic {self._settings.topic} for {quiet_s:.0f} s"
                raise TopicError(text if self.not_sent is None else f"{text}; last record not written: {self.not_sent}")
        # A poll with a result returns at once: without a pause each record would be a fetch of its own.
        self._stopping.wait(max(POLL_INTERVAL_S - (time.monotonic() - start), 0.0))

    def _assign(self, wanted: frozenset[int]) -> None:
        from kafka import TopicPartition

        topic = self._settings.topic
        positions = {number: self._consumer.position(TopicPartition(topic, number)) for number in self._assigned}
        partitions = {number: TopicPartition(topic, number) for number in wanted}
        self._consumer.assign(list(partitions.values()))
        new = [partition for number, partition in partitions.items() if positions.get(number) is None]
        ends = self._consumer.end_offsets(new) if new else {}
        for number, partition in partitions.items():
            # From the end on: older records may be of instances that are long gone, and their age is unknown.
            known = positions.get(number)
            self._consumer.seek(partition, ends[partition] if known is None else known)
        self._assigned = wanted

    def _send(self) -> None:
        state = self.state
        while self._outgoing:
            queued_s, partition, data = self._outgoing.popleft()
            if time.monotonic() - queued_s > STALE_S:
                state.stale += 1
                continue
            sent = self._producer.send(self._settings.topic, value=data, partition=partition)
            sent.add_callback(self._written).add_errback(self._written)
            state.sent += 1
            state.sent_bytes += len(data)

    def _written(self, result: Any) -> None:
        """A record has been written, or not; called in the producer's thread."""
        self.not_sent = f"{type(result).__name__}: {result}" if isinstance(result, Exception) else None

    def _poll(self) -> None:
        state = self.state
        found = self._consumer.poll(timeout_ms=int(POLL_INTERVAL_S * 1000), max_records=2000)
        for partition, records in found.items():
            for record in records:
                value = record.value or b""
                state.received += 1
                state.received_bytes += len(value)
                self._queued_bytes += len(value) + _RECORD_BYTES
                self._received.append((partition.partition, value))
        if found:
            self._heard_s = time.monotonic()
        if found and not state.connected:
            state.connected, state.error = True, None
            log.info("reading the fleet's topic", topic=self._settings.topic, partitions=sorted(self._assigned))

    def _failed(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, TopicError) else f"{type(error).__name__}: {error}"
        if text != self.state.error:
            log.error("cannot use the fleet's topic", topic=self._settings.topic, error=text)
        self.state.error, self.state.connected = text, False

    def _close_clients(self) -> None:
        producer, consumer = self._producer, self._consumer
        self._producer = self._consumer = None
        for client, settings in ((producer, {"timeout": 0.5}), (consumer, {})):
            if client is not None:
                with suppress(Exception):
                    client.close(**settings)


class Member:
    """Takes part in the fleet until it is stopped."""

    def __init__(
        self,
        settings: FleetSettings,
        ledger: Ledger,
        exchange: Exchange,
        keys: FleetKeys,
        now_ms: Callable[[], float],
        name: str,
    ) -> None:
        self.settings: Final = settings
        self.exchange: Final = exchange
        self._keys = keys
        self._used = keys.current
        self._now_ms = now_ms
        now, kept = now_ms(), ledger.settings
        timing = Timing(
            interval_ms=round(settings.interval_s * 1000), window_ms=(kept.num_samples - 1) * kept.window_ms
        )
        self.fleet: Final = Fleet(
            self._seal(), secrets.randbits(64), name, now, timing=timing, at_least=settings.instances
        )
        self.shares: Final = Shares(ledger, self.fleet, now)
        self._connected = self._lost = False
        self._renumbered = 0
        self._warned: tuple[int, int, int] = (0, 0, 0)
        self._warned_ms = -math.inf

    async def run(self) -> None:
        """Work until cancelled."""
        self.exchange.start()
        while True:
            try:
                await self._step()
            except Exception:  # an internal error must not end the traffic
                log.exception("the fleet's split not computed: internal error")
            await trio.sleep(self.settings.interval_s / TICKS)

    def _seal(self) -> Seal:
        return Seal(self._used, self.settings.topic, self.settings.id)

    async def _step(self) -> None:
        exchange, fleet = self.exchange, self.fleet
        if self._keys.current is not self._used:
            self._used = self._keys.current
            fleet.seal = self._seal()
        fleet.epoch_ms = time.time() * 1000 - self._now_ms()
        if exchange.partitions and not self._connected:
            self._connected = True
            fleet.connected(exchange.partitions)
        async for partition, data in with_checkpoints(exchange.take()):
            fleet.read(partition, data, self._now_ms())
        steps = self.shares.steps(self._now_ms())
        try:
            while True:
                next(steps)
                await trio.lowlevel.checkpoint()
        except StopIteration as end:
            for partition, data in end.value:
                exchange.publish(partition, data)
        exchange.wanted = fleet.wanted
        self._report()

    def _report(self) -> None:
        fleet = self.fleet
        if fleet.lost != self._lost:
            self._lost = fleet.lost
            if self._lost:
                log.warning(
                    "no contact with the fleet: this instance cannot read its own records back, so each fleet limit is "
                    "divided by the number of known instances",
                    instances=fleet.known,
                    error=self.exchange.state.error or self.exchange.not_sent,
                )
            else:
                log.info("contact with the fleet is restored", instances=fleet.known)
        if fleet.renumbered != self._renumbered:
            self._renumbered = fleet.renumbered
            log.warning("another instance uses this one's number in the fleet: switched to a new number")
        ignored = fleet.ignored
        found = (ignored["bad_mac"], ignored["outdated"], ignored["other_version"])
        if found != self._warned and self._now_ms() >= self._warned_ms + WARN_INTERVAL_MS:
            bad_mac, outdated, other_version = (now - was for now, was in zip(found, self._warned, strict=True))
            self._warned, self._warned_ms = found, self._now_ms()
            log.warning(
                "records on the fleet's topic are ignored",
                topic=self.settings.topic,
                bad_mac=bad_mac,
                outdated=outdated,
                other_version=other_version,
            )

    def leave(self) -> None:
        """Announce that this instance leaves: the others may use its share now."""
        for partition, data in self.shares.leave(self._now_ms()):
            self.exchange.publish(partition, data)
        self.exchange.stop()

    async def finish(self) -> None:
        """Wait until that record has been sent."""
        await trio.to_thread.run_sync(self.exchange.join, END_S, abandon_on_cancel=True)


def new_member(config: Config, ledger: Ledger, security: Security, now_ms: Callable[[], float]) -> Member | None:
    """The member of the configured fleet; None without one."""
    settings, keys = config.fleet, security.fleet_keys
    if settings is None or keys is None:
        return None
    bootstrap = [str(address) for address in config.upstream.bootstrap]
    name = os.environ.get("KQUOTA_POD_NAME") or socket.gethostname()
    return Member(settings, ledger, Exchange(settings, bootstrap, security.producer_settings), keys, now_ms, name)
