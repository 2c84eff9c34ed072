"""The exporter of usage records: intervals aligned to the wall clock, sampled every second, passed to the sinks."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from config.model import Config
from config.sections import Export
from proxy.app.common.checkpoints import with_checkpoints
from proxy.app.export.files import FileSink
from proxy.app.export.rows import Sampler
from proxy.app.export.topic import TopicSink
from proxy.app.export.worker import Batch, Worker
from quota.ledger import Ledger
from quota.record import to_line

log = structlog.get_logger("kquota.export")

TICK_S: Final = 1.0
BATCH_BYTES: Final = 1_000_000
JITTER_MS: Final = 100
"""Wall clock and monotonic clock may differ by this much over an interval without the clock having been set."""
ROTATE_BYTES: Final = 64 * 1024 * 1024
BUFFER_BYTES: Final = 16 * 1024 * 1024
"""Buffer of each sink, while its disk is full or its topic is down; the oldest records are dropped."""
END_S: Final = 5.0
"""On a drain, how long the sinks have for what is queued."""

wall_s = time.time
VARIABLES: Final[Mapping[str, str]] = {
    "cluster_id": "KQUOTA_CLUSTER_ID",
    "namespace": "KQUOTA_POD_NAMESPACE",
    "pod": "KQUOTA_POD_NAME",
}
"""Environment variables that replace settings not in the file (Kubernetes' downward API)."""


class Exporter:
    """Writes the usage records of one sidecar. Create it at the start: its totals begin with the ledger's."""

    def __init__(
        self,
        ledger: Ledger,
        workers: list[Worker],
        interval_s: float,
        constants: Mapping[str, str | None],
        files: FileSink | None = None,
    ) -> None:
        self.workers = workers
        self._interval_s = interval_s
        self.files = files
        self._start_s = trio.current_time()
        self.sampler = Sampler(ledger, constants, self._start_s * 1000.0)
        self._end_ms = round(wall_s() * 1000)
        self._sequence = 1
        self.failures = 0
        """Intervals that could not be assembled: an internal error."""
        self._stop = trio.Event()
        self._stopped = trio.Event()

    @property
    def delivering(self) -> bool:
        """Whether a sink's thread is at work, such as one that was not done in time."""
        return any(not worker.done.is_set() for worker in self.workers)

    async def run(self) -> None:
        """Sample and write until `finish` is called."""
        for worker in self.workers:
            worker.start()
        try:
            ending_s = self._end_of_interval()
            while not self._stop.is_set():
                await self._wait(ending_s)
                if not await self._work(self.sampler.tick(trio.current_time() * 1000.0)):
                    continue
                if self._stop.is_set() or trio.current_time() >= ending_s:
                    await self._work(self._close())
                    ending_s = self._end_of_interval()
        except Exception:  # an internal error ends the export, never the traffic
            self.failures += 1
            log.exception("usage records stopped: internal error")
        finally:
            for worker in self.workers:
                worker.end(END_S)
            self._stopped.set()

    async def finish(self) -> None:
        """Write the interval that has begun, and wait until the sinks have delivered everything (at most 6 s)."""
        self._stop.set()
        await self._stopped.wait()
        limit_s = time.monotonic() + END_S + 1.0
        while self.delivering:
            if time.monotonic() >= limit_s:
                left = {worker.name: worker.pending_bytes for worker in self.workers}
                log.error("usage records were not all written in time", pending_bytes=left)
                return
            await trio.sleep(0.01)
        dropped = sum(worker.dropped for worker in self.workers)
        if dropped:
            log.warning("usage records were lost", records=dropped)

    def _end_of_interval(self) -> float:
        """When the interval that begins now ends: at a multiple of its length on the wall clock."""
        left_s = self._interval_s - wall_s() % self._interval_s
        if left_s < self._interval_s / 2:
            left_s += self._interval_s
        return self._start_s + left_s

    async def _wait(self, ending_s: float) -> None:
        """Wait for the next tick; the last one ends the interval, after half a second to one and a half."""
        left_s = max(ending_s - trio.current_time(), 0.0)  # past it if the loop was blocked
        with trio.move_on_after(left_s if left_s < 1.5 * TICK_S else TICK_S):
            await self._stop.wait()

    def _close(self) -> Iterator[None]:
        now_s, end_ms = trio.current_time(), round(wall_s() * 1000)
        duration_s = now_s - self._start_s
        start_ms = end_ms - round(duration_s * 1000)
        if abs(start_ms - self._end_ms) <= JITTER_MS:
            start_ms = min(self._end_ms, end_ms)  # the clock was not set: intervals follow without a gap
        self._start_s, self._end_ms = now_s, end_ms
        partition = partition_of((start_ms + end_ms) / 2)
        lines: list[bytes] = []
        size = 0
        for row in self.sampler.close(start_ms, end_ms, duration_s):
            if row is not None:
                line = to_line(row)
                lines.append(line)
                size += len(line)
                if size >= BATCH_BYTES:
                    self._hand_over(lines, end_ms, partition)
                    lines, size = [], 0
            yield
        if lines:
            self._hand_over(lines, end_ms, partition)

    def _hand_over(self, lines: list[bytes], end_ms: int, partition: str) -> None:
        for worker in self.workers:
            worker.offer(Batch(list(lines), self._sequence, end_ms, partition))
        self._sequence += len(lines)

    async def _work(self, steps: Iterator[None]) -> bool:
        """Take all steps, with checkpoints. False: one failed, which was logged."""
        try:
            async for _ in with_checkpoints(steps):
                pass
        except Exception:  # the export must not end the traffic
            self.failures += 1
            log.exception("usage of an interval not computed: internal error")
            await trio.sleep(TICK_S)
            return False
        return True


def partition_of(wall_ms: float) -> str:
    """The directories of records at this time: ``date=YYYY-MM-DD/hour=HH``, UTC."""
    return datetime.fromtimestamp(wall_ms / 1000.0, UTC).strftime("date=%Y-%m-%d/hour=%H")


def place_of(settings: Export | None, environment: Mapping[str, str]) -> dict[str, str | None]:
    """The names of the cluster, the namespace and the pod."""
    names = {name: getattr(settings, name, None) or environment.get(own) or None for name, own in VARIABLES.items()}
    return names | {"pod": names["pod"] or socket.gethostname()}


def constants(settings: Export, instance: str, version: str, environment: Mapping[str, str]) -> dict[str, str | None]:
    """The fields that are the same in all records of a sidecar."""
    return {"instance": instance, "kquota_version": version, **place_of(settings, environment)}


def new_exporter(
    config: Config, ledger: Ledger, version: str, security: Callable[[], Mapping[str, Any]] = dict
) -> Exporter | None:
    """The exporter of a sidecar, None without one. `security()`: what kafka-python's producer needs to connect."""
    settings = config.export
    if settings is None:
        return None
    instance, workers, files = uuid.uuid4().hex, [], None
    if settings.directory is not None:
        files = FileSink(Path(settings.directory), instance, settings.rotate_s, ROTATE_BYTES, settings.keep_bytes)
        workers.append(Worker("files", files, BUFFER_BYTES))
    if settings.kafka_topic is not None:
        bootstrap = [str(address) for address in config.upstream.bootstrap]
        topic = TopicSink(settings.kafka_topic, instance, bootstrap, security)
        workers.append(Worker("topic", topic, BUFFER_BYTES))
    same = constants(settings, instance, version, os.environ)
    return Exporter(ledger, workers, settings.interval_s, same, files)
