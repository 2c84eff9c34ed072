"""Input: usage records are read with the schema of `quota.record`; JSON lines are parsed once into Parquet, Parquet is
read in place. Invalid rows are set aside and counted, and none ends a report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import add, or_
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analysis import audit
from analysis.columns import DAY_S, HOUR_S, only_row, some_rows, sums, together
from analysis.days import EVERY_DAY, Days
from analysis.errors import ReportError, WrongUseError
from analysis.files import kept, some_file, without_files
from analysis.store import WORDS, Store, days_below, parquet_ddl
from analysis.words import several
from quota.record import FIELDS, IDENTITY, SCHEMA_VERSION, UNITS, Field, spark_ddl

BASE = (*IDENTITY, "schema_version", "start_ms", "end_ms", "duration_s", "cluster_id", "pod", "user", "client_id")
EARLIEST_MS = 1_577_836_800_000
"""2020-01-01: an earlier record was written by a machine whose clock had not been set."""
MOST, MOST_RATE = 1e13, 1e100
"""The greatest amounts and times (10 TB, the year 2286), and the greatest rates, limits and shares. Greater ones are
not finite, or a fleet's sum of them is no bigint."""
TOLERANCE_MS = DAY_S * 1000
"""How far ahead of this machine's clock a record may be."""

REASONS = {
    "not_a_record": "not a JSON object, truncated, or with a value of the wrong type",
    "foreign": "JSON, but not a usage record",
    "unknown_version": f"with a schema version that this reader does not know (it knows 1 to {SCHEMA_VERSION})",
    "wrong_value": "with an impossible value: missing, negative, too large, or an end before its start",
    "clock_off": "with a time before 2020 or more than a day in the future",
    "duplicate": "with an id (instance, sequence) that was already read",
}
"""Why rows are set aside, in the order of the checks."""
UNREADABLE = "cut short, damaged, deleted meanwhile, or of another format"
FILES_NAMED = 5
_COVERED = """aggregate(
    runs,
    CAST(array() AS array<struct<first_ms: bigint, last_ms: bigint>>),
    (done, run) -> IF(
        size(done) > 0 AND run.first_ms <= element_at(done, -1).last_ms + interval_ms,
        concat(
            slice(done, 1, size(done) - 1),
            array(named_struct(
                'first_ms', element_at(done, -1).first_ms,
                'last_ms', greatest(element_at(done, -1).last_ms, run.last_ms)
            ))
        ),
        concat(done, array(run))
    )
)"""
"""The times of instances (`runs`, in order), merged where an interval or less is between them: few, of any fleet."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Findings about the input, in rows unless said otherwise."""

    read: int
    aside: dict[str, int]
    """Reason -> rows set aside."""
    used: int
    instances: int
    missing: int
    """Records whose sequence numbers are missing between others of their instance."""
    gaps: int
    clock_steps: int
    """Records that end more than a second before the previous one of their instance."""
    renamed: int
    """Instances that changed the name of their pod."""
    first_ms: int
    last_ms: int
    covered: tuple[tuple[int, int], ...] = ()
    """The times (ms) between which some instance ran: from its first record to its last one."""
    interval_s: float = 0.0
    """The interval length of the instance with the longest intervals."""
    grain_s: int | None = None
    """The bucket of rates, if it is longer than requested."""
    files: tuple[str, ...] = ()
    """Addresses of files that were skipped whole: truncated, damaged, deleted meanwhile, or of another format."""
    mixed: bool = False
    """Among them are JSON lines next to Parquet."""

    @property
    def seconds(self) -> float:
        """The time from the first record's start to the last one's end."""
        return (self.last_ms - self.first_ms) / 1000

    @property
    def whole_days(self) -> tuple[int, int]:
        """The first and the last day (since 1970, UTC) that the input has whole, but for an hour at most."""
        return (int((self.first_ms / 1000 + DAY_S - HOUR_S) // DAY_S), int((self.last_ms / 1000 + HOUR_S) // DAY_S) - 1)

    def sentences(self) -> list[str]:
        """The same as sentences."""
        text = [
            f"Used: {several(self.used, 'record')} of {several(self.instances, 'instance')}, of "
            f"{several(self.read, 'row')} read."
        ]
        text += [f"Set aside: {several(count, 'row')}, {REASONS[name]}." for name, count in self.aside.items() if count]
        if self.files:
            text.append(f"Set aside entirely: {files_aside(self.files)}.")
            if self.mixed:
                text.append("JSON lines next to Parquet are not read: give each --input one of the two.")
        if self.grain_s is not None:
            text.append(f"Rates are means over {self.grain_s} s, as intervals are up to {self.interval_s:.4g} s long.")
        if self.missing:
            text.append(
                f"Missing: {several(self.missing, 'record')}, in {several(self.gaps, 'gap')} of instances' sequence "
                "numbers. No figure here includes them."
            )
        if self.clock_steps:
            text.append(f"Clocks: set back {several(self.clock_steps, 'time')}; reports use the times in the records.")
        if self.renamed:
            text.append(f"Pods: {several(self.renamed, 'instance')} changed the pod's name; each still counts as one.")
        return text


@dataclass(frozen=True, slots=True)
class Intake:
    """The usable records, and an account of the others."""

    records: DataFrame
    quality: Quality
    instances: DataFrame
    """One row per instance: records, missing, duplicates, clock steps, first and last time."""
    aside: DataFrame | None
    """Rows set aside: reason, file, content. Duplicates are not among them; they are counted only."""
    rollups: Callable[[str], DataFrame | None]
    """Sums of exactly these records per client and bucket, if a store has them: `minute`, `hour` or `day`."""


def parse(lines: DataFrame, now_ms: int | None = None) -> DataFrame:
    """Text lines (`value`, `file`) -> all fields of a record, `reason` (null: usable), `raw` (the line, if there is a
    reason) and `file`. Works on streams too."""
    schema = f"{spark_ddl()}, _corrupt STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", "allowNonNumericNumbers": "false"}
    # The optimiser does not push anything through a generator: through a projection it would push the checks below, and
    # with them a parser for each of a hundred fields.
    parsed = lines.select("value", "file", F.inline(F.array(F.from_json("value", schema, options))))
    reason = F.when(
        F.col("_corrupt").isNotNull(),
        # A newer version may have other types: its reader has to learn that it is newer.
        F.when(F.col("schema_version") > SCHEMA_VERSION, "unknown_version").otherwise("not_a_record"),
    ).otherwise(_reason(FIELDS, now_ms))
    return parsed.withColumn("reason", reason).select(
        *(field.name for field in FIELDS),
        "reason",
        F.when(F.col("reason").isNotNull(), F.col("value")).alias("raw"),
        "file",
    )


def checked_lines(lines: DataFrame, unreadable: Sequence[str], now_ms: int | None) -> DataFrame:
    """:func:`parse` of text files, but for the unreadable ones."""
    text = without_files(lines, unreadable).withColumn("file", F.col("_metadata.file_path"))
    return parse(text.where(F.trim("value") != ""), now_ms)


def set_aside(rows: DataFrame | None, unreadable: Sequence[str], spark: SparkSession) -> DataFrame | None:
    """The rows of :func:`parse` with a reason, and one for each unreadable file; None without either."""
    aside = None if rows is None else rows.where(F.col("reason").isNotNull()).select("reason", "file", "raw")
    if not unreadable:
        return aside
    # From a JSON literal: rows made from Python values would need Python on the executors.
    files = F.from_json(F.lit(json.dumps(list(unreadable))), "array<string>")
    reason, raw = F.lit("unreadable_file").alias("reason"), F.lit(None).cast("string").alias("raw")
    whole = spark.range(1).select(reason, F.explode(files).alias("file"), raw)
    return whole if aside is None else aside.unionByName(whole)


def files_aside(files: Sequence[str]) -> str:
    """How many files were set aside as unreadable, why, and the names of some."""
    names = ", ".join(unquote(file.rsplit("/", 1)[1]) for file in files[:FILES_NAMED])
    more = f" and {len(files) - FILES_NAMED} more" if len(files) > FILES_NAMED else ""
    return f"{several(len(files), 'file')}, {UNREADABLE}: {names}{more}"


def _reason(fields: Sequence[Field], now_ms: int | None) -> Column:
    """Why a row with these columns is not usable; null if it is. `now_ms`: None is the time of the query, or of a
    stream's batch."""
    now = F.unix_millis(F.current_timestamp()) if now_ms is None else F.lit(now_ms)
    numbers = [field for field in fields if field.type != "string"]
    no_null = [F.col(field.name).isNull() for field in fields if not field.nullable]
    as_double = {field.name: F.col(field.name).cast("double") for field in numbers}
    # least() and greatest() skip nulls; a number that may be negative has no minimum; NaN is the greatest.
    lowest = F.least(*(as_double[f.name] - F.lit(f.least) for f in numbers if f.least is not None), F.lit(0.0))
    most = {f.name: MOST_RATE if f.unit in (*UNITS.values(), "1") else MOST for f in numbers}
    highest = F.greatest(*(F.abs(as_double[name]) * F.lit(1 / one) for name, one in most.items()), F.lit(0.0))
    wrong = (
        reduce(or_, no_null)
        | (lowest < 0)
        | (highest > 1)
        | (F.col("end_ms") < F.col("start_ms"))
        | (F.col("sequence") < 1)
    )
    families = [as_double[field.name] for field in fields if field.name.startswith("requests_")]
    if families:
        wrong |= reduce(add, families) != as_double["requests"]
    start, end = F.col("start_ms"), F.col("end_ms")
    return (
        F.when(F.col("schema_version").isNull() & F.col("instance").isNull(), "foreign")
        .when(~F.coalesce(F.col("schema_version").between(1, SCHEMA_VERSION), F.lit(False)), "unknown_version")
        .when(F.coalesce(wrong, F.lit(True)), "wrong_value")
        .when((start < EARLIEST_MS) | (end > now + TOLERANCE_MS), "clock_off")
    )


def read(
    spark: SparkSession,
    pattern: str,
    columns: Iterable[str],
    staging: str,
    *,
    now_ms: int | None = None,
    unreadable: Sequence[str] = (),
    days: Days = EVERY_DAY,
    rolled: bool = False,
) -> Intake:
    """Read usage records from a file, a directory (with all below it) or a glob; JSON lines or Parquet. `columns`:
    besides :data:`BASE`; `staging`: a directory for parsed records; `unreadable`: addresses of files to skip; `rolled`:
    the job uses rollups in place of records where a store has them. Raises WrongUseError without files, ReportError
    without a usable record."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms  # one time for all queries
    wanted = list(dict.fromkeys((*BASE, *columns)))
    store = Store(spark, pattern)
    stored = store.exists()
    places = [pattern]
    below = days_below(spark, pattern) if days.bounded and not stored else {}
    if below:
        places = [place for day, found in below.items() if day in days for place in found]
    first = store.records if stored else next(filter(None, (some_file(spark, one) for one in places)), None)
    if stored and store.table is None and not any(state.records for state in store.days().values()):
        raise ReportError(f"--input {pattern}: this store has no records yet")
    if first is None:
        there = f": it has those of {min(below)} to {max(below)}" if below else ""
        raise WrongUseError(f"--input {pattern}: no files" + (f" of these days{there}" if days.bounded else " there"))
    parsed: DataFrame | None = None
    if stored:
        rows = _checked(without_files(store.read().where(days.partitions()), unreadable), wanted, now_ms)
    elif first.endswith(".parquet"):
        try:
            # The files' own schema is not used: a foreign one gives nulls, and those are set aside.
            found = spark.read.option("recursiveFileLookup", True).schema(parquet_ddl()).parquet(*places)
            rows = _checked(without_files(found, unreadable), wanted, now_ms)
        except AnalysisException as error:
            raise ReportError(f"--input {pattern}: {error}") from error
    else:
        lines = checked_lines(spark.read.option("recursiveFileLookup", True).text(places), unreadable, now_ms)
        rows = parsed = kept(lines.select(*wanted, "reason", "raw", "file"), f"{staging}/records")
    every = rows
    rows = rows.where(F.col("reason").isNotNull() | days.records())
    parts = store.rollup(WORDS, days) if rolled and stored and not unreadable else None
    if parts is not None:
        found = kept(audit.together_words(parts), f"{staging}/words")
    # If there are duplicates, as while a day is replaced, sums count both.
    by_rollups = parts is not None and not found.where("duplicates > 0").count()
    if not by_rollups:
        found = kept(audit.words(rows), f"{staging}/words")
    by_reason = found.groupBy("reason").agg(F.sum("records").cast("long").alias("rows"))
    counts: dict[str | None, int] = {row["reason"]: row["rows"] for row in some_rows(by_reason)}  # half a dozen
    fit = rows.where(F.col("reason").isNull()).select(*wanted)
    if not counts.get(None):
        ends = _days_of(store, every) if days.bounded else []
        if ends:
            raise ReportError(f"--input {pattern}: no records of these days; it has those of {ends[0]} to {ends[-1]}")
        reasons = ", ".join(f"{count:,} {name}" for name, count in counts.items() if name)
        raise ReportError(
            f"--input {pattern}: no usable record in {sum(counts.values()):,} rows ({reasons or 'all empty'})"
            + (f", {several(len(unreadable), 'file')} {UNREADABLE}" if unreadable else "")
        )

    def rollups(name: str) -> DataFrame | None:
        return store.rollup(name, days) if by_rollups else None

    records, instances, quality = _audited(fit, found, staging, counts)
    mixed = parsed is None and any(file.endswith((".json", ".jsonl")) for file in unreadable)
    quality = replace(quality, files=tuple(unreadable), mixed=mixed)
    return Intake(records, quality, instances, set_aside(parsed, unreadable, spark), rollups)


def _days_of(store: Store, rows: DataFrame) -> list[str]:
    """The first and the last day with usable records; of a store, which was read by day, all of them."""
    if store.exists():
        return sorted(one.date for one in store.days().values() if one.records)
    ends = only_row(rows.where("reason IS NULL").agg(F.min("start_ms"), F.max("end_ms")))
    return [f"{datetime.fromtimestamp(one / 1000, UTC):%Y-%m-%d}" for one in ends if one is not None]


def _checked(rows: DataFrame, wanted: list[str], now_ms: int | None) -> DataFrame:
    """Only the requested columns are read, so only they are checked."""
    some = [field for field in FIELDS if field.name in wanted and not field.name.startswith("requests")]
    return rows.select(*wanted).withColumn("reason", _reason(some, now_ms))


def _audited(
    fit: DataFrame, found: DataFrame, staging: str, counts: dict[str | None, int]
) -> tuple[DataFrame, DataFrame, Quality]:
    """The records, each once, and the instances that wrote them, by the words found."""
    instances = kept(audit.instances(found), f"{staging}/instances")
    total = only_row(
        instances.agg(
            *together(),
            *sums(("duplicates", "missing", "gaps", "clock_steps")),
            F.count("*").alias("instances"),
            F.sum(F.col("renamed").cast("long")).alias("renamed"),
            F.max("interval_ms").alias("interval_ms"),
            F.sort_array(F.collect_list(F.struct("first_ms", "last_ms"))).alias("runs"),
        )
        .withColumn("covered", F.expr(_COVERED))
        .drop("runs")
    )
    repeats = int(total["duplicates"])
    records = fit
    if repeats:
        repeated = found.where("duplicates > 0")
        records = audit.without_repeats(fit, repeated, repeated.count(), f"{staging}/repeats")
    reasons = {name: counts.get(name, 0) for name in REASONS} | {"duplicate": repeats}
    names = ("instances", "missing", "gaps", "clock_steps", "renamed", "first_ms", "last_ms")
    counted: dict[str, Any] = {name: int(total[name]) for name in names}
    quality = Quality(
        read=sum(counts.values()),
        aside=reasons,
        used=int(total["records"]) - repeats,
        **counted,
        covered=tuple((int(run["first_ms"]), int(run["last_ms"])) for run in total["covered"]),
        interval_s=total["interval_ms"] / 1000,
    )
    return records, instances, quality
