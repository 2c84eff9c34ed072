"""Rollups: usage per client and time bucket, from records or from the sums that `compact` has made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, cluster, start_of
from analysis.kinds import COUNTS, FLAGS, SECONDS, all_of, of_limits
from quota.entity import Kind

STEPS: Final = {"minute": 60, "hour": HOUR_S, "day": DAY_S}
"""Written by `compact`: name -> seconds of a bucket."""
_AMOUNTS = ("produce_bytes", "fetch_bytes", "request_seconds", "mutations", "requests")


Made = Callable[[], Column]
_SUMS: Final[Mapping[str, Made]] = {
    **{name: partial(F.col, name) for name in (*_AMOUNTS, *COUNTS, *SECONDS)},
    "seconds": lambda: F.col("duration_s"),
    "records": lambda: F.lit(1),
    # Simultaneous delays of several connections are capped at the time itself.
    "held_seconds": lambda: F.least(all_of(SECONDS), F.col("duration_s")),
    "requests_delayed": lambda: all_of(COUNTS),
}
SUMMED: Final = tuple(_SUMS)
_MOST: Final[Mapping[str, Made]] = {
    **{name: partial(F.col, name) for name in ("produce_rate_max", "fetch_rate_max")},
    "last_ms": lambda: F.col("end_ms"),
    **{name: made for kind in Kind for name, made in of_limits(kind).items()},
}
_LEAST: Final[Mapping[str, Made]] = {"first_ms": lambda: F.col("start_ms")}
LIMITS: Final = tuple(name for kind in Kind for name in of_limits(kind))
_PACKED: Final = "_flags"
"""The flags of a client and bucket while they are summed: bits of one number, not eight bytes each."""
NAMES: Final = (*_SUMS, *_MOST, *_LEAST)


def of_records(rows: DataFrame, step_s: int, names: Sequence[str] = NAMES) -> DataFrame:
    """Records -> one row per client and bucket of `step_s` seconds (`bucket`: its start, since 1970), by their
    middle."""
    return _with_flags(_in_buckets(rows, step_s).agg(*_aggregates(names, of_records=True)), names)


def with_library(rows: DataFrame, step_s: int) -> DataFrame:
    """The same, all columns, and the library's name: what `compact` writes."""
    library = F.max("client_library")
    sums = _in_buckets(rows, step_s).agg(*_aggregates(NAMES, of_records=True), library.alias("library"))
    return _with_flags(sums, (*NAMES, "library"))


def coarser(rollup: DataFrame, step_s: int) -> DataFrame:
    """A rollup of shorter buckets -> one of longer ones, which the shorter ones divide."""
    start = start_of(F.col("bucket"), step_s)
    return (
        rollup.withColumn("bucket", start)
        .groupBy(*CLIENT, "bucket")
        .agg(*_aggregates(NAMES, of_records=False), F.max("library").alias("library"))
    )


def step_for(step_s: int) -> str | None:
    """The longest written bucket that divides `step_s` seconds; None if there is none."""
    fits = [name for name, length in STEPS.items() if step_s % length == 0]
    return fits[-1] if fits else None


def _in_buckets(rows: DataFrame, step_s: int) -> GroupedData:
    return rows.withColumns({"cluster_id": cluster(), "bucket": bucket(step_s)}).groupBy(*CLIENT, "bucket")


def _aggregates(names: Sequence[str], *, of_records: bool) -> list[Column]:
    functions = ((_SUMS, F.sum), (_MOST, F.max), (_LEAST, F.min))
    made = {name: (one, function) for group, function in functions for name, one in group.items()}
    if not of_records:
        return [made[name][1](name).alias(name) for name in names]
    flags = [F.when(made[name][0](), F.lit(1 << FLAGS.index(name))).otherwise(0) for name in names if name in FLAGS]
    packed = [F.bit_or(reduce(Column.bitwiseOR, flags)).alias(_PACKED)] if flags else []
    return [made[name][1](made[name][0]()).alias(name) for name in names if name not in FLAGS] + packed


def _with_flags(sums: DataFrame, names: Sequence[str]) -> DataFrame:
    flags = {name: F.col(_PACKED).bitwiseAND(1 << FLAGS.index(name)) != 0 for name in names if name in FLAGS}
    return sums.select(*CLIENT, "bucket", *(flags[name].alias(name) if name in flags else name for name in names))
