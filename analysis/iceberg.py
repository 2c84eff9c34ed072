"""The records of a store as an Iceberg table (ADR 0025), in `STORE/records` and without a catalog server. Iceberg's jar
has to be there when Spark starts, so :func:`session_conf` finds out before that whether a store is a table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analysis.columns import only_row
from analysis.errors import ReportError
from analysis.files import file_system
from analysis.session import spark_version
from quota.record import FIELDS, IDENTITY

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


def package() -> str:
    """Iceberg for the Spark that is installed; fetched from Maven Central at first use. Raises ReportError."""
    version, scala = spark_version()
    spark = ".".join(version.split(".")[:2])
    if spark not in PACKAGES:
        raise ReportError(f"Iceberg has no package for Spark {spark}: use one of {', '.join(PACKAGES)}")
    return f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{scala}:{PACKAGES[spark]}"


def session_conf(conf: Mapping[str, str], places: list[str], form: str | None) -> dict[str, str]:
    """Spark's configuration for Iceberg, to be added to `conf`; empty if neither `form` nor a local store at one of
    these places asks for it."""
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
        system, path = file_system(self.spark, f"{self.place}/{HINT}")
        return bool(system.exists(path))

    def read(self) -> DataFrame:
        """All records, with `date` and `cluster`; fields that the table lacks are null. Raises ReportError without
        Iceberg."""
        self.open()
        return self._with_all_fields(self.spark.table(self.name))

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
        self._tidy(day)
        return self._with_all_fields(self.spark.table(self.name)).where(F.col("date") == day)

    def files(self, day: str) -> tuple[int, int]:
        """Number and bytes of the day's files."""
        found = self.spark.table(f"{self.name}.files").where(F.col("partition.date") == day)
        row = only_row(found.agg(F.count("*"), F.coalesce(F.sum("file_size_in_bytes"), F.lit(0))))
        return int(row[0]), int(row[1])

    def drop(self, day: str) -> None:
        """Delete a day's records; whole partitions, so that no file is read."""
        if self.exists():
            self.open()
            self.spark.sql(f"DELETE FROM {self.name} WHERE date = '{day}'")

    def expire(self) -> None:
        """Delete files that have belonged to no snapshot for five days: until then readers may still need them."""
        if self.exists():
            self.open()
            self.spark.sql(f"CALL {self.catalog}.system.expire_snapshots(table => 'records')")

    def open(self) -> None:
        """Register the table's catalog in the session. Raises ReportError when the session has no Iceberg."""
        loader = cast(Any, self.spark._jvm).java.lang.Thread.currentThread().getContextClassLoader()
        try:
            loader.loadClass(CATALOG)
        except Py4JJavaError:
            raise ReportError(
                f"{self.place}: its records are an Iceberg table, and this Spark session has no Iceberg: add "
                f"--format iceberg, which downloads it, or give spark-submit --packages {package()} (docs/analysis.md)"
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
            told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            self.spark.sql(
                f"CREATE TABLE {self.name} ({columns}, `date` string, `cluster` string) USING iceberg "
                f"PARTITIONED BY (`date`, `cluster`) TBLPROPERTIES ({told})"
            )
            self.spark.sql(f"ALTER TABLE {self.name} WRITE ORDERED BY {', '.join(f'`{one}`' for one in ORDER)}")
        known = set(self.spark.table(self.name).columns)
        missing = [f"`{field.name}` {field.type}" for field in FIELDS if field.name not in known]
        if missing:
            self.spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({', '.join(missing)})")

    def _tidy(self, day: str) -> None:
        """Rewrite a day's files, sorted, where a cluster has five or more that are too small (Iceberg's own rule)."""
        self.spark.sql(
            f"CALL {self.catalog}.system.rewrite_data_files(table => 'records', strategy => 'sort', "
            f"sort_order => '{', '.join(ORDER)}', where => 'date = \"{day}\"')"
        )

    def _with_all_fields(self, rows: DataFrame) -> DataFrame:
        known = set(rows.columns)
        return rows.select(
            *(
                F.col(field.name) if field.name in known else F.lit(None).cast(field.type).alias(field.name)
                for field in FIELDS
            ),
            "date",
            "cluster",
        )
