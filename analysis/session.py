"""The Spark session of a report: settings that jobs rely on are here, all others can be configured."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from analysis.errors import ReportError

MIN_JAVA, MAX_JAVA = 17, 21
JAVA_MODULE = "jdk.incubator.vector"
JAVA_LIMIT_S = 60


def find_java() -> Path:
    """The home of the Java to use: $JAVA_HOME, else that of `java` on PATH. Raises ReportError: what was tried."""
    tried = []
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    for source, java in (("JAVA_HOME", Path(home) / "bin" / "java" if home else None), ("PATH", on_path)):
        if java is None:
            tried.append(f"{source}: none")
            continue
        real = Path(java).resolve()
        complaint = complaint_about(real)
        if complaint is None:
            return real.parent.parent
        tried.append(f"{source}: {java} {complaint}")
    raise ReportError(
        f"Spark needs Java {MIN_JAVA} or {MAX_JAVA} with the module {JAVA_MODULE}, and none was found:\n"
        + "".join(f"  {line}\n" for line in tried)
        + f"Install one, such as Debian's openjdk-{MIN_JAVA}-jre-headless, or set JAVA_HOME."
    )


def complaint_about(java: Path) -> str | None:
    """Why this `java` cannot run Spark; None if it can."""
    try:
        listed = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=JAVA_LIMIT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "does not run"
    found = re.search(r"java\.base@(\d+)", listed)
    if found is None or not MIN_JAVA <= int(found[1]) <= MAX_JAVA:
        return f"is Java {found[1]}" if found else "is broken, or Java 8, which has no modules"
    return None if JAVA_MODULE in listed else f"has no module {JAVA_MODULE}"


OLDEST, NEWEST = (3, 5), (4, 3)
SMALL_BYTES = 100_000_000
"""Input up to this size is read by a session for small data (:func:`small`)."""
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xmn400m "
    "-Djdk.lang.Process.launchMechanism=VFORK"
)
"""A JVM for a few rows: the quick compiler, a cache for its code, one collector thread, vfork for Hadoop's `chmod`."""
SMALL = {
    # Of the time for a few records most is spent on compiling: Java's quick compiler alone, and no code for queries.
    # Nor does Java verify the bytecode of Spark's own jars again: a tenth of the time of a report.
    "spark.driver.extraJavaOptions": f"{QUICK_JVM} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}

_NEEDED = {
    "spark.sql.session.timeZone": "UTC",  # hours and days in reports are UTC
    "spark.sql.ansi.enabled": "true",
    # Columns that no query uses would not be parsed, and a row's errors would depend on the query.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.json.enablePartialResults": "true",
}
_USUAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    # The line of code next to each column, for errors: half of the time that it takes Python to make up a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # No limit of bytes for what Python gets at once, only that of rows: Spark 4.0 adds up a batch again for each row,
    # and for arrays that goes through all rows before it.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def spark_version() -> tuple[str, str]:
    """The versions of the installed Spark and of its packages' Scala. Raises ReportError for an unsupported Spark."""
    number = tuple(map(int, pyspark.__version__.split(".")[:2]))
    if not OLDEST <= number <= NEWEST:
        least, most = (".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise ReportError(f"reports run on Spark {least} to {most}, this is {pyspark.__version__}")
    return pyspark.__version__, "2.12" if number < (4, 0) else "2.13"


def before_spark_4() -> bool:
    """Whether Spark 3 is installed. Raises ReportError as `spark_version`."""
    return spark_version()[0].startswith("3.")


def kafka_package() -> str:
    """The Kafka source and sink for the Spark that is installed; fetched from Maven Central at first use."""
    version, scala = spark_version()
    return f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{version}"


def submitted() -> bool:
    """Whether spark-submit started us: Java runs, master and memory are chosen."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def small(place: str, master: str | None) -> dict[str, str]:
    """Spark's configuration for little input; empty if there is more, or it is not on this machine."""
    if not (master or "local").startswith("local") or submitted():
        return {}
    path = place.removeprefix("file://")
    total = 0
    for found in glob.iglob(path) if "://" not in path else ():
        for one in [Path(found), *Path(found).rglob("*")]:
            total += one.stat().st_size if one.is_file() else 0
            if total > SMALL_BYTES:
                return {}
    return dict(SMALL) if total else {}


def open_session(
    master: str | None = None, memory: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The existing session (spark-submit), or a new one, local on all cores unless `master` says otherwise. `conf`
    overrides everything but what the jobs rely on. Raises ReportError when there is no Java that can run it."""
    spark_version()
    conf = dict(conf or {})
    builder = SparkSession.builder.appName("kquota report")
    if SparkSession.getActiveSession() is None and not submitted():
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the one with NumPy for the replay
        conf.setdefault("spark.master", master or "local[*]")
        conf.setdefault("spark.driver.memory", memory or "2g")
        # Quiet from the JVM's first line on, and a driver that is found without a name server.
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        java = f"-Dlog4j2.configurationFile={quiet} {conf.pop('spark.driver.extraJavaOptions', '')}".strip()
        conf["spark.driver.extraJavaOptions"] = java
        if conf["spark.master"].startswith("local"):
            conf.setdefault("spark.driver.host", "127.0.0.1")
            conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
    elif master is not None:
        builder = builder.master(master)
    for name, value in {**_USUAL, **conf, **_NEEDED}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


ROOT = Path(__file__).resolve().parents[1]
SHIPPED = (*(f"analysis/{name}.py" for name in ("__init__", "errors", "levels", "replay", "trend")), "quota/*.py")
"""Code that Python on executors runs: besides, they need NumPy and PyArrow, and for forecasts statsmodels."""


def ship_code(spark: SparkSession) -> None:
    """Send executors the modules that replays and forecasts run there; they need not have kquota. A local Spark in the
    driver's own Python has them, compiled if the driver's are."""
    local = re.match(r"local(\[|$)", spark.sparkContext.master or "") and not submitted()
    if local and os.environ.get("PYSPARK_PYTHON") == sys.executable:
        return
    archive = Path(SparkFiles.getRootDirectory()) / "kquota-executor.zip"
    if archive.exists():
        return
    with zipfile.ZipFile(archive, "w") as file:
        for pattern in SHIPPED:
            for source in sorted(ROOT.glob(pattern)):
                file.write(source, source.relative_to(ROOT))
    spark.sparkContext.addPyFile(str(archive))
