"""The layout of compacted records, and how a day is replaced by a newer version without ever being missing.

    STORE/records/date=2026-08-01/cluster=east/g000002-….parquet   the records, sorted by client
    STORE/rollups/minute/date=2026-08-01/cluster=east/g000002-….parquet   sums per client and minute; also hour, day
    STORE/rollups/words/date=2026-08-01/g000002-….parquet          which records those cover (analysis.audit.words)
    STORE/_compacted/date=2026-08-01.g000002.json                  what they were made of; the highest number counts
    STORE/set-aside/date=2026-08-01/                               rows that are not records
    STORE/_compacted/lock                                          the run at work

Where the records are an Iceberg table (:mod:`analysis.iceberg`), `records` is that table's directory.

Files of a new generation are put beside those of the old one before its state is written, and those of the old one are
deleted after that. So at any moment all records exist, some of them twice; readers drop duplicates by their id. Of
rollups, which have no ids, only those of the current generation are read.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analysis.days import Days
from analysis.errors import ReportError, WrongUseError
from analysis.files import delete, file_system, read_text, write_text
from analysis.iceberg import IcebergRecords
from analysis.rollups import STEPS
from analysis.session import before_spark_4
from quota.record import spark_ddl

WORDS = "words"
"""The rollup that says which records the others cover."""
STALE_MS = 2 * 3_600_000
"""A lock that has not been touched for this long belonged to a run that was killed. It is touched with each day."""


def parquet_ddl() -> str:
    """The columns of records in Parquet; integers may be wider, which Spark's readers take from 4.0 on
    (SPARK-40876)."""
    ddl = spark_ddl()
    return ddl if before_spark_4() else ddl.replace(" INT,", " BIGINT,")


@dataclass(frozen=True, slots=True)
class Day:
    """The state of a day in the store."""

    date: str
    generation: int
    records: int
    files: int
    read: tuple[int, int]
    """The number of input files, and their bytes, when it was made."""
    rollups: bool = False
    """Whether it has rollups: days made by an earlier version have none."""


class Store:
    """The directory of compacted records."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.spark = spark
        self.place = place.rstrip("/")
        table = IcebergRecords(spark, self.place)
        self.table = table if table.exists() else None
        """The table that its records are; None: plain files."""

    @property
    def records(self) -> str:
        """Where reports read."""
        return f"{self.place}/records"

    @property
    def rollups(self) -> str:
        """Where sums of them are."""
        return f"{self.place}/rollups"

    def exists(self) -> bool:
        """Whether the store exists."""
        system, path = file_system(self.spark, f"{self.place}/_compacted")
        return bool(system.exists(path))

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
        schema = f"{parquet_ddl()}, date STRING, cluster STRING"
        if self.table is not None:
            columns = (one.split(" ") for one in schema.split(", "))
            return self.table.read().select(*(F.col(name).cast(kind).alias(name) for name, kind in columns))
        return self.spark.read.schema(schema).parquet(self.records)

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
        for name in sorted(self._names(f"{self.place}/_compacted")):
            if re.fullmatch(r"date=[\d-]+\.g\d+\.json", name):
                text = read_text(self.spark, f"{self.place}/_compacted/{name}")
                values = json.loads(text or "{}")
                found[values["date"]] = Day(**{**values, "read": tuple(values["read"])})
        return found

    def place_files(self, made: str, day: str, generation: int, rollup: str | None = None) -> int:
        """Move the files below `made`, which are there by cluster except for words, to their day; returns how many."""
        root = self.records if rollup is None else f"{self.rollups}/{rollup}"
        clusters = [f"/{name}" for name in self._names(made) if name.startswith("cluster=")]
        count = 0
        for cluster in [""] if rollup == WORDS else clusters:
            target = f"{root}/date={day}{cluster}"
            system, path = file_system(self.spark, target)
            system.mkdirs(path)
            for name in self._names(f"{made}{cluster}"):
                if name.endswith(".parquet"):
                    source = file_system(self.spark, f"{made}{cluster}/{name}")[1]
                    if not system.rename(source, file_system(self.spark, f"{target}/{_prefix(generation)}{name}")[1]):
                        raise ReportError(f"{target}: a file cannot be moved there from {made}")
                    count += 1
        return count

    def commit(self, state: Day) -> None:
        """Make these the day's records: written aside, then renamed to a new name."""
        name = f"{self.place}/_compacted/date={state.date}.{_prefix(state.generation)[:-1]}.json"
        write_text(self.spark, f"{name}.new", json.dumps(asdict(state)))
        system, path = file_system(self.spark, name)
        if not system.rename(file_system(self.spark, f"{name}.new")[1], path):
            raise ReportError(f"{name}: cannot be written")

    def tidy(self, day: str, generation: int) -> None:
        """Delete what is not of this generation: earlier ones, and what an interrupted run left behind."""
        for directory in self._of_day(day):
            for file in _files(self.spark, directory):
                if not file.rsplit("/", 1)[1].startswith(_prefix(generation)):
                    delete(self.spark, file)
        for name in self._names(f"{self.place}/_compacted"):
            if name.startswith(f"date={day}.") and f".{_prefix(generation)[:-1]}." not in name:
                delete(self.spark, f"{self.place}/_compacted/{name}")

    def drop(self, day: str) -> None:
        """Delete a day: its records first, so that the next run deletes the rest if this one is interrupted."""
        if self.table is not None:
            self.table.drop(day)
        for place in (*self._of_day(day), f"{self.place}/set-aside/date={day}"):
            delete(self.spark, place)
        for name in self._names(f"{self.place}/_compacted"):
            if name.startswith(f"date={day}."):
                delete(self.spark, f"{self.place}/_compacted/{name}")

    def lock(self, now_ms: int) -> None:
        """Lock the store. Raises ReportError when another run is in progress."""
        path = f"{self.place}/_compacted/lock"
        system, lock = file_system(self.spark, path)
        if system.exists(lock):
            age_ms = now_ms - int(system.getFileStatus(lock).getModificationTime())
            if age_ms < STALE_MS:
                raise ReportError(
                    f"{path}: another compaction is at work ({(read_text(self.spark, path) or '').strip()}, last seen "
                    f"{max(age_ms, 0) // 1000} s ago). If it was killed, delete that file, or wait until it is "
                    f"{STALE_MS // 3_600_000} h old"
                )
            system.delete(lock, False)
        try:
            system.create(lock, False).close()
        except Exception as error:
            raise ReportError(f"{path}: another compaction began at this moment") from error
        self.touch()

    def touch(self) -> None:
        """Show that the run is still in progress."""
        write_text(self.spark, f"{self.place}/_compacted/lock", f"on {socket.gethostname()}\n")

    def unlock(self) -> None:
        """Unlock the store."""
        delete(self.spark, f"{self.place}/_compacted/lock")

    def _of_day(self, day: str) -> list[str]:
        return [f"{self.records}/date={day}", *(f"{self.rollups}/{name}/date={day}" for name in (*STEPS, WORDS))]

    def _names(self, directory: str) -> list[str]:
        return sorted(str(status.getPath().getName()) for status in _listed(self.spark, directory))


def _prefix(generation: int) -> str:
    return f"g{generation:06}-"


def _listed(spark: SparkSession, directory: str) -> Iterator[Any]:
    system, path = file_system(spark, directory)
    if system.exists(path):
        yield from system.listStatus(path)


def _files(spark: SparkSession, directory: str) -> list[str]:
    found: list[str] = []
    for status in _listed(spark, directory):
        place = str(status.getPath().toString())
        found += _files(spark, place) if status.isDirectory() else [place]
    return found


def days_below(spark: SparkSession, pattern: str) -> dict[str, list[str]]:
    """Directories `date=…` at `pattern`, or up to two levels below it: day -> directories."""
    found: dict[str, list[str]] = {}
    for depth in ("", "*/", "*/*/"):
        system, path = file_system(spark, f"{pattern.rstrip('/')}/{depth}date=*")
        for status in system.globStatus(path) or []:
            if status.isDirectory():
                place = status.getPath()
                found.setdefault(str(place.getName())[len("date=") :], []).append(str(place.toString()))
    return found
