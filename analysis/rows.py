"""The only way for rows to get to the driver: a few of a small result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

MAX_ROWS = 1000
"""The driver never gets more rows of a table; all of them are in the files."""


def some_rows(frame: DataFrame, most: int = MAX_ROWS) -> list[Row]:
    """The first rows of a small result, times in UTC. Never more than MAX_ROWS."""
    rows = frame.limit(min(most, MAX_ROWS)).collect()
    if not any(isinstance(field.dataType, TimestampType) for field in frame.schema.fields):
        return rows
    made = Row(*frame.columns)
    return [made(*(one.astimezone(UTC) if isinstance(one, datetime) else one for one in row)) for row in rows]


def over_time(frame: DataFrame, time: str, names: Sequence[str], step_s: int) -> tuple[list[Row], int]:
    """Sums of `names` over time, for a plot: one row per `step_s`, or per multiple of it that leaves at most MAX_ROWS.

    Returns the rows in order (`time`, `names`) and the length of their steps in seconds.
    """
    ends = frame.agg(F.unix_timestamp(F.min(time)).alias("first"), F.unix_timestamp(F.max(time)).alias("last")).head()
    assert ends is not None
    if ends["first"] is None:
        return [], step_s
    step = step_s * ((ends["last"] - ends["first"]) // step_s // MAX_ROWS + 1)
    start = F.floor((F.unix_timestamp(time) - ends["first"]) / step) * step + ends["first"]
    sums = frame.groupBy(F.timestamp_seconds(start).alias(time)).agg(*(F.sum(name).alias(name) for name in names))
    return some_rows(sums.orderBy(time)), step
