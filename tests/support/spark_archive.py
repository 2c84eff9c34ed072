"""Spark's classes as the JVM wants them in memory (AppCDS), for tests: sessions start with half of the work.

`python -m tests.support.spark_archive` makes it, once for each Java and Spark, in the cache of the embedded Kafka
(`make test` does). Without one all works, only slower.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from deploy.kafka import cache_dir

QUICK_JVM: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xmn400m "
    "-Djdk.lang.Process.launchMechanism=VFORK"
)
"""For a few rows: the quick compiler only, and one collector thread. With that compiler alone Java reserves 48 MB for
what it compiles, which Spark fills: then it throws methods away and compiles them again. What a query leaves behind is
to be garbage before it is old. And Hadoop starts `chmod` for each file, for which Java starts a helper of its own each
time if it is not told otherwise."""
END_LIMIT_S: Final = 300.0


@cache
def archive_path() -> Path | None:
    """Where the archive for this Java and this Spark is, or would be; None without one of the two."""
    home, spark = os.environ.get("JAVA_HOME"), find_spec("pyspark")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    if spark is None or spark.origin is None or not java.exists():
        return None
    real, jars = java.resolve(), sorted((Path(spark.origin).parent / "jars").glob("*.jar"))
    text = "\n".join([str(real), str(real.stat().st_mtime_ns), *map(str, jars)])
    return cache_dir() / "classes" / f"spark-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsa"


def quick_jvm() -> str:
    """Options of a driver's JVM."""
    path = archive_path()
    return QUICK_JVM if path is None or not path.is_file() else f"{QUICK_JVM} -XX:SharedArchiveFile={path}"


def learn(archive: Path, folder: Path) -> None:
    """Run what jobs run, over a few rows; the JVM writes the archive as it ends."""
    from pyspark import SparkContext
    from pyspark.sql import functions

    from analysis.session import open_session

    java = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={archive} -Xlog:disable -Xlog:all=error:stderr"
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": java,
    }
    session = open_session("local[2]", "1g", conf)
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
    """Make it if it is not there; other processes wait meanwhile."""
    archive = archive_path()
    if archive is None:
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / ".spark-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        print("preparing the classes of Spark for quick starts")
        with tempfile.TemporaryDirectory(prefix=".learning-", dir=archive.parent) as folder:
            learn(scratch := Path(folder) / "spark.jsa", Path(folder))
            if scratch.is_file():
                os.replace(scratch, archive)


if __name__ == "__main__":
    make()
