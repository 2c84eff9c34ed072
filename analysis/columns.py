"""Column expressions that jobs share, and the only way for rows to get to the driver: a few of a small result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

HOUR_S, DAY_S = 3600, 86_400
CLIENT = ("cluster_id", "user", "client_id")
MAX_ROWS = 1000
"""The driver never gets more rows of a table; all of them are in the files."""


def cluster() -> Column:
    """The cluster's id, empty if none is configured: a null would not join with itself."""
    return F.coalesce("cluster_id", F.lit("")).alias("cluster_id")


def bucket(seconds: int) -> Column:
    """Start of the time bucket (s since 1970, UTC) that contains the middle of the interval, which is not split."""
    return start_of((F.col("start_ms") + F.col("end_ms")) / 2 / 1000, seconds)


def start_of(time_s: Column, seconds: int) -> Column:
    """Start of the time bucket (s since 1970, UTC) that contains this time."""
    return (F.floor(time_s / seconds) * seconds).cast("long")


def place_in(name: str, texts: Sequence[str]) -> Column:
    """The place of the text in this column among `texts`, from 0; null if it is none of them."""
    return F.coalesce(*(F.when(F.col(name) == text, F.lit(place)) for place, text in enumerate(texts)))


def grain_for(asked_s: int, interval_s: float) -> int:
    """The time bucket for rates: the one asked for, or the next divisor of an hour that an interval fits into (5 %
    longer ones are tolerated), as a record counts in one bucket whole."""
    fits = (one for one in range(asked_s, HOUR_S) if HOUR_S % one == 0 and one >= interval_s * 0.95)
    return next(fits, HOUR_S)


def sums(names: Iterable[str]) -> list[Column]:
    """The sum of each of these columns, by its name."""
    return [F.sum(name).alias(name) for name in names]


def named(**expressions: str) -> list[Column]:
    """Columns by name, each an expression in Spark's SQL."""
    return [F.expr(one).alias(name) for name, one in expressions.items()]


def merged(**names: Sequence[str]) -> list[Column]:
    """Aggregates that keep their column's name, by function: ``merged(sum=["records"], min=["first_ms"])``."""
    return [F.expr(f"{function}({name})").alias(name) for function, each in names.items() for name in each]


def only_row(frame: DataFrame) -> Row:
    """The row of an aggregate without groups."""
    row = frame.head()
    assert row is not None
    return row


def together() -> list[Column]:
    """For rows that summarise records: their total number, and the first and last time."""
    return merged(sum=["records"], min=["first_ms"], max=["last_ms"])


def seen(rows: DataFrame) -> DataFrame:
    """`first_ms` and `last_ms` as timestamps, `first_seen` and `last_seen`."""
    times = named(first_seen="timestamp_seconds(first_ms / 1000)", last_seen="timestamp_seconds(last_ms / 1000)")
    return rows.select("*", *times).drop("first_ms", "last_ms")


def some_rows(frame: DataFrame, most: int = MAX_ROWS) -> list[Row]:
    """The first rows of a small result, times in UTC. Never more than MAX_ROWS."""
    rows = frame.limit(min(most, MAX_ROWS)).collect()
    if not any(isinstance(field.dataType, TimestampType) for field in frame.schema.fields):
        return rows
    made = Row(*frame.columns)
    return [made(*(one.astimezone(UTC) if isinstance(one, datetime) else one for one in row)) for row in rows]
