"""The only way by which rows come to the driver: a few of a small result."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row

MOST_ROWS = 1000
"""More of a table never comes to the driver; it is all in the files."""


def some_rows(frame: DataFrame, most: int = MOST_ROWS) -> list[Row]:
    """The first rows of a small result. Never more than MOST_ROWS."""
    return frame.limit(min(most, MOST_ROWS)).collect()
