"""Metrics of the streaming job for Prometheus, from Spark's report on each batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from analysis.errors import WrongUseError

LABEL = ["query"]


class StreamMetrics:
    """Counters and gauges, by query (`rollups`, `set-aside`, `alerts`)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"kquota_stream_{name}", text, LABEL, registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"kquota_stream_{name}", text, LABEL, registry=self.registry)

        self._batches = counter("batches", "Completed batches.")
        self._rows = counter("input_rows", "Rows read.")
        self._late = counter("late_rows", "Rows dropped because they came later than --delay.")
        self._last = gauge("last_batch_timestamp_seconds", "Start of the last batch.")
        self._duration = gauge("batch_seconds", "Duration of the last batch.")
        self._input = gauge("input_rows_per_second", "Arrival rate of rows in the last batch.")
        self._processed = gauge("processed_rows_per_second", "Processing rate of rows in the last batch.")
        self._lag = gauge("lag_messages", "Messages of the topic not read by the last batch.")
        self._state_rows = gauge("state_rows", "Ids and open minutes kept.")
        self._state_bytes = gauge("state_bytes", "Memory of these rows.")
        self._watermark = gauge("watermark_timestamp_seconds", "Minutes before this time are written.")

    def seen(self, query: str, progress: Mapping[str, Any]) -> None:
        """Process Spark's report on a batch (`StreamingQueryProgress`)."""
        state = progress["stateOperators"]
        self._batches.labels(query).inc()
        self._rows.labels(query).inc(progress["numInputRows"])
        self._late.labels(query).inc(late_rows(progress))
        self._last.labels(query).set(_seconds(progress["timestamp"]))
        self._duration.labels(query).set(progress["durationMs"].get("triggerExecution", 0) / 1000)
        for gauge, name in ((self._input, "inputRowsPerSecond"), (self._processed, "processedRowsPerSecond")):
            value = progress.get(name)
            gauge.labels(query).set(0.0 if value is None else value)
        if state:
            self._state_rows.labels(query).set(sum(int(one["numRowsTotal"]) for one in state))
            self._state_bytes.labels(query).set(sum(int(one["memoryUsedBytes"]) for one in state))
        watermark = progress.get("eventTime", {}).get("watermark")
        if watermark is not None:
            self._watermark.labels(query).set(_seconds(watermark))
        lag = lag_messages(progress)
        if lag is not None:
            self._lag.labels(query).set(lag)

    def serve(self, address: tuple[str, int]) -> int:
        """Answer at `http://HOST:PORT/metrics`, in a thread. Returns the port. Raises WrongUseError if it is taken."""
        host, port = address
        try:
            server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            raise WrongUseError(f"--metrics {host}:{port}: {error.strerror or error}") from None
        return int(server.server_port)


def late_rows(progress: Mapping[str, Any]) -> int:
    """Rows that one batch dropped because they came too late."""
    return sum(int(one["numRowsDroppedByWatermark"]) for one in progress["stateOperators"])


def lag_messages(progress: Mapping[str, Any]) -> int | None:
    """How many messages of its topics a batch has left; None if the source is not a topic."""
    found = None
    for source in progress["sources"]:
        last, read = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
        if last is not None and read is not None:
            left = sum(max(offset - read.get(place, 0), 0) for place, offset in last.items())
            found = left if found is None else found + left
    return found


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """Kafka's offsets by topic and partition. Spark reports them as an object, or as the text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping) or not all(isinstance(one, Mapping) for one in value.values()):
        return None
    return {(topic, part): int(offset) for topic, parts in value.items() for part, offset in parts.items()}


def listen_address(text: str) -> tuple[str, int]:
    """``9405`` or ``0.0.0.0:9405``; without a host, loopback only. Raises WrongUseError."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise WrongUseError(f"--metrics {text}: expected PORT or HOST:PORT, such as 0.0.0.0:9405")
    return host.strip("[]") or "127.0.0.1", int(port)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
