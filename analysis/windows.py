"""Kafka's quota arithmetic in Spark's window functions: the same delays as `quota.rate` and `quota.bucket` compute.

A sample begins with the first event that comes a sample's length or more after the one before began; it expires N
samples after its last event. While it is alive no slot of Kafka's ring is used again, and a slot that was reset in
place begins at an event of the current sample, so neither can be seen in the rate: the window is the samples whose
last event is young enough, and nothing else (ADR 0014).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quota.rate import MAX_THROTTLE_MS


def sampled(events: DataFrame, group: Sequence[str], *, window_ms: int) -> DataFrame:
    """Events (`t_ms`, `order`, `amount`) with `sample_ms`, the start of the sample that each falls into.

    Where events are a sample's length apart, each is a sample. Only runs of closer ones are folded, one after the
    other.
    """
    in_order = Window.partitionBy(*group).orderBy("t_ms", "order")
    gap = F.col("t_ms") - F.lag("t_ms").over(in_order)
    runs = events.withColumn("_first", (F.coalesce(gap, F.lit(window_ms)) >= window_ms).cast("long"))
    runs = runs.withColumn("_run", F.sum("_first").over(in_order))
    others = [name for name in events.columns if name not in group]
    folded = runs.groupBy(*group, "_run").agg(
        F.array_sort(
            F.collect_list(F.struct("t_ms", "order", *(n for n in others if n not in ("t_ms", "order"))))
        ).alias("_events")
    )
    # The start of each event's sample: a fold over the run's times that carries the current start with it.
    times = F.array_distinct(F.transform("_events", lambda one: one["t_ms"]))
    empty = F.array().cast("array<bigint>")
    starts = F.aggregate(
        times,
        empty,
        lambda found, t: F.when(
            (F.size(found) == 0) | (t - F.element_at(found, -1) >= window_ms), F.concat(found, F.array(t))
        ).otherwise(found),
    )
    starts = F.when(F.size(times) == 1, times).otherwise(starts)
    exploded = folded.select(*group, starts.alias("_starts"), F.explode("_events").alias("_one"))
    sample = F.array_max(F.filter("_starts", lambda start: start <= F.col("_one.t_ms"))).alias("sample_ms")
    return exploded.select(*group, "_one.*", sample)


def window_delays(
    events: DataFrame,
    group: Sequence[str],
    *,
    num_samples: int = 11,
    window_ms: int = 1000,
    scale: float = 1.0,
    bounded_ms: int | None = None,
) -> DataFrame:
    """Adds `observed` and `throttle_ms` to events (`t_ms`, `order`, `amount`, `limit`) of groups: KIP-13, KIP-124.

    Recorded first, checked after, on a window that begins empty; the limit may be null, for no limit. `scale` turns
    amounts into what the limit counts (0.1 for milliseconds of busy time); `bounded_ms` is the longest delay (one
    sample for request time).
    """
    events = sampled(events, group, window_ms=window_ms)
    sample = Window.partitionBy(*group, "sample_ms")
    so_far = sample.orderBy("t_ms", "order").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    backwards = sample.orderBy(F.col("t_ms").desc(), F.col("order").desc())
    events = events.withColumns(
        {
            "_last": F.max("t_ms").over(sample),
            "_total": F.sum("amount").over(sample),
            "_so_far": F.sum("amount").over(so_far),
            "_closes": F.row_number().over(backwards) == 1,
        }
    )
    # A sample is represented by its last event: it is alive while that one is less than N samples old.
    alive = Window.partitionBy(*group).orderBy("t_ms").rangeBetween(-(num_samples * window_ms - 1), Window.currentRow)
    closed = F.sum(F.when(F.col("_closes"), F.col("_total")).otherwise(F.lit(0.0))).over(alive)
    oldest = F.min(F.when(F.col("_closes"), F.col("sample_ms"))).over(alive)
    own_is_closed = F.when(F.col("t_ms") == F.col("_last"), F.col("_total")).otherwise(F.lit(0.0))
    events = events.withColumns({"_sum": (closed - own_is_closed + F.col("_so_far")) * scale, "_oldest": oldest})
    elapsed = F.col("t_ms") - F.least(F.col("_oldest"), F.col("sample_ms"))
    least_ms = (num_samples - 1) * window_ms
    window = F.when(elapsed < least_ms, least_ms + elapsed % window_ms).otherwise(elapsed)
    events = events.withColumn("_window", F.greatest(window, F.lit(1)))
    events = events.withColumn("observed", F.col("_sum") / (F.col("_window") / 1000.0))
    delay = _rounded((F.col("observed") - F.col("limit")) / F.col("limit") * F.col("_window"))
    if bounded_ms is not None:
        delay = F.least(delay, F.lit(bounded_ms))
    events = events.withColumn(
        "throttle_ms", F.when(F.col("observed") > F.col("limit"), delay).otherwise(0).cast("long")
    )
    return events.drop("sample_ms", "_last", "_total", "_so_far", "_closes", "_sum", "_oldest", "_window")


def bucket_delays(
    events: DataFrame, group: Sequence[str], *, num_samples: int = 11, window_ms: int = 1000
) -> DataFrame:
    """The same for partition mutations charged the permissive way (KIP-599): `observed` is tokens left.

    Tokens before event i are the least of "full at event k, refilled and charged since" over all k up to i: a running
    minimum in place of the recursion tokens = min(burst, tokens + refill) - amount. (The strict way refuses by the
    state itself; no running minimum does that.)
    """
    whole = Window.partitionBy(*group)
    so_far = whole.orderBy("t_ms", "order").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    burst = F.col("limit") * (num_samples * window_ms / 1000.0)
    # From the group's first event on: the size of a time since 1970 would cost digits.
    refilled = F.col("limit") * (F.col("t_ms") - F.min("t_ms").over(whole)) / 1000.0
    events = events.withColumns({"_refilled": refilled, "_charged": F.sum("amount").over(so_far)})
    before = F.col("_charged") - F.col("amount")
    events = events.withColumn("_full", F.min(burst - F.col("_refilled") + before).over(so_far))
    tokens = F.col("_refilled") - F.col("_charged") + F.col("_full")
    return _owed(events.withColumn("observed", tokens)).drop("_refilled", "_charged", "_full")


def burst_delays(events: DataFrame, group: Sequence[str], *, num_samples: int = 11, window_ms: int = 1000) -> DataFrame:
    """The same under `windowed_burst` (:class:`quota.burst.WindowedBurst`): `observed` is what is left of S * W * Q.

    What is recorded fills the oldest window that has room, each up to C = Q * W. So the windows are a queue: what is
    used of it, h, loses C with each new window (but is never below 0), gains what is recorded, and is never above
    S * C. What goes beyond is debt of the window in which it was recorded, for S windows. observed = S * C - h - debts.
    """
    names = [*events.columns, "observed", "throttle_ms"]
    number = F.floor((F.col("t_ms") - F.min("t_ms").over(Window.partitionBy(*group))) / window_ms).cast("long")
    events = events.withColumns({"_window": number, "_full": F.col("limit") * (window_ms / 1000.0)})
    windows = events.groupBy(*group, "_window").agg(F.sum("amount").alias("_amount"), F.max("_full").alias("_full"))
    before = F.lag("_window").over(Window.partitionBy(*group).orderBy("_window"))
    drained = F.coalesce(F.col("_window") - before, F.lit(0)) * F.col("_full")
    each = _walked(windows.withColumns({"_drained": drained, "_most": F.col("_full") * num_samples}), group)
    room = F.col("_most") - F.greatest(F.col("_used") - F.col("_drained"), F.lit(0.0))
    debt = F.greatest(F.col("_amount") - room, F.lit(0.0))
    still = Window.partitionBy(*group).orderBy("_window").rangeBetween(-(num_samples - 1), -1)
    left = room - F.coalesce(F.sum(debt).over(still), F.lit(0.0))
    each = each.select(*(F.col(name).alias(f"_{name}") for name in group), left.alias("_left"), "_window")
    each = each.withColumnRenamed("_window", "_number")
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in group]
    events = events.join(each, [*same, F.col("_window") == F.col("_number")])
    window = Window.partitionBy(*group, "_window").orderBy("t_ms", "order")
    so_far = window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    events = events.withColumn("observed", F.col("_left") - F.sum("amount").over(so_far))
    return _owed(events).select(*names)


BLOCK = 256
"""Windows that are walked together: about the square root of a day's."""


def _walked(windows: DataFrame, group: Sequence[str]) -> DataFrame:
    """Windows (`_amount`, `_drained`, `_most`) with `_used`, what the window before left: h before it is drained.

    One window turns h into min(max(h + add, low), high), and such steps after each other make one such step again. So
    every block of windows becomes one step, the blocks of a group are walked, then the windows in each block: no list
    is longer than a block, or than there are blocks.
    """
    endless = F.lit(float("inf"))
    nothing = F.struct(F.lit(0.0).alias("add"), (-endless).alias("low"), endless.alias("high"))
    blocks = (
        windows.withColumn("_block", F.floor(F.col("_window") / BLOCK))
        .groupBy(*group, "_block")
        .agg(F.array_sort(F.collect_list(F.struct("_window", "_amount", "_drained", "_most"))).alias("_windows"))
        .withColumn("_step", F.aggregate("_windows", nothing, _then))
    )
    earlier = Window.partitionBy(*group).orderBy("_block").rowsBetween(Window.unboundedPreceding, -1)
    blocks = blocks.withColumn("_steps", F.collect_list("_step").over(earlier))
    at_first = F.aggregate(
        "_steps",
        F.lit(0.0),
        lambda used, step: F.least(F.greatest(used + step["add"], step["low"]), step["high"]),
    )
    walked = F.aggregate("_windows", F.array(at_first), lambda found, one: F.concat(found, F.array(_after(found, one))))
    before = F.slice(walked, 1, F.size("_windows")).alias("_used")
    each = blocks.select(*group, F.explode(F.arrays_zip("_windows", before)).alias("_one"))
    return each.select(*group, "_one._windows.*", "_one._used")


def _then(step: Column, one: Column) -> Column:
    """`step`, and then what window `one` does: drain, not below 0; add, not above the most."""
    add = one["_amount"] - one["_drained"]
    least = F.least(one["_amount"], one["_most"])

    def within(value: Column) -> Column:
        return F.least(F.greatest(value + add, least), one["_most"])

    low, high = within(step["low"]).alias("low"), within(step["high"]).alias("high")
    return F.struct((step["add"] + add).alias("add"), low, high)


def _after(found: Column, one: Column) -> Column:
    """h after window `one`, when `found` has those after each window before it."""
    kept = F.greatest(F.element_at(found, -1) - one["_drained"], F.lit(0.0))
    return F.least(kept + one["_amount"], one["_most"])


def _owed(events: DataFrame) -> DataFrame:
    """`throttle_ms`: how long until what is `observed` below zero is back at zero."""
    delay = F.when(F.col("observed") < 0, _rounded(-F.col("observed") / F.col("limit") * 1000.0)).otherwise(0)
    return events.withColumn("throttle_ms", delay.cast("long"))


def _rounded(value: Column) -> Column:
    """Java's Math.round, clamped to what the protocol's int32 holds."""
    clamped = F.least(value, F.lit(float(MAX_THROTTLE_MS)))
    whole = F.floor(clamped)
    return (whole + F.when(clamped - whole >= 0.5, 1).otherwise(0)).cast("long")
