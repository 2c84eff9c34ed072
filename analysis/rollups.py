"""Rollups: usage per client and time bucket, from records or from the sums that `compact` has made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, cluster, named, start_of
from analysis.kinds import AMOUNTS, COUNTS, DELAYED, FLAGS, LIMITS, SECONDS

STEPS: Final = {"minute": 60, "hour": HOUR_S, "day": DAY_S}
"""Written by `compact`: name -> seconds of a bucket."""
SUMMED: Final = {
    **{name: name for name in (*AMOUNTS.values(), "requests", *COUNTS, *SECONDS)},
    "seconds": "duration_s",
    "records": "1",
    # Simultaneous delays of several connections are capped at the time itself.
    "time_delayed_seconds": f"least({DELAYED['delayed_seconds']}, duration_s)",
    "requests_delayed": DELAYED["requests_delayed"],
}
"""Columns of rollups that are sums, as expressions over records."""
_MOST: Final = {
    "produce_rate_max": "produce_rate_max",
    "fetch_rate_max": "fetch_rate_max",
    "last_ms": "end_ms",
    "library": "client_library",
    **LIMITS,
}
_LEAST: Final = {"first_ms": "start_ms"}
_AGGREGATES: Final = {
    name: (function, one)
    for function, group in (("sum", SUMMED), ("max", _MOST), ("min", _LEAST))
    for name, one in group.items()
}
NAMES: Final = tuple(_AGGREGATES)


def of_records(rows: DataFrame, step_s: int, names: Sequence[str] = NAMES) -> DataFrame:
    """Records -> one row per client and bucket of `step_s` seconds (`bucket`: its start), by their middle."""
    found = {name: "{}({})".format(*_AGGREGATES[name]) for name in names if name not in FLAGS}
    # The flags of a client and bucket are bits of one number while they are summed, not eight bytes each.
    bits = {name: 1 << bit for bit, name in enumerate(FLAGS) if name in names}
    if bits:
        found["_flags"] = f"bit_or({' | '.join(f'IF({FLAGS[name]}, {bit}, 0)' for name, bit in bits.items())})"
    rows = rows.withColumns({"cluster_id": cluster(), "bucket": bucket(step_s)})
    sums = rows.groupBy(*CLIENT, "bucket").agg(*named(**found))
    flags = {name: F.expr(f"_flags & {bit} != 0").alias(name) for name, bit in bits.items()}
    return sums.select(*CLIENT, "bucket", *(flags.get(name, name) for name in names))


def coarser(rollup: DataFrame, step_s: int) -> DataFrame:
    """A rollup of shorter buckets -> one of longer ones, which the shorter ones divide."""
    found = {name: f"{function}({name})" for name, (function, _) in _AGGREGATES.items()}
    rows = rollup.withColumn("bucket", start_of(F.col("bucket"), step_s))
    return rows.groupBy(*CLIENT, "bucket").agg(*named(**found))
