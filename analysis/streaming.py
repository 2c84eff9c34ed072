"""`kquota report stream`: live records, from Kafka or files, into one-minute `rollups` (each row exactly once),
`alerts`, which follow committed rollups, and `set-aside` rows: a query each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from analysis.columns import CLIENT, cluster, sums
from analysis.errors import ReportError, WrongUseError
from analysis.files import file_system
from analysis.intake import parse
from analysis.kinds import AMOUNTS, DELAYED, SECONDS
from quota.entity import Kind
from quota.record import IDENTITY

LABEL = ["query"]
_COUNTERS = {
    "batches": "Completed batches.",
    "input_rows": "Rows read.",
    "late_rows": "Rows dropped because they came later than --delay.",
}
_GAUGES = {
    "last_batch_timestamp_seconds": "Start of the last batch.",
    "batch_seconds": "Duration of the last batch.",
    "input_rows_per_second": "Arrival rate of rows in the last batch.",
    "processed_rows_per_second": "Processing rate of rows in the last batch.",
    "lag_messages": "Messages of the topic not read by the last batch.",
    "state_rows": "Record ids and unwritten minutes in Spark's state.",
    "state_bytes": "Memory of these rows.",
    "watermark_timestamp_seconds": "Minutes before this time are written.",
}
MINUTE = "1 minute"
DELAYED_S = 10.0
"""Delay of a client in a minute that causes an alert."""
NEAR = 0.95
"""Fraction of a limit that causes an alert."""
POLL_S = 0.5
_SUMS = (*AMOUNTS.values(), "requests", "mutes", "mutes_ignored")


class StreamMetrics:
    """Counters and gauges, by query (`rollups`, `set-aside`, `alerts`)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        given: dict[str, Any] = {"labelnames": LABEL, "registry": self.registry}
        self._counters = {name: Counter(f"kquota_stream_{name}", text, **given) for name, text in _COUNTERS.items()}
        self._gauges = {name: Gauge(f"kquota_stream_{name}", text, **given) for name, text in _GAUGES.items()}

    def seen(self, query: str, progress: Mapping[str, Any]) -> None:
        """Process Spark's report on a batch (`StreamingQueryProgress`)."""
        state, watermark = progress["stateOperators"], progress.get("eventTime", {}).get("watermark")
        rows = {"batches": 1, "input_rows": progress["numInputRows"], "late_rows": late_rows(progress)}
        for name, number in rows.items():
            self._counters[name].labels(query).inc(number)
        figures = {
            "last_batch_timestamp_seconds": _seconds(progress["timestamp"]),
            "batch_seconds": progress["durationMs"].get("triggerExecution", 0) / 1000,
            "input_rows_per_second": progress.get("inputRowsPerSecond") or 0.0,
            "processed_rows_per_second": progress.get("processedRowsPerSecond") or 0.0,
            "state_rows": sum(int(one["numRowsTotal"]) for one in state) if state else None,
            "state_bytes": sum(int(one["memoryUsedBytes"]) for one in state) if state else None,
            "watermark_timestamp_seconds": None if watermark is None else _seconds(watermark),
            "lag_messages": lag_messages(progress),
        }
        for name, figure in figures.items():
            if figure is not None:
                self._gauges[name].labels(query).set(figure)

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
    """How many messages of its topic a batch has left; None if the source is not a topic."""
    (source,) = progress["sources"]
    latest: dict[str, dict[str, int]] | None = source["latestOffset"]
    read: dict[str, dict[str, int]] | None = source["endOffset"]
    if latest is None or read is None:
        return None
    return sum(
        max(offset - read.get(topic, {}).get(part, 0), 0)
        for topic, parts in latest.items()
        for part, offset in parts.items()
    )


def listen_address(text: str) -> tuple[str, int]:
    """``9405`` or ``0.0.0.0:9405``; without a host, loopback only. Raises WrongUseError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise WrongUseError(f"--metrics {text}: expected PORT or HOST:PORT, such as 0.0.0.0:9405")
    return host.strip("[]") or "127.0.0.1", int(port)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a stream."""

    source: str
    """``kafka://host:port[,host:port]/topic`` or a directory."""
    output: str
    alerts: str | None = None
    """``kafka://…`` or None: no alerts."""
    delay: str = "10 minutes"
    """How late records may come; later ones are dropped, and counted."""
    trigger: str = "30 seconds"
    once: bool = False
    rows_per_batch: int | None = None
    """At most this many offsets (files of a directory) per batch."""
    kafka: Mapping[str, str] = field(default_factory=dict)


def is_kafka(place: str | None) -> bool:
    """Whether a source or sink is a topic."""
    return place is not None and place.startswith("kafka://")


def address(place: str) -> tuple[str, str]:
    """(bootstrap servers, topic) of ``kafka://…/topic``. Raises WrongUseError."""
    parts = urlsplit(place)
    topic = parts.path.strip("/")
    if not parts.netloc or not topic or "/" in topic:
        raise WrongUseError(f"{place}: expected kafka://host:port[,host:port]/topic")
    return parts.netloc, topic


def read_properties(path: str | None) -> dict[str, str]:
    """A file of `name=value` lines, as for --command-config of Kafka's tools. Raises WrongUseError."""
    if path is None:
        return {}
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUseError(f"--kafka-config {path}: cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():  # the line itself may be half of a password
            raise WrongUseError(f"--kafka-config {path}: line {number}: expected name=value")
        found[name.strip()] = value.strip()
    return found


def lines(spark: SparkSession, settings: StreamSettings) -> DataFrame:
    """The source as text lines: `value`, and `file`, its origin. Raises WrongUseError."""
    reader = spark.readStream
    if (most := settings.rows_per_batch) is not None:
        reader = reader.options(maxOffsetsPerTrigger=most, maxFilesPerTrigger=most)
    if is_kafka(settings.source):
        servers, topic = address(settings.source)
        options = _kafka(settings, servers) | {"subscribe": topic, "startingOffsets": "earliest"}
        records = reader.format("kafka").options(**options).load()
        origin = F.concat_ws("@", F.concat_ws("-", "topic", "partition"), "offset")
        return records.select(F.col("value").cast("string"), origin.alias("file"))
    system, path = file_system(spark, settings.source)
    if not system.globStatus(path):
        raise WrongUseError(f"--input {settings.source}: no directory there")
    text = reader.option("recursiveFileLookup", True).text(settings.source)
    return text.select("value", F.col("_metadata.file_path").alias("file"))


def rollups(text: DataFrame, delay: str) -> DataFrame:
    """One row per client and minute, once the minute is over and `delay` has passed by the records' own clock;
    duplicates are recognised for at least `delay`."""
    middle = F.timestamp_millis(((F.col("start_ms") + F.col("end_ms")) / 2).cast("long"))
    # A sidecar whose clock is ahead would make the records of all others late.
    arrived = F.least(middle, F.current_timestamp())
    records = parse(text).where("reason IS NULL").withColumns({"cluster_id": cluster(), "time": arrived})
    once = records.withWatermark("time", delay).dropDuplicatesWithinWatermark(list(IDENTITY))
    peaks = [f"{kind}_group_utilisation_peak" for kind in Kind]
    per_minute = once.groupBy(F.window("time", MINUTE).alias("window"), *CLIENT).agg(
        F.count("*").alias("records"),
        F.approx_count_distinct("instance").alias("sidecars"),
        *sums(_SUMS),
        F.expr(f"sum({DELAYED['requests_delayed']}) AS delayed_requests"),
        *sums(SECONDS),
        F.expr(f"sum({DELAYED['delayed_seconds']}) AS delayed_seconds"),
        F.max(F.greatest(*peaks)).alias("utilisation_peak"),
    )
    minute = F.col("window.start")
    return per_minute.select(minute.alias("minute"), "*", F.to_date(minute).alias("date")).drop("window")


def alerts(rolled: DataFrame) -> DataFrame:
    """Rollups -> messages (`key`, `value`): who is throttled, or near a limit. Equal alerts have equal `id`s."""
    delayed = F.when(F.col("delayed_seconds") >= DELAYED_S, "delayed")
    near = F.when(F.col("utilisation_peak") >= NEAR, "near_limit")
    each = rolled.withColumn("alert", F.explode(F.array_compact(F.array(delayed, near))))
    minute = F.date_format("minute", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    body = F.struct(
        F.sha2(F.to_json(F.struct("alert", *CLIENT, minute)), 256).alias("id"),
        "alert",
        *CLIENT,
        minute.alias("minute"),
        "delayed_requests",
        "delayed_seconds",
        "utilisation_peak",
    )
    return each.select(F.concat_ws("/", *CLIENT).alias("key"), F.to_json(body).alias("value"))


def start(spark: SparkSession, settings: StreamSettings, stop: Event | None = None) -> list[StreamingQuery]:
    """Start the queries, which resume from checkpoints below `output`. With `once`, alerts start when the rollups are
    complete, or not at all when `stop` is set before that."""
    stop = stop or Event()
    text = lines(spark, settings)
    aside = parse(text).where("reason IS NOT NULL").select("reason", "file", "raw")
    rolled = rollups(text, settings.delay)
    started: list[StreamingQuery] = [
        _writer(rolled, settings, "rollups").format("parquet").partitionBy("date").start(f"{settings.output}/rollups"),
        _writer(aside, settings, "set-aside").format("json").start(f"{settings.output}/set-aside"),
    ]
    if settings.alerts is not None:
        while settings.once and any(query.isActive for query in started):
            if stop.wait(POLL_S):
                return started
        # The sink creates its directory with its first batch; until then there is nothing to follow.
        system, path = file_system(spark, f"{settings.output}/rollups")
        system.mkdirs(path)
        followed = spark.readStream.schema(rolled.schema).parquet(f"{settings.output}/rollups")
        servers, topic = address(settings.alerts)
        writer = _writer(alerts(followed), settings, "alerts").format("kafka").options(**_kafka(settings, servers))
        started.append(writer.option("topic", topic).start())
    return started


def _kafka(settings: StreamSettings, servers: str) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in settings.kafka.items()} | {"kafka.bootstrap.servers": servers}


def _writer(frame: DataFrame, settings: StreamSettings, name: str) -> Any:
    writer = frame.writeStream.queryName(name).outputMode("append")
    writer = writer.option("checkpointLocation", f"{settings.output}/_checkpoints/{name}")
    return writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime=settings.trigger)


def follow(
    queries: list[StreamingQuery],
    say: Any,
    metrics: StreamMetrics,
    stop: Event | None = None,
    *,
    every_s: float = 1.0,
) -> None:
    """Report what the queries do until all have ended, or `stop` is set: then they end without their current batch.
    Raises ReportError when one fails."""
    stop = stop or Event()
    reported: dict[str, int] = {}
    while True:
        active = any(query.isActive for query in queries)
        for query in queries:
            for progress in query.recentProgress:
                if progress["batchId"] <= reported.get(query.name, -1):
                    continue
                reported[query.name] = progress["batchId"]
                # Spark 3.5 gives what it reports; later ones a dict in which offsets are texts of Python.
                metrics.seen(query.name, json.loads(progress.json) if hasattr(progress, "json") else progress)
                late = late_rows(progress)
                if progress["numInputRows"] or late:
                    dropped = f", {late} came too late and were dropped" if late else ""
                    say(f"{query.name}: batch {progress['batchId']}, {progress['numInputRows']} rows{dropped}")
            error = query.exception()
            if error is not None:
                raise ReportError(f"{query.name} failed: {str(error).strip().splitlines()[0]}")
        if not active:
            return
        if stop.wait(every_s):
            break
    for query in queries:
        query.stop()
    say("stopped; the next start resumes here")
