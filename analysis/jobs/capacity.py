"""`capacity`: what has been promised against what is used, and the trend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import DAY_S, HOUR_S, bucket, moment, ratio, some_rows, sums
from analysis.intake import Quality
from analysis.kinds import BYTE_KINDS, MEASURES, OF_PROMISES, by_kind, of_kind, of_sidecars, promised
from analysis.report import Content, Context, Plot, Report, Table
from analysis.words import several, share, size

COLUMNS = (*(MEASURES[kind].column for kind in BYTE_KINDS), *OF_PROMISES)
FEWEST_DAYS = 3


def run(context: Context) -> Report:
    """Per cluster: limits in force in the last hour, peaks, and their trend. Option `capacity`: kind -> bytes/s."""
    grain = context.grain_s
    rows = context.records.withColumn("bucket", bucket(grain))
    summed = rows.groupBy("cluster_id", "bucket").agg(
        *sums(MEASURES[kind].column for kind in BYTE_KINDS),
        F.min("start_ms").alias("first_ms"),
        F.max("end_ms").alias("last_ms"),
    )
    summed = context.kept(summed, "sums")
    peaks = by_kind(summed, ["cluster_id", "bucket"], BYTE_KINDS, amount="{column}").select(
        "cluster_id",
        "kind",
        "bucket",
        (F.col("amount") / context.observed_s(summed, grain)).alias("rate"),
        F.floor(F.col("bucket") / DAY_S).cast("long").alias("day"),
    )
    measured = peaks.groupBy("cluster_id", "kind").agg(
        F.max("rate").alias("peak_bytes_per_s"),
        F.percentile_approx("rate", 0.99, 10_000).alias("p99_bytes_per_s"),
        F.avg("rate").alias("mean_bytes_per_s"),
    )
    days = peaks.groupBy("cluster_id", "kind", "day").agg(F.max("rate").alias("peak_bytes_per_s"))
    whole = F.when(F.col("day").between(*context.intake.quality.whole_days), F.col("peak_bytes_per_s"))
    trend = days.groupBy("cluster_id", "kind").agg(
        F.count(whole).alias("days"),
        F.regr_slope(whole, "day").alias("slope"),
        F.regr_intercept(whole, "day").alias("intercept"),
        F.regr_r2(whole, "day").alias("fit_share"),
        F.max("day").alias("last_day"),
    )
    since_ms = context.intake.quality.last_ms - HOUR_S * 1000
    limits = promised(context.kept(of_sidecars(rows, since_ms), "limits"))
    capacity = of_kind(context.options.get("capacity") or {})
    goal = F.coalesce(F.col("capacity_bytes_per_s"), F.col("limits_bytes_per_s"))
    reached = (goal - F.col("intercept")) / F.col("slope") - F.col("last_day")
    has_trend = (F.col("days") >= FEWEST_DAYS) & (F.col("slope") > 0)
    clusters = (
        measured.join(trend, ["cluster_id", "kind"])
        .join(limits, ["cluster_id", "kind"], "left")
        .withColumn("capacity_bytes_per_s", capacity)
        .select(
            "cluster_id",
            "kind",
            "limits",
            "fleet_limits",
            "sidecars",
            "limits_bytes_per_s",
            "capacity_bytes_per_s",
            ratio(F.col("limits_bytes_per_s"), F.col("capacity_bytes_per_s")).alias("oversubscription"),
            "peak_bytes_per_s",
            "p99_bytes_per_s",
            "mean_bytes_per_s",
            ratio(F.col("peak_bytes_per_s"), goal).alias("peak_of_goal_share"),
            "days",
            F.when(F.col("days") >= FEWEST_DAYS, F.col("slope")).alias("growth_bytes_per_day_per_s"),
            F.when(F.col("days") >= FEWEST_DAYS, F.col("fit_share")).alias("fit_share"),
            F.when(has_trend, F.greatest(reached, F.lit(0.0))).alias("days_until_reached"),
        )
    )
    by_day = days.select("cluster_id", "kind", moment(F.col("day") * DAY_S).alias("day"), "peak_bytes_per_s")
    return Report(
        "Capacity",
        "What do the limits add up to, what is the peak usage, and when will it reach them?",
        {
            "clusters": Table(clusters, "Clusters", ["cluster_id", "kind"]),
            "days": Table(by_day, "Daily peaks", ["cluster_id", "kind", "day"], shown=0),
        },
        lambda tables: _content(tables, context.intake.quality),
    )


def _content(tables: Mapping[str, DataFrame], quality: Quality) -> Content:
    rows = some_rows(tables["clusters"])
    findings = [text for row in rows[:8] for text in _findings(row)]
    # The first few clusters, each with all its days: more lines could not be distinguished.
    shown = {(row["cluster_id"], row["kind"]) for row in rows[:8]}
    few = reduce(or_, ((F.col("cluster_id") == name) & (F.col("kind") == kind) for name, kind in shown), F.lit(False))
    days = some_rows(tables["days"].where(few).orderBy(F.col("day").desc()))
    series: dict[str, list[Any]] = {}
    for row in days:
        series.setdefault(f"{row['cluster_id'] or 'cluster'} {row['kind']}", []).append(
            (row["day"], row["peak_bytes_per_s"])
        )
    levels = {
        f"{row['cluster_id'] or 'cluster'} {row['kind']} capacity": row["capacity_bytes_per_s"]
        for row in rows[:4]
        if row["capacity_bytes_per_s"]
    }
    return Content(
        findings,
        [Plot("Daily peaks", plots.steps(series, "bytes per second", DAY_S, quality, bytes_per_s=True, level=levels))],
        notes=[
            "Limits are summed over groups and sidecars: each sidecar allows the whole limit. A limit with "
            "scope: fleet counts once. Limits seen in the last hour of the input count; shadow limits do not.",
            "The forecast extends a straight line through the daily peaks to the capacity, or without one to the "
            "sum of the limits. 'fit share' is R²: near 0 % there is no trend.",
        ],
    )


def _findings(row: Any) -> list[str]:
    name = f"{row['cluster_id'] or 'The cluster'}, {row['kind']}:"
    text = [f"{name} the peak was {size(row['peak_bytes_per_s'])}/s, the mean {size(row['mean_bytes_per_s'])}/s."]
    if row["limits_bytes_per_s"] is None:
        text.append(f"{name} no limit was in force at the end.")
    else:
        against = (
            f"{share(row['oversubscription'])} of the capacity"
            if row["oversubscription"] is not None
            else f"{row['limits_bytes_per_s'] / max(row['peak_bytes_per_s'], 1):.2g} times the peak"
        )
        fleets = f", {row['fleet_limits']:,} of them with scope: fleet," if row["fleet_limits"] else ""
        text.append(
            f"{name} {several(row['limits'], 'limit')} on {several(row['sidecars'], 'sidecar')}{fleets} add up to "
            f"{size(row['limits_bytes_per_s'])}/s, {against}."
        )
    if row["days"] < FEWEST_DAYS:
        text.append(f"{name} {several(row['days'], 'whole day')} of data: too few for a forecast.")
    elif row["days_until_reached"] is not None:
        text.append(
            f"{name} daily peaks grow by {size(row['growth_bytes_per_day_per_s'])}/s a day; at that pace they reach "
            f"{'the capacity' if row['capacity_bytes_per_s'] else 'the sum of the limits'} in "
            f"{row['days_until_reached']:,.0f} days (R² {row['fit_share'] or 0:.2f})."
        )
    else:
        text.append(f"{name} daily peaks do not grow.")
    return text
