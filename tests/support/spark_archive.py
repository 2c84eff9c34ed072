"""Spark's classes as the JVM wants them in memory (AppCDS), for tests: sessions start with half of the work."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from analysis.session import QUICK_JVM, SMALL, open_session
from tests.lab.kafka.archive import archive_path, make_once

END_LIMIT_S: Final = 300.0
JAR_TIME_S: Final = 1_577_836_800
"""Of all jars of Spark: the start of 2020, UTC."""


@cache
def spark_archive() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    found = jars()
    return archive_path("spark", java, found) if java.exists() and found else None


def jars() -> list[Path]:
    spark = find_spec("pyspark")
    return [] if spark is None or spark.origin is None else sorted((Path(spark.origin).parent / "jars").glob("*.jar"))


def quick_jvm() -> str:
    path = spark_archive()
    return QUICK_JVM if path is None or not path.is_file() else f"{QUICK_JVM} -XX:SharedArchiveFile={path}"


def learn(archive: Path) -> None:
    """Run what jobs run, over a few rows, in the archive's directory; the JVM writes the archive as it ends."""
    from pyspark import SparkContext
    from pyspark.sql import functions

    java = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={archive} -Xlog:disable -Xlog:all=error:stderr"
    conf = {**SMALL, "spark.driver.extraJavaOptions": java}
    print("preparing the classes of Spark for quick starts")
    session, folder = open_session("local[2]", "1g", conf), archive.parent
    (folder / "rows.json").write_text('{"name": "a", "size": 1}\n{"name": "b", "size": 2}\nnone\n')
    rows = session.read.schema("name STRING, size LONG").json(str(folder / "rows.json"))
    sums = rows.groupBy("name").agg(functions.sum("size").alias("sum"), functions.max("size").alias("most"))
    rows.join(sums, "name").orderBy("sum").write.parquet(str(folder / "parquet"))
    session.read.parquet(str(folder / "parquet")).dropDuplicates(["name"]).collect()
    gateway: Any = SparkContext._gateway
    process = gateway.proc
    session.stop()
    gateway.shutdown()
    process.stdin.close()  # Spark's JVM ends with its Python
    process.wait(END_LIMIT_S)


def make() -> None:
    for jar in jars():
        if jar.stat().st_mtime != JAR_TIME_S:
            os.utime(jar, (JAR_TIME_S, JAR_TIME_S))
    archive = spark_archive()
    if archive is not None:
        make_once(archive, learn)


if __name__ == "__main__":
    make()
