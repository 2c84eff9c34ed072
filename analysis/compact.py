"""`compact`: many small files of records into few large ones per day and cluster, each record once (ADR 0025)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analysis.audit import words
from analysis.columns import cluster, only_row
from analysis.days import EVERY_DAY, Days
from analysis.errors import WrongUseError
from analysis.files import (
    addresses,
    delete,
    delete_files,
    exists,
    input_bytes,
    input_files,
    kept,
    same_system,
    without_unreadable,
)
from analysis.intake import checked_lines, files_aside, set_aside
from analysis.rollups import STEPS, coarser, of_records
from analysis.store import ROW_GROUP_BYTES, WORDS, Day, Store, days_below
from analysis.words import several, size
from quota.record import FIELDS, IDENTITY

FILE_BYTES = 256 * 1024 * 1024
"""Target size of files: large enough that listing and opening them costs nothing."""
SHRINKS = 0.6
"""Size of records sorted by client and packed by zstd, as a fraction of that in a staging file."""
OPEN_COST = "spark.sql.files.openCostInBytes"
OPENING_BYTES = 64 * 1024
"""Opening a file counts as much as reading this: with Spark's 4 MB a task would get only 30 of a sidecar's files."""
ROLLED = 6
"""Rollups have about this many times fewer rows than records of ten seconds."""
NAMES = [field.name for field in FIELDS]


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """Settings of a compaction."""

    source: str
    place: str
    days: Days = EVERY_DAY
    settle_h: float = 2.0
    """A day is compacted when it has been over for this long."""
    keep_days: int | None = None
    delete_input: bool = False
    form: str | None = None
    """``files`` or ``iceberg``: format of a new store; None: that of the store, or files."""


def compact(
    spark: SparkSession, settings: CompactSettings, say: Callable[[str], None] = print, *, now_ms: int | None = None
) -> int:
    """Bring the store up to date, day by day; returns how many days were written. Raises ReportError when another run
    is in progress, WrongUseError when there are no days of JSON lines to be read."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if Store(spark, settings.source).exists():
        raise WrongUseError(f"--input {settings.source}: got a store, expected the records that sidecars wrote")
    found = days_below(spark, settings.source)
    store = Store(spark, settings.place)
    if not found and not store.exists():
        raise WrongUseError(f"--input {settings.source}: no date=YYYY-MM-DD directories within two levels")
    settled = str((now - timedelta(hours=settings.settle_h)).date() - timedelta(days=1))
    oldest = "" if settings.keep_days is None else str(now.date() - timedelta(days=settings.keep_days))
    store.take_format(settings.form)
    store.lock()
    usual = str(spark.conf.get(OPEN_COST))
    spark.conf.set(OPEN_COST, str(OPENING_BYTES))
    try:
        states = store.days()
        written = 0
        for day in sorted(found):
            if day in settings.days and oldest <= day <= settled:
                store.touch()
                if (done := _day(store, settings, day, found[day], states.get(day), now_ms)) is not None:
                    say(done)
                    written += 1
        for day in sorted(states):
            if day < oldest:
                store.drop(day)
                say(f"{day}: deleted, older than {settings.keep_days} days")
        if store.table is not None and (written or any(day < oldest for day in states)):
            store.table.expire()
        return written
    finally:
        spark.conf.set(OPEN_COST, usual)
        delete(spark, f"{store.place}/_staging")
        store.unlock()


def _day(
    store: Store,
    settings: CompactSettings,
    day: str,
    places: Sequence[str],
    state: Day | None,
    now_ms: int,
) -> str | None:
    """Returns what was done; None: the day has no new files."""
    spark = store.spark
    generation = 0 if state is None else state.generation
    store.tidy(day, generation)
    lines = spark.read.option("recursiveFileLookup", True).text(list(places))
    files, size_read = input_files(lines), input_bytes(lines)
    if not files or (state is not None and state.read == _digest(files, size_read)):
        return None
    parquet = next((one for one in files if one.endswith(".parquet")), None)
    if parquet is not None:
        raise WrongUseError(f"--input {unquote(parquet)}: got Parquet, expected JSON lines")
    staging = f"{store.place}/_staging"
    delete(spark, staging)
    unreadable: list[str] = []

    def parsed() -> DataFrame:
        return kept(checked_lines(lines, unreadable, now_ms), f"{staging}/parsed")

    rows = without_unreadable(settings.source, unreadable, parsed)
    # One text for all addresses: rows would be too many for the driver.
    usable = rows.where("reason IS NULL").agg(F.array_join(F.collect_set("file"), "\n"))
    done = set(addresses(only_row(usable)[0])) if settings.delete_input else set()
    fit = rows.where("reason IS NULL").select(*NAMES)
    if store.table is None and state is not None and state.records:
        old = store.read().where(F.col("date") == day).select(*(F.col(f.name).cast(f.type) for f in FIELDS))
        fit = fit.unionByName(old)
    number_aside = rows.where("reason IS NOT NULL").count()
    aside = set_aside(rows, unreadable, spark)
    if aside is not None and (number_aside or unreadable):
        place = f"{store.place}/set-aside/date={day}"
        if exists(spark, place):  # its rows may be nowhere else: their files may have been deleted
            aside = aside.subtract(spark.read.schema(aside.schema).json(place))
        aside.write.mode("append").json(place)
    staged = _bytes(spark, [f"{staging}/parsed"]) * SHRINKS
    parts = max(round((staged + _bytes(spark, [f"{store.records}/date={day}"])) / FILE_BYTES), 1)
    if store.table is None:
        made = _files_made(fit, parts, f"{staging}/made")
    else:
        made = store.table.merge(day, fit.withColumn("cluster", cluster()))
    records = made.count()
    if records:
        _rolled_up(made, staging, max(parts // ROLLED, 1))
    count = store.place_files(f"{staging}/made", day, generation + 1)
    for name in (*STEPS, WORDS) if records else ():
        store.place_files(f"{staging}/{name}", day, generation + 1, name)
    left = [one for one in files if one not in done]
    size_left = _bytes(spark, [unquote(one) for one in left]) if done else size_read
    store.commit(Day(day, generation + 1, records, count, _digest(left, size_left), rollups=True))
    store.tidy(day, generation + 1)
    delete_files(spark, [one for one in files if one in done], above="date=")
    more = f", {several(number_aside, 'row')} set aside" if number_aside else ""
    more += f", set aside entirely: {files_aside(unreadable)}" if unreadable else ""
    bytes_now = _bytes(spark, [f"{store.records}/date={day}"]) if records else 0
    if store.table is not None:
        count, bytes_now = store.table.files(day)
    return (
        f"{day}: {several(len(files), 'file')} of {size(size_read)} to {several(count, 'file')} of {size(bytes_now)}, "
        f"{several(records, 'record')}{more}"
    )


def _files_made(rows: DataFrame, parts: int, place: str) -> DataFrame:
    """Write files of records, each once, by cluster and sorted."""
    order = ("cluster", "user", "client_id")
    once = rows.dropDuplicates(list(IDENTITY)).withColumn("cluster", cluster())
    ordered = once.repartitionByRange(parts, *order).sortWithinPartitions(*order, "start_ms")
    options = {"compression": "zstd", "parquet.block.size": str(ROW_GROUP_BYTES)}
    ordered.write.mode("overwrite").partitionBy("cluster").options(**options).parquet(place)
    return rows.sparkSession.read.schema(once.schema).parquet(place)


def _rolled_up(made: DataFrame, staging: str, parts: int) -> None:
    """Sums per client and minute, hour and day, each made from the one before; and which records they cover."""
    order = ("cluster", "user", "client_id", "bucket")
    sums = of_records(made, STEPS["minute"])
    for name, step_s in STEPS.items():
        if name != "minute":
            sums = coarser(sums, step_s)
        rows = sums.withColumn("cluster", F.col("cluster_id"))
        rows = rows.repartitionByRange(parts, *order[:-1]).sortWithinPartitions(*order)
        rows.write.mode("overwrite").option("compression", "zstd").partitionBy("cluster").parquet(f"{staging}/{name}")
        sums = made.sparkSession.read.schema(sums.schema).parquet(f"{staging}/{name}")
    found = words(made.withColumn("reason", F.lit(None).cast("string")))
    found.coalesce(parts).write.mode("overwrite").option("compression", "zstd").parquet(f"{staging}/{WORDS}")


def _digest(files: Sequence[str], total: int) -> str:
    return hashlib.sha256("\n".join([str(total), *sorted(files)]).encode()).hexdigest()


def _bytes(spark: SparkSession, places: Sequence[str]) -> int:
    there = [(system, path) for system, path in same_system(spark, places) if system.exists(path)]
    return sum(int(system.getContentSummary(path).getLength()) for system, path in there)
