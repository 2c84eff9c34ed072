"""Files by Hadoop's own file systems, so that a directory, HDFS and an object store are written in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm = cast(Any, spark._jvm)
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(cast(Any, spark._jsparkSession).sessionState().newHadoopConf()), place


def some_file(spark: SparkSession, pattern: str) -> str | None:
    """The name of one data file at or below `pattern` (a file, a directory or a glob); None if there is none.

    Names that begin with `_` or `.` are no data, as for Spark itself.
    """
    system, place = _file_system(spark, pattern)
    for status in system.globStatus(place) or []:
        name = _first_below(system, status)
        if name is not None:
            return name
    return None


def _first_below(system: Any, status: Any) -> str | None:
    if status.isFile():
        return str(status.getPath().toString())
    for inner in system.listStatus(status.getPath()):
        if inner.getPath().getName()[0] not in "_.":
            found = _first_below(system, inner)
            if found is not None:
                return found
    return None


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small text file, in place of one that is there."""
    system, place = _file_system(spark, path)
    stream = system.create(place, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def delete(spark: SparkSession, path: str) -> None:
    """Delete a file or a directory with what is in it, if it exists."""
    system, place = _file_system(spark, path)
    system.delete(place, True)


def kept(frame: DataFrame, path: str) -> DataFrame:
    """Compute it once, write it as Parquet in place of what is there, and go on with what was written.

    In place of a cache: it needs no memory, and a query that wants few of its columns reads only those.
    """
    frame.write.mode("overwrite").parquet(path)
    return frame.sparkSession.read.schema(frame.schema).parquet(path)  # with a schema no file is asked for it


def write_csv(frame: DataFrame, path: str, order: Sequence[Column | str] = ()) -> None:
    """Write a result as one CSV file with a heading, in place of one that is there.

    One file is written by one task, so that task may as well put it in order: a sort by ranges would compute the rows
    twice, once to find the ranges.
    """
    spark = frame.sparkSession
    parts = f"{path}.parts"
    frame = frame.repartition(1).sortWithinPartitions(*order) if order else frame.coalesce(1)
    frame.write.mode("overwrite").option("header", True).option("escape", '"').csv(parts)
    system, place = _file_system(spark, path)
    (part,) = (
        status.getPath()
        for status in system.listStatus(_file_system(spark, parts)[1])
        if status.getPath().getName().endswith(".csv")
    )
    system.delete(place, True)
    system.rename(part, place)
    delete(spark, parts)


def make_directory(spark: SparkSession, path: str) -> None:
    """Make a directory, if it is not there already."""
    system, place = _file_system(spark, path)
    system.mkdirs(place)
