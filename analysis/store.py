"""The layout of compacted records, and how a day is replaced by a newer version without ever being missing.

    STORE/records/date=2026-08-01/cluster=east/g000002-….parquet   the records, sorted by client
    STORE/rollups/minute/date=2026-08-01/cluster=east/g000002-….parquet   sums per client and minute; also hour, day
    STORE/rollups/words/date=2026-08-01/g000002-….parquet          which records those cover (analysis.audit.words)
    STORE/_compacted/date=2026-08-01.g000002.json                  what they were made of; the highest number counts
    STORE/set-aside/date=2026-08-01/                               rows that are not records
    STORE/_compacted/lock                                          the run at work

Where the records are an Iceberg table, `records` is that table's directory.

Files of a new generation are put next to those of the old one before its state is written, and those of the old one are
deleted after that. So at any moment all records exist, some of them twice; readers drop duplicates by their id. Of
rollups, which have no ids, only those of the current generation are read.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analysis.columns import only_row
from analysis.days import Days
from analysis.errors import ReportError, WrongUseError
from analysis.files import delete, exists, file_system, files_below, names_in, read_text, renamed, write_text
from analysis.rollups import STEPS
from analysis.session import before_spark_4, spark_version
from quota.record import FIELDS, IDENTITY, spark_ddl

PACKAGES: Final = {"3.5": "1.10.0", "4.0": "1.10.0", "4.1": "1.11.0"}
"""Iceberg's version for each Spark that it has a package for."""
EXTENSION: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
HINT: Final = "records/metadata/version-hint.text"
"""The file by which a store that is a table is recognised."""
ORDER: Final = ("user", "client_id", "start_ms")
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Size of a row group: a reader that wants one client skips row groups by their least and greatest name."""
OLD_METADATA: Final = 20
"""Number of earlier metadata files that are kept; each commit writes one."""
_VIEW: Final = "kquota_new_records"
WORDS = "words"
"""The rollup that says which records the others cover."""
STALE_S = 2 * 3600
"""A lock that has not been touched for this long belonged to a run that was killed. It is touched with each day."""


def package() -> str:
    """Iceberg for the Spark that is installed; fetched from Maven Central at first use. Raises ReportError."""
    version, scala = spark_version()
    spark = ".".join(version.split(".")[:2])
    if spark not in PACKAGES:
        raise ReportError(f"Iceberg has no package for Spark {spark}: use one of {', '.join(PACKAGES)}")
    return f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{scala}:{PACKAGES[spark]}"


def session_conf(conf: Mapping[str, str], places: list[str], form: str | None) -> dict[str, str]:
    """Iceberg's part of Spark's configuration; empty if neither `form` nor a local store at these places needs it."""
    if form != "iceberg" and not any(_local(place) for place in places):
        return {}
    return {
        "spark.jars.packages": _with(conf.get("spark.jars.packages"), package(), "iceberg-spark-runtime"),
        "spark.sql.extensions": _with(conf.get("spark.sql.extensions"), EXTENSION, EXTENSION),
    }


def _local(place: str) -> bool:
    parts = urlsplit(place)
    path = unquote(parts.path) if parts.scheme == "file" else place
    return parts.scheme in ("", "file") and Path(path, HINT).is_file()


def _with(given: str | None, more: str, mark: str) -> str:
    if given is None:
        return more
    return given if mark in given else f"{given},{more}"


class IcebergRecords:
    """The table of a store; it need not exist yet."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.spark = spark
        system, path = file_system(spark, place)
        # The table's metadata refers to its files by absolute addresses.
        self.place = str(system.makeQualified(path).toString())
        # Spark keeps a catalog for the whole session, so each store has its own.
        self.catalog = f"kquota_{hashlib.sha256(self.place.encode()).hexdigest()[:8]}"
        self.name = f"{self.catalog}.records"

    def exists(self) -> bool:
        """Whether the store has such a table."""
        return exists(self.spark, f"{self.place}/{HINT}")

    def read(self) -> DataFrame:
        """All records, with `date` and `cluster`; missing fields are null. Raises ReportError without Iceberg."""
        self.open()
        rows = self.spark.table(self.name)
        missing = [field for field in FIELDS if field.name not in rows.columns]
        return rows.withColumns({field.name: F.lit(None).cast(field.type) for field in missing})

    def merge(self, day: str, rows: DataFrame) -> DataFrame:
        """Insert, in one commit, those of these records (with `cluster`) that the table does not have; returns all of
        the day. The store's lock keeps others from merging the same records at the same time, which would keep both."""
        self.open()
        self.make()
        names = [field.name for field in FIELDS]
        fresh = rows.dropDuplicates(list(IDENTITY)).select(*names, F.lit(day).alias("date"), "cluster")
        fresh.createOrReplaceTempView(_VIEW)
        try:
            same = " AND ".join(f"t.{name} = s.{name}" for name in IDENTITY)
            on = f"t.date = '{day}' AND {same}"
            self.spark.sql(f"MERGE INTO {self.name} t USING {_VIEW} s ON {on} WHEN NOT MATCHED THEN INSERT *")
        finally:
            self.spark.catalog.dropTempView(_VIEW)
        # Its files again, sorted, where a cluster has five or more that are too small (Iceberg's own rule).
        self.spark.sql(
            f"CALL {self.catalog}.system.rewrite_data_files(table => 'records', strategy => 'sort', "
            f"sort_order => '{', '.join(ORDER)}', where => 'date = \"{day}\"')"
        )
        return self.read().where(F.col("date") == day)

    def files(self, day: str) -> tuple[int, int]:
        """Number and bytes of the day's files."""
        found = self.spark.table(f"{self.name}.files").where(F.col("partition.date") == day)
        row = only_row(found.agg(F.count("*"), F.coalesce(F.sum("file_size_in_bytes"), F.lit(0))))
        return int(row[0]), int(row[1])

    def drop(self, day: str) -> None:
        """Delete a day's records; whole partitions, so that no file is read."""
        self.open()
        self.spark.sql(f"DELETE FROM {self.name} WHERE date = '{day}'")

    def expire(self) -> None:
        """Delete files that have belonged to no snapshot for five days: until then readers may still need them."""
        if self.exists():
            self.open()
            self.spark.sql(f"CALL {self.catalog}.system.expire_snapshots(table => 'records')")

    def open(self) -> None:
        """Register the table's catalog in the session. Raises ReportError when the session has no Iceberg."""
        try:
            cast(Any, self.spark._jvm).java.lang.Thread.currentThread().getContextClassLoader().loadClass(CATALOG)
        except Py4JJavaError:
            raise ReportError(
                f"{self.place} is an Iceberg table, and this Spark session has no Iceberg: add --format iceberg, which "
                f"downloads it, or run spark-submit with --packages {package()} (docs/analysis.md)"
            ) from None
        prefix = f"spark.sql.catalog.{self.catalog}"
        settings = {prefix: CATALOG, f"{prefix}.type": "hadoop", f"{prefix}.warehouse": self.place}
        # Commits of other processes are to be visible at once.
        for name, value in {**settings, f"{prefix}.cache-enabled": "false"}.items():
            self.spark.conf.set(name, value)

    def make(self) -> None:
        """Create the table, or add the columns that an earlier version did not have."""
        if not self.exists():
            columns = ", ".join(f"`{field.name}` {field.type}" for field in FIELDS)
            properties = {
                "write.parquet.compression-codec": "zstd",
                "write.parquet.row-group-size-bytes": ROW_GROUP_BYTES,
                "write.target-file-size-bytes": 8 * ROW_GROUP_BYTES,
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": OLD_METADATA,
            }
            settings = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            self.spark.sql(
                f"CREATE TABLE {self.name} ({columns}, `date` string, `cluster` string) USING iceberg "
                f"PARTITIONED BY (`date`, `cluster`) TBLPROPERTIES ({settings})"
            )
            self.spark.sql(f"ALTER TABLE {self.name} WRITE ORDERED BY {', '.join(f'`{one}`' for one in ORDER)}")
        known = set(self.spark.table(self.name).columns)
        missing = [f"`{field.name}` {field.type}" for field in FIELDS if field.name not in known]
        if missing:
            self.spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({', '.join(missing)})")


def parquet_ddl() -> str:
    """The columns of records in Parquet; integers may be wider, which Spark reads from 4.0 on (SPARK-40876)."""
    ddl = spark_ddl()
    return ddl if before_spark_4() else ddl.replace(" INT,", " BIGINT,")


@dataclass(frozen=True, slots=True)
class Day:
    """The state of a day in the store."""

    date: str
    generation: int
    records: int
    files: int
    read: str
    """A digest of the input files: of those that were there when it was made, less those that were to be deleted."""
    rollups: bool = False
    """Whether it has rollups: days made by an earlier version have none."""


class Store:
    """The directory of compacted records."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.spark = spark
        self.place = place.rstrip("/")
        self.records, self.rollups = f"{self.place}/records", f"{self.place}/rollups"
        """Where the records are, and sums of them."""
        table = IcebergRecords(spark, self.place)
        self.table = table if table.exists() else None
        """The table that its records are; None: plain files."""

    def exists(self) -> bool:
        """Whether the store exists."""
        return exists(self.spark, f"{self.place}/_compacted")

    def take_format(self, form: str | None) -> None:
        """Set the format of a new store (None: files). Raises WrongUseError when the store has another one."""
        if not self.days():
            self.table = IcebergRecords(self.spark, self.place) if form == "iceberg" else self.table
        has = "files" if self.table is None else "iceberg"
        if form not in (None, has):
            raise WrongUseError(
                f"--format {form}: {self.place} is a store of format {has}: leave --format out, or give another "
                "--output"
            )

    def read(self) -> DataFrame:
        """All of it, with the columns `date` and `cluster` that directories are named by."""
        if self.table is not None:
            return self.table.read()
        return self.spark.read.schema(f"{parquet_ddl()}, date STRING, cluster STRING").parquet(self.records)

    def rollup(self, name: str, days: Days) -> DataFrame | None:
        """The rollups `name` of these days; None if some day with records has none."""
        states = [state for state in self.days().values() if state.date in days and state.records]
        if not states or not all(state.rollups for state in states):
            return None
        level = "" if name == WORDS else "*/"
        places = [f"{self.rollups}/{name}/date={one.date}/{level}{_prefix(one.generation)}*.parquet" for one in states]
        return self.spark.read.parquet(*places)

    def days(self) -> dict[str, Day]:
        """The newest state of each day."""
        found: dict[str, Day] = {}
        for name in names_in(self.spark, f"{self.place}/_compacted"):
            if re.fullmatch(r"date=[\d-]+\.g\d+\.json", name):
                one = Day(**json.loads(read_text(self.spark, f"{self.place}/_compacted/{name}") or "{}"))
                found[one.date] = one
        return found

    def place_files(self, made: str, day: str, generation: int, rollup: str | None = None) -> int:
        """Move the files below `made`, which are there by cluster except for words, to their day; returns how many."""
        root = self.records if rollup is None else f"{self.rollups}/{rollup}"
        files = list(files_below(self.spark, made))
        for file in files:
            *_, cluster, name = file.split("/")
            target = f"{root}/date={day}" if rollup == WORDS else f"{root}/date={day}/{cluster}"
            system, path = file_system(self.spark, target)
            system.mkdirs(path)
            if not renamed(self.spark, file, f"{target}/{_prefix(generation)}{name}"):
                raise ReportError(f"cannot move a file from {made} to {target}")
        return len(files)

    def commit(self, state: Day) -> None:
        """Make these the day's records: written aside, then renamed to a new name."""
        name = f"{self.place}/_compacted/date={state.date}.{_prefix(state.generation)[:-1]}.json"
        write_text(self.spark, f"{name}.new", json.dumps(asdict(state)))
        if not renamed(self.spark, f"{name}.new", name):
            raise ReportError(f"cannot write {name}: renaming {name}.new failed")

    def tidy(self, day: str, generation: int) -> None:
        """Delete what is not of this generation: earlier ones, and what an interrupted run left behind."""
        for directory in self._of_day(day):
            for file in list(files_below(self.spark, directory)):
                if not file.rsplit("/", 1)[1].startswith(_prefix(generation)):
                    delete(self.spark, file)
        self._forget_states(day, but=f".{_prefix(generation)[:-1]}.")

    def drop(self, day: str) -> None:
        """Delete a day: its records first, so that the next run deletes the rest if this one is interrupted."""
        if self.table is not None:
            self.table.drop(day)
        for place in (*self._of_day(day), f"{self.place}/set-aside/date={day}"):
            delete(self.spark, place)
        self._forget_states(day)

    def lock(self) -> None:
        """Lock the store. Raises ReportError when another run is in progress."""
        path = f"{self.place}/_compacted/lock"
        system, lock = file_system(self.spark, path)
        if system.exists(lock):
            age_s = max(time.time() - system.getFileStatus(lock).getModificationTime() / 1000, 0)
            if age_s < STALE_S:
                raise ReportError(
                    f"{path}: another compaction is running ({(read_text(self.spark, path) or '').strip()}, last seen "
                    f"{age_s:.0f} s ago). If it was killed, delete that file, or wait until it is {STALE_S / 3600:g} h "
                    "old"
                )
            system.delete(lock, False)
        try:
            system.create(lock, False).close()
        except Exception as error:
            raise ReportError(f"{path}: another compaction has just started") from error
        self.touch()

    def touch(self) -> None:
        """Show that the run is still in progress."""
        write_text(self.spark, f"{self.place}/_compacted/lock", f"on {socket.gethostname()}\n")

    def unlock(self) -> None:
        """Unlock the store."""
        delete(self.spark, f"{self.place}/_compacted/lock")

    def _forget_states(self, day: str, but: str | None = None) -> None:
        for name in names_in(self.spark, f"{self.place}/_compacted"):
            if name.startswith(f"date={day}.") and (but is None or but not in name):
                delete(self.spark, f"{self.place}/_compacted/{name}")

    def _of_day(self, day: str) -> list[str]:
        return [f"{self.records}/date={day}", *(f"{self.rollups}/{name}/date={day}" for name in (*STEPS, WORDS))]


def _prefix(generation: int) -> str:
    return f"g{generation:06}-"


def days_below(spark: SparkSession, pattern: str) -> dict[str, list[str]]:
    """Directories `date=YYYY-MM-DD` at `pattern`, or up to two levels below it: day -> directories."""
    found: dict[str, list[str]] = {}
    for depth in ("", "*/", "*/*/"):
        system, path = file_system(spark, f"{pattern.rstrip('/')}/{depth}date=????-??-??")
        for status in system.globStatus(path) or []:
            if status.isDirectory():
                place = status.getPath()
                found.setdefault(str(place.getName())[len("date=") :], []).append(str(place.toString()))
    return found
