"""Rollups: usage per client and time bucket, from records or from the sums that `compact` has made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, cluster, start_of
from analysis.kinds import COUNTS, FLAGS, LIMITS, SECONDS

STEPS: Final = {"minute": 60, "hour": HOUR_S, "day": DAY_S}
"""Written by `compact`: name -> seconds of a bucket."""
_AMOUNTS = ("produce_bytes", "fetch_bytes", "request_seconds", "mutations", "requests")
SUMMED: Final = {
    **{name: name for name in (*_AMOUNTS, *COUNTS, *SECONDS)},
    "seconds": "duration_s",
    "records": "1",
    # Simultaneous delays of several connections are capped at the time itself.
    "time_delayed_seconds": f"least({' + '.join(SECONDS)}, duration_s)",
    "requests_delayed": " + ".join(COUNTS),
}
"""Columns of rollups that are sums, as expressions over records."""
_MOST: Final = {
    "produce_rate_max": "produce_rate_max",
    "fetch_rate_max": "fetch_rate_max",
    "last_ms": "end_ms",
    **LIMITS,
}
_LEAST: Final = {"first_ms": "start_ms"}
_PACKED: Final = "_flags"
"""The flags of a client and bucket while they are summed: bits of one number, not eight bytes each."""
NAMES: Final = (*SUMMED, *_MOST, *_LEAST)


def of_records(rows: DataFrame, step_s: int, names: Sequence[str] = NAMES) -> DataFrame:
    """Records -> one row per client and bucket of `step_s` seconds (`bucket`: its start), by their middle."""
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
    functions = ((SUMMED, F.sum), (_MOST, F.max), (_LEAST, F.min))
    made = {name: (F.expr(one), function) for group, function in functions for name, one in group.items()}
    if not of_records:
        return [made[name][1](name).alias(name) for name in names]
    flags = " | ".join(f"IF({FLAGS[name]}, {bit}, 0)" for name, bit in _bits(names))
    packed = [F.expr(f"bit_or({flags})").alias(_PACKED)] if flags else []
    return [made[name][1](made[name][0]).alias(name) for name in names if name not in FLAGS] + packed


def _with_flags(sums: DataFrame, names: Sequence[str]) -> DataFrame:
    flags = {name: F.expr(f"{_PACKED} & {bit} != 0").alias(name) for name, bit in _bits(names)}
    return sums.select(*CLIENT, "bucket", *(flags.get(name, name) for name in names))


def _bits(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, 1 << bit) for bit, name in enumerate(FLAGS) if name in names]
