"""`kquota report stream`: live records, from Kafka or from files, into one-minute rollups and alerts.

Three queries. `rollups` reads the records, drops duplicates by their id and writes a Parquet file sink, whose log makes
each row appear exactly once. `alerts` follows the rollups that were committed. `set-aside` keeps the rows that are not
records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from analysis.columns import CLIENT, cluster
from analysis.errors import ReportError, WrongUseError
from analysis.files import make_directory
from analysis.intake import parse
from analysis.stream_metrics import StreamMetrics, late_rows
from quota.entity import Kind
from quota.record import CAUSES, IDENTITY

MINUTE = "1 minute"
POLL_S = 0.5
_SUMS = ("produce_bytes", "fetch_bytes", "request_seconds", "mutations", "requests", "mutes", "mutes_ignored")
ROLLUP = (
    "minute timestamp, cluster_id string, user string, client_id string, records bigint, sidecars bigint, "
    + ", ".join(f"{name} {'double' if name in ('request_seconds', 'mutations') else 'bigint'}" for name in _SUMS)
    + ", delayed_requests bigint, "
    + ", ".join(f"throttle_{cause}_seconds double" for cause in CAUSES)
    + ", delayed_seconds double, utilisation_peak double, date date"
)
"""Schema of the rollups, as DDL."""


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
    """Process what exists, then end."""
    rows_per_batch: int | None = None
    """At most this many offsets (files of a directory) per batch."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Properties of Kafka clients, such as ``security.protocol``."""
    delayed_seconds: float = 10.0
    """Seconds of delay per client and minute that cause an alert."""
    utilisation: float = 0.95
    """Fraction of a limit that causes an alert."""


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
    """A file of `name=value` lines, as Kafka's own tools accept for --command-config. Raises WrongUseError.

    A value may contain `=`, as those of sasl.jaas.config do, but a line is not continued on the next.
    """
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
    """The source as text lines: `value`, and `file`, its origin."""
    reader = spark.readStream
    if is_kafka(settings.source):
        servers, topic = address(settings.source)
        if settings.rows_per_batch:
            reader = reader.option("maxOffsetsPerTrigger", settings.rows_per_batch)
        for name, value in settings.kafka.items():
            reader = reader.option(f"kafka.{name}", value)
        records = (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        origin = F.concat_ws("@", F.concat_ws("-", "topic", "partition"), "offset")
        return records.select(F.col("value").cast("string"), origin.alias("file"))
    if settings.rows_per_batch:
        reader = reader.option("maxFilesPerTrigger", settings.rows_per_batch)
    text = reader.option("recursiveFileLookup", True).text(settings.source)
    return text.select("value", F.col("_metadata.file_path").alias("file"))


def rollups(text: DataFrame, delay: str) -> DataFrame:
    """One row per client and minute, once the minute is over and `delay` has passed by the records' own clock.

    A record counts in the minute of its interval's middle, as in the batch reports. Duplicates are recognised for at
    least `delay`.
    """
    middle = F.timestamp_millis(((F.col("start_ms") + F.col("end_ms")) / 2).cast("long"))
    records = parse(text).where("reason IS NULL").withColumns({"cluster_id": cluster(), "time": middle})
    once = records.withWatermark("time", delay).dropDuplicatesWithinWatermark(list(IDENTITY))
    counts, seconds = (
        sum((F.col(f"throttle_{cause}_{what}") for cause in CAUSES[1:]), F.col(f"throttle_{CAUSES[0]}_{what}"))
        for what in ("count", "seconds")
    )
    peaks = [F.col(f"{kind.value}_group_utilisation_peak") for kind in Kind]
    per_minute = once.groupBy(F.window("time", MINUTE).alias("window"), *CLIENT).agg(
        F.count("*").alias("records"),
        F.approx_count_distinct("instance").alias("sidecars"),
        *(F.sum(name).alias(name) for name in _SUMS),
        F.sum(counts).alias("delayed_requests"),
        *(F.sum(f"throttle_{cause}_seconds").alias(f"throttle_{cause}_seconds") for cause in CAUSES),
        F.sum(seconds).alias("delayed_seconds"),
        F.max(F.greatest(*peaks)).alias("utilisation_peak"),
    )
    minute = F.col("window.start")
    return per_minute.select(minute.alias("minute"), "*", F.to_date(minute).alias("date")).drop("window")


def alerts(rolled: DataFrame, settings: StreamSettings) -> DataFrame:
    """Rollups -> messages (`key`, `value`): which client is throttled, or near a limit. Equal alerts have equal
    `id`s."""
    delayed, near = (
        F.col("delayed_seconds") >= settings.delayed_seconds,
        F.col("utilisation_peak") >= settings.utilisation,
    )
    kinds = F.filter(F.array(F.when(delayed, "delayed"), F.when(near, "near_limit")), lambda one: one.isNotNull())
    each = rolled.withColumn("alert", F.explode(kinds))
    names: list[Column | str] = ["alert", *CLIENT, F.date_format("minute", "yyyy-MM-dd'T'HH:mm:ss'Z'")]
    body = F.struct(
        F.sha2(F.to_json(F.struct(*names)), 256).alias("id"),
        "alert",
        *CLIENT,
        F.date_format("minute", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("minute"),
        "delayed_requests",
        "delayed_seconds",
        "utilisation_peak",
    )
    return each.select(F.concat_ws("/", *CLIENT).alias("key"), F.to_json(body).alias("value"))


def start(spark: SparkSession, settings: StreamSettings, stop: Event | None = None) -> list[StreamingQuery]:
    """Start the queries; each has its checkpoint below `output`, from which it always resumes.

    With `once`, alerts are started when the rollups are complete, or not at all when `stop` is set before that.
    """
    stop = stop or Event()
    text = lines(spark, settings)
    aside = parse(text).where("reason IS NOT NULL").select("reason", "file", "raw")
    queries = [
        _writer(rollups(text, settings.delay), settings, "rollups").format("parquet").partitionBy("date"),
        _writer(aside, settings, "set-aside").format("json"),
    ]
    started = [query.start() for query in queries]
    if settings.alerts is not None:
        while settings.once and any(query.isActive for query in started):
            if stop.wait(POLL_S):
                return started
        started.append(_alert_query(spark, settings))
    return started


def _alert_query(spark: SparkSession, settings: StreamSettings) -> StreamingQuery:
    assert settings.alerts is not None
    servers, topic = address(settings.alerts)
    # The sink creates its directory with its first batch; until then there is nothing to follow.
    make_directory(spark, f"{settings.output}/rollups")
    followed = spark.readStream.schema(ROLLUP).parquet(f"{settings.output}/rollups")
    writer = _writer(alerts(followed, settings), settings, "alerts", path=False).format("kafka")
    for name, value in settings.kafka.items():
        writer = writer.option(f"kafka.{name}", value)
    query: StreamingQuery = writer.option("kafka.bootstrap.servers", servers).option("topic", topic).start()
    return query


def _writer(frame: DataFrame, settings: StreamSettings, name: str, *, path: bool = True) -> Any:
    writer = frame.writeStream.queryName(name).outputMode("append")
    writer = writer.option("checkpointLocation", f"{settings.output}/_checkpoints/{name}")
    if path:
        writer = writer.option("path", f"{settings.output}/{name}")
    return writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime=settings.trigger)


def follow(
    queries: list[StreamingQuery],
    say: Any,
    stop: Event | None = None,
    *,
    metrics: StreamMetrics | None = None,
    every_s: float = 1.0,
) -> None:
    """Report what the queries do until all have ended, or `stop` is set: then they are ended, their current batch is
    not written and will be redone. Raises ReportError when one fails. `metrics` gets the report on each batch.
    """
    stop = stop or Event()
    told: dict[str, int] = {}
    while True:
        active = any(query.isActive for query in queries)
        for query in queries:
            for progress in query.recentProgress:
                if progress["batchId"] <= told.get(query.name, -1):
                    continue
                told[query.name] = progress["batchId"]
                if metrics is not None:
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
    say("stopped; the next start goes on from here")
