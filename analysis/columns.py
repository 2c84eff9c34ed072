"""Column expressions that several jobs share."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

CLIENT = ("cluster_id", "user", "client_id")
"""Who somebody is, whichever sidecars the connections went through."""


def cluster() -> Column:
    """The cluster's id, empty where none is configured: a null would not join with itself."""
    return F.coalesce("cluster_id", F.lit("")).alias("cluster_id")


def bucket(seconds: int) -> Column:
    """Start of the time bucket (s since 1970, UTC) that the middle of the interval falls into.

    An interval is not cut in two: that would invent a precision that is not there.
    """
    middle_s = (F.col("start_ms") + F.col("end_ms")) / 2 / 1000
    return (F.floor(middle_s / seconds) * seconds).cast("long")


def moment(seconds: Column | str) -> Column:
    """Seconds since 1970 as a timestamp."""
    return F.timestamp_seconds(seconds)


def ratio(above: Column, below: Column) -> Column:
    """A quotient; null where there is nothing to divide by."""
    return F.when(below != 0, above / below)
