"""Compacted records as plain files, as an Iceberg table and as a Delta table: what merging, reading and tidying take.

`python -m benchmarks.suites.analysis_tables` (ADR 0025 has the outcome). The same steps for each, in a process and a
JVM of its own, on the records of a small generated fleet: three days are written without a twentieth of the second
day's records; these come late, together with a tenth that was there already.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from analysis.columns import DAY_S, cluster
from analysis.iceberg import IcebergRecords, package, session_conf
from analysis.session import open_session
from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import cpu_s, describe_machine
from quota.record import FIELDS, IDENTITY
from tests.lab.fleet import START_MS, GeneratedFleet
from tests.lab.fleet import write as write_fleet

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
DELTA = "io.delta:delta-spark_2.13:4.0.0"
NAMES = [field.name for field in FIELDS]
DAYS = 3
DAY = str(datetime.fromtimestamp(START_MS / 1000 + DAY_S, UTC).date())
PARTS = 2
SAME = " AND ".join(f"t.{name} = s.{name}" for name in IDENTITY)


class Layout:
    """What the steps need of a format; this one: plain files, by `date` and `cluster`, as `compact` writes them."""

    conf: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.spark, self.place = spark, place

    def write(self, rows: DataFrame) -> None:
        """A new table."""
        rows.write.partitionBy("date", "cluster").option("compression", "zstd").parquet(self.place)

    def read(self) -> DataFrame:
        """All of it."""
        return self.spark.read.parquet(self.place)

    def merge(self, rows: DataFrame) -> None:
        """Add those that are not there. Of files: the day is written anew."""
        both = self.read().where(F.col("date") == DAY).select(*NAMES).unionByName(rows.select(*NAMES))
        made = f"{self.place}-made"
        order = ("cluster", "user", "client_id")
        once = both.dropDuplicates(list(IDENTITY)).withColumn("cluster", cluster())
        rows = once.repartitionByRange(PARTS, *order).sortWithinPartitions(*order, "start_ms")
        rows.write.mode("overwrite").partitionBy("cluster").option("compression", "zstd").parquet(made)
        shutil.rmtree(f"{self.place}/date={DAY}")
        os.rename(made, f"{self.place}/date={DAY}")

    def tidy(self) -> None:
        """Sort the day's rows into few files."""

    def forget(self) -> None:
        """Delete files that are part of no table any more."""


class Iceberg(Layout):
    """As kquota writes it."""

    conf = session_conf({}, [], "iceberg")

    def __init__(self, spark: SparkSession, place: str) -> None:
        super().__init__(spark, place)
        self.table = IcebergRecords(spark, place)
        self.table.open()

    def write(self, rows: DataFrame) -> None:
        """A new table."""
        self.table.make()
        rows.writeTo(self.table.name).append()

    def read(self) -> DataFrame:
        """All of it."""
        return self.spark.table(self.table.name)

    def merge(self, rows: DataFrame) -> None:
        """By SQL."""
        view = f"late_{threading.get_ident()}"
        rows.createOrReplaceTempView(view)
        on = f"t.date = '{DAY}' AND {SAME}"
        self.spark.sql(f"MERGE INTO {self.table.name} t USING {view} s ON {on} WHEN NOT MATCHED THEN INSERT *")

    def tidy(self) -> None:
        """The day, sorted."""
        self.spark.sql(
            f"CALL {self.table.catalog}.system.rewrite_data_files(table => 'records', strategy => 'sort', "
            f"sort_order => 'user, client_id, start_ms', where => 'date = \"{DAY}\"', "
            "options => map('rewrite-all', 'true'))"
        )

    def forget(self) -> None:
        """At once; usually after days."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        self.spark.sql(
            f"CALL {self.table.catalog}.system.expire_snapshots(table => 'records', older_than => TIMESTAMP '{now}')"
        )


class Delta(Layout):
    """By its path, without a catalog."""

    conf = {  # noqa: RUF012
        "spark.jars.packages": DELTA,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # With Spark's default VACUUM of a small table took 54 s.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    }

    def write(self, rows: DataFrame) -> None:
        """A new table."""
        rows.write.format("delta").partitionBy("date", "cluster").option("compression", "zstd").save(self.place)

    def read(self) -> DataFrame:
        """All of it."""
        return self.spark.read.format("delta").load(self.place)

    def merge(self, rows: DataFrame) -> None:
        """By SQL."""
        view = f"late_{threading.get_ident()}"
        rows.createOrReplaceTempView(view)
        on = f"t.date = '{DAY}' AND {SAME}"
        self.spark.sql(f"MERGE INTO delta.`{self.place}` t USING {view} s ON {on} WHEN NOT MATCHED THEN INSERT *")

    def tidy(self) -> None:
        """The day, sorted."""
        self.spark.sql(f"OPTIMIZE delta.`{self.place}` WHERE date = '{DAY}' ZORDER BY (user, client_id)").collect()

    def forget(self) -> None:
        """At once; usually after days."""
        self.spark.sql(f"VACUUM delta.`{self.place}` RETAIN 0 HOURS").collect()


LAYOUTS = {"files": Layout, "iceberg": Iceberg, "delta": Delta}


def _share(percent: int, salt: int) -> Column:
    return F.pmod(F.xxhash64(*IDENTITY, F.lit(salt)), F.lit(100)) < percent


def steps(name: str, source: str, place: str, memory: str) -> dict[str, Any]:
    """All steps of one format; figures by step."""
    layout = LAYOUTS[name]
    spark = open_session("local[2]", memory, {**layout.conf, "spark.sql.shuffle.partitions": "8"})
    gateway: Any = SparkContext._gateway
    found: dict[str, Any] = {}

    def step(what: str, do: Callable[[], Any]) -> Any:
        began, cpu = time.monotonic(), cpu_s(gateway.proc.pid)
        result = do()
        found[what] = {
            "seconds": round(time.monotonic() - began, 2),
            "cpu_s": round(cpu_s(gateway.proc.pid) - cpu, 2),
            **_size(place),
        }
        return result

    day = F.to_date(F.timestamp_millis("start_ms")).cast("string")
    rows = spark.read.parquet(f"{source}/[0-9]*").dropDuplicates(list(IDENTITY)).select(*NAMES)
    rows = rows.withColumns({"date": day, "cluster": cluster()})
    rows = rows.select(*NAMES, "date", "cluster")
    step("warm up", lambda: rows.agg(F.sum("produce_bytes")).collect())
    is_late = (F.col("date") == DAY) & _share(5, 1)
    early = rows.where(~is_late).repartitionByRange(PARTS * DAYS, "date", "cluster", "user", "client_id")
    early = early.sortWithinPartitions("date", "cluster", "user", "client_id", "start_ms")
    late = rows.where(is_late | ((F.col("date") == DAY) & _share(10, 2)))
    total = rows.count()
    target = layout(spark, place)
    step("write", lambda: target.write(early))
    late_rows = late.localCheckpoint()
    before = target.read().where(F.col("date") == DAY)
    seen = before.count()
    reader: Any = before.select("sequence")._jdf.queryExecution()
    reader.toRdd()  # which files are to be read has been found out
    step("merge", lambda: target.merge(late_rows))
    merged = target.read().count()
    step("merge again", lambda: target.merge(late_rows))
    again = target.read().count()
    step("tidy", target.tidy)
    try:
        found["a reader that had begun"] = "reads on" if reader.toRdd().count() == seen else "reads other rows"
    except Exception as error:
        found["a reader that had begun"] = next(iter(re.findall(r"\[([A-Z_.]+)\]", str(error))), "fails")
    step("forget", target.forget)
    sums = [F.sum("produce_bytes"), F.sum("fetch_bytes"), F.sum("requests")]
    one = target.read().where(F.col("date") == DAY)
    client = target.read().groupBy("user", "client_id").count().orderBy("count", "client_id").head()
    assert client is not None
    mine = one.where((F.col("user") == client["user"]) & (F.col("client_id") == client["client_id"]))
    for turn in ("first", "second"):
        step(f"read all, {turn}", lambda: target.read().groupBy("user").agg(*sums).collect())
        step(f"read a day, {turn}", lambda: one.groupBy("user").agg(*sums).collect())
        step(f"read a client's day, {turn}", lambda: mine.agg(*sums).collect())
    found["rows"] = {"in all": total, "late": late.where(is_late).count(), "merged": merged, "again": again}
    if name != "files":
        found["two merges of the same rows at once"] = _at_once(target, rows)
    os.rename(place, f"{place}-moved")
    try:
        found["moved to another place"] = f"{layout(spark, f'{place}-moved').read().count()} rows"
    except Exception as error:
        found["moved to another place"] = next(iter(re.findall(r"\w+\.\w+Exception", str(error))), "fails")
    spark.stop()
    return found


def _at_once(target: Layout, rows: DataFrame) -> dict[str, Any]:
    """Two writers merge the same new records: what they say, and how many are there twice after that."""
    new = rows.where(F.col("date") == DAY).limit(5000).withColumn("instance", F.concat(F.lit("new-"), "instance"))
    new = new.localCheckpoint()
    told: list[str] = []
    gate = threading.Barrier(2)

    def merge() -> None:
        gate.wait()
        try:
            target.merge(new)
            told.append("ok")
        except Exception as error:
            told.append(next(iter(re.findall(r"DELTA_[A-Z_]+|\w+\.\w+Exception", str(error))), "failed"))

    threads = [threading.Thread(target=merge) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = target.read().where(F.col("instance").startswith("new-")).count()
    return {"said": sorted(told), "rows": new.count(), "there": there}


def _size(place: str) -> dict[str, int]:
    files = [path for path in Path(place).rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    data = [path for path in files if path.suffix == ".parquet" and "_delta_log" not in path.parts]
    return {
        "data_files": len(data),
        "data_bytes": sum(path.stat().st_size for path in data),
        "other_files": len(files) - len(data),
    }


def main() -> int:
    """Returns the exit code."""
    options = argparse.ArgumentParser(description="Files, Iceberg and Delta, step by step.")
    options.add_argument("--sidecars", type=int, default=200)
    options.add_argument("--memory", default="2g")
    options.add_argument("--formats", default=",".join(LAYOUTS))
    options.add_argument("--json", type=Path, help="where the result goes")
    options.add_argument("--one", nargs=3, metavar=("FORMAT", "SOURCE", "PLACE"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print("result:" + json.dumps(steps(given.one[0], given.one[1], given.one[2], given.memory)))
        return 0
    fleet = GeneratedFleet(sidecars=given.sidecars, days=DAYS, parts=2)
    found: dict[str, Any] = {"packages": {"iceberg": package(), "delta": DELTA}, "fleet": repr(fleet)}
    with tempfile.TemporaryDirectory(prefix="kquota-tables-") as work:
        spark = open_session("local[2]", given.memory, {})
        write_fleet(spark, fleet, f"{work}/fleet", quiet=True)
        spark.stop()
        found["load_before"] = os.getloadavg()
        for name in given.formats.split(","):
            print(f"· {name}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", __spec__.name, "--memory", given.memory, "--one", name, f"{work}/fleet",
                 f"{work}/{name}"],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            (line,) = [line for line in done.stdout.splitlines() if line.startswith("result:")]
            found[name] = json.loads(line.removeprefix("result:"))
            print(json.dumps(found[name], indent=1), flush=True)
        found["load_after"] = os.getloadavg()
    found |= {"machine": describe_machine(), "project": describe_project()}
    if given.json:
        given.json.write_text(stored.text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
