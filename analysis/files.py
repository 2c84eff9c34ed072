"""Files through Hadoop's own file systems, so that a directory, HDFS and an object store are written the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from analysis.errors import ReportError

T = TypeVar("T")
LOOKED_AT = 50
MAX_UNREADABLE = 200
DELETED_AT_ONCE = 16
"""An object store takes some 30 ms for each."""
_RESULT = re.compile(r".*\.(csv|parquet)|values(-.*)?\.yaml", re.DOTALL)
_FORMULA = r"[[\s\p{Z}\p{C}]&&[^\t\r\n]]*[=+\-@\uFF1D\uFF0B\uFF0D\uFF20]"
_BEFORE_FORMULAS = rf"(?:^|(?<=[;\t\r\n]))(?={_FORMULA})|^(?=[\t\r\n])"
"""Characters that begin a formula in a spreadsheet, even one that takes a semicolon or a tab as a cell's end."""


def file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system for a path, and the path in its form."""
    jvm = cast(Any, spark._jvm)
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(cast(Any, spark._jsparkSession).sessionState().newHadoopConf()), place


def same_system(spark: SparkSession, paths: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """The same for many paths of one file system, which is asked for once: that takes milliseconds."""
    if paths:
        system, _ = file_system(spark, paths[0])
        new = cast(Any, spark._jvm).org.apache.hadoop.fs.Path
        yield from ((system, new(path)) for path in paths)


def some_file(spark: SparkSession, pattern: str) -> str | None:
    """One data file at or below `pattern`, a Parquet one if there is one among the first; None if there is none."""
    few = list(islice(files_below(spark, pattern), LOOKED_AT))
    return next((name for name in few if name.endswith(".parquet")), few[0] if few else None)


def files_below(spark: SparkSession, pattern: str) -> Iterator[str]:
    """The data files at or below a path or a glob. Names with `_` or `.` first are not data, as in Spark."""
    system, place = file_system(spark, pattern)

    def below(status: Any) -> Iterator[str]:
        if status.isFile():
            yield str(status.getPath().toString())
            return
        for inner in system.listStatus(status.getPath()):
            if inner.getPath().getName()[0] not in "_.":
                yield from below(inner)

    for status in system.globStatus(place) or []:
        yield from below(status)


def unreadable_file(error: Exception) -> str | None:
    """The file that Spark could not read (truncated, damaged, of another format); None if it failed otherwise."""
    found = re.search(r"Encountered error while reading file (\S+)", str(error))
    return found[1].removesuffix(".") if found and "/_staging/" not in found[1] else None


def without_unreadable(source: str, unreadable: list[str], make: Callable[[], T]) -> T:
    """What `make` returns. It is called again with each file added to `unreadable` that Spark cannot read: such a file
    is only found while it is read. Raises ReportError when there are too many."""
    while True:
        try:
            return make()
        except Exception as error:
            file = unreadable_file(error)
            if file is None or file in unreadable:
                raise
            unreadable.append(file)
            if len(unreadable) > MAX_UNREADABLE:
                raise ReportError(
                    f"--input {source}: more than {MAX_UNREADABLE} unreadable files, the last {file}: {error}"
                ) from error


def without_files(frame: DataFrame, addresses: Sequence[str]) -> DataFrame:
    """The rows from all files but these. Spark does not even open them, as it compares addresses first."""
    # Here, a local file is file:/a/b; in rows it is file:///a/b.
    both = [form for one in addresses for form in (one, one.replace(":///", ":/"))]
    return frame.where(~F.col("_metadata.file_path").isin(both)) if both else frame


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small text file, replacing any existing one."""
    system, place = file_system(spark, path)
    with closing(system.create(place, True)) as stream:
        stream.write(bytearray(text.encode()))


def read_text(spark: SparkSession, path: str) -> str | None:
    """Read a small text file; None if it does not exist."""
    system, place = file_system(spark, path)
    if not system.exists(place):
        return None
    with closing(system.open(place)) as stream:
        return bytes(stream.readAllBytes()).decode()


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or a directory."""
    system, place = file_system(spark, path)
    return bool(system.exists(place))


def names_in(spark: SparkSession, directory: str) -> list[str]:
    """The names of what is in a directory, in order; none if it does not exist."""
    system, place = file_system(spark, directory)
    found = system.listStatus(place) if system.exists(place) else []
    return sorted(str(status.getPath().getName()) for status in found)


def renamed(spark: SparkSession, path: str, to: str) -> bool:
    """Rename a file of any file system; returns whether that has worked."""
    system, place = file_system(spark, to)
    return bool(system.rename(file_system(spark, path)[1], place))


def delete(spark: SparkSession, path: str) -> None:
    """Delete a file or a directory with its content, if it exists."""
    system, place = file_system(spark, path)
    system.delete(place, True)


def delete_earlier(spark: SparkSession, directory: str, now: Collection[str]) -> None:
    """Delete the results that an earlier run of a report wrote to a directory, and this one did not."""
    for name in names_in(spark, directory):
        if _RESULT.fullmatch(name) and name not in now:
            delete(spark, f"{directory}/{name}")


def kept(frame: DataFrame, path: str) -> DataFrame:
    """Compute it once, write it as Parquet, and continue with what was written: a cache that needs no memory."""
    frame.write.mode("overwrite").parquet(path)
    return frame.sparkSession.read.schema(frame.schema).parquet(path)  # with a schema no file is read for it


def write_csv(frame: DataFrame, path: str, order: Sequence[Column | str]) -> None:
    """Write a result as one CSV file with a heading, replacing any existing one: one task writes and sorts it."""
    spark = frame.sparkSession
    parts = f"{path}.parts"
    frame = frame.repartition(1).sortWithinPartitions(*order)
    # Without the two options for white space Spark would strip it, and two names could become one.
    exact: dict[str, bool | str] = {
        "header": True,
        "escape": '"',
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
    }
    without_formulas(frame).write.mode("overwrite").options(**exact).csv(parts)
    (part,) = (name for name in names_in(spark, parts) if name.endswith(".csv"))
    delete(spark, path)
    renamed(spark, f"{parts}/{part}", path)
    delete(spark, parts)


def without_formulas(frame: DataFrame) -> DataFrame:
    """The same rows, with an apostrophe before texts that a spreadsheet would take for a formula (as OWASP advises):
    names come from clients. Numbers, which may be negative, stay numbers."""
    texts = [field.name for field in frame.schema.fields if isinstance(field.dataType, StringType)]
    return frame.withColumns({name: F.regexp_replace(name, F.lit(_BEFORE_FORMULAS), F.lit("'")) for name in texts})


def addresses(lines: str | None) -> list[str]:
    """The addresses that are the lines of a text; a local one is file:/a/b, whether it was that or file:///a/b."""
    return lines.replace(":///", ":/").split("\n") if lines else []


def input_files(frame: DataFrame) -> list[str]:
    """The addresses of the files of a frame, by one call to the JVM; :meth:`DataFrame.inputFiles` makes many."""
    strings = cast(Any, frame.sparkSession._jvm).org.apache.hadoop.util.StringUtils
    joined = str(strings.join("\n", frame._jdf.inputFiles()))
    return addresses(joined)


def input_bytes(frame: DataFrame) -> int:
    """The bytes of the files of a frame that was just opened, as Spark has listed them."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def delete_files(spark: SparkSession, addresses: Sequence[str], above: str) -> None:
    """Delete these files (of :func:`input_files`), then empty directories as far up as names begin with `above`."""
    local = [unquote(urlsplit(one).path) for one in addresses if one.startswith("file:/")]
    for path in local:  # without the JVM, which takes ten times as long
        Path(path).unlink(missing_ok=True)
    for directory in _emptied(local, above):
        with suppress(OSError):  # something else is in it, or has come meanwhile
            Path(directory).rmdir()
    others = [unquote(one) for one in addresses if not one.startswith("file:/")]
    with ThreadPoolExecutor(DELETED_AT_ONCE) as pool:
        list(pool.map(lambda found: found[0].delete(found[1], False), same_system(spark, others)))
    for system, path in same_system(spark, _emptied(others, above)):
        with suppress(Py4JJavaError):
            system.delete(path, False)


def _emptied(files: Sequence[str], above: str) -> list[str]:
    found: set[str] = set()
    for inner in {file.rpartition("/")[0] for file in files}:
        parts = inner.split("/")
        first = next((place for place, name in enumerate(parts) if name.startswith(above)), len(parts))
        found.update("/".join(parts[:end]) for end in range(first + 1, len(parts) + 1))
    return sorted(found, key=lambda one: (-one.count("/"), one))
