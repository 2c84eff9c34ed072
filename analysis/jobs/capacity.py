"""`capacity`: what has been promised against what is used, and the trend."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import DAY_S, bucket, named, some_rows, sums
from analysis.intake import Quality
from analysis.kinds import BYTE_KINDS, BYTES, OF_PROMISES, by_kind, of_kind
from analysis.report import Content, Context, Report, Table, Tables
from analysis.words import several, share, size

COLUMNS = (*BYTES, *OF_PROMISES)
FEWEST_DAYS = 3
_EACH = ("cluster_id", "kind")
_RATES = {
    "peak_bytes_per_s": "max(rate)",
    "p99_bytes_per_s": "percentile_approx(rate, 0.99, 10000)",
    "mean_bytes_per_s": "avg(rate)",
}
_LIMITS = ("limits", "fleet_limits", "sidecars", "limits_bytes_per_s", "capacity_bytes_per_s")


def run(context: Context) -> Report:
    """Per cluster: limits in force in the last hour, peaks, and their trend. Option `capacity`: kind -> bytes/s."""
    grain = context.grain_s
    rows = context.records.withColumn("bucket", bucket(grain))
    summed = rows.groupBy("cluster_id", "bucket").agg(
        *sums(BYTES), *named(first_ms="min(start_ms)", last_ms="max(end_ms)")
    )
    summed = context.kept(summed, "sums")
    rate = (F.col("amount") / context.observed_s(summed, grain)).alias("rate")
    peaks = by_kind(summed, ["cluster_id", "bucket"], BYTE_KINDS, amount="{column}").select(
        *_EACH, rate, F.expr(f"floor(bucket / {DAY_S}) AS day")
    )
    measured = peaks.groupBy(*_EACH).agg(*named(**_RATES))
    days = peaks.groupBy(*_EACH, "day").agg(F.max("rate").alias("peak_bytes_per_s"))
    first_day, last_day = context.intake.quality.whole_days
    whole = f"IF(day BETWEEN {first_day} AND {last_day}, peak_bytes_per_s, NULL)"
    trend = days.groupBy(*_EACH).agg(
        *named(days=f"count({whole})", last_day="max(day)", fit_share=f"regr_r2({whole}, day)"),
        *named(slope=f"regr_slope({whole}, day)", intercept=f"regr_intercept({whole}, day)"),
    )
    goal = "coalesce(capacity_bytes_per_s, limits_bytes_per_s)"
    clusters = (
        measured.join(trend, [*_EACH])
        .join(context.promised(), [*_EACH], "left")
        .withColumn("capacity_bytes_per_s", of_kind(context.options.get("capacity") or {}))
        .selectExpr(
            *_EACH,
            *_LIMITS,
            "limits_bytes_per_s / nullif(capacity_bytes_per_s, 0) AS oversubscription",
            *_RATES,
            f"peak_bytes_per_s / nullif({goal}, 0) AS peak_of_goal_share",
            "days",
            f"IF(days >= {FEWEST_DAYS}, slope, NULL) AS growth_bytes_per_day_per_s",
            f"IF(days >= {FEWEST_DAYS}, fit_share, NULL) AS fit_share",
            f"IF(days >= {FEWEST_DAYS} AND slope > 0, greatest(({goal} - intercept) / slope - last_day, 0), NULL)"
            " AS days_until_reached",
        )
    )
    by_day = days.selectExpr(*_EACH, f"timestamp_seconds(day * {DAY_S}) AS day", "peak_bytes_per_s")
    return Report(
        "Capacity",
        "What do the limits add up to, what is the peak usage, and when will it reach them?",
        {
            "clusters": Table(clusters, "Clusters", _EACH),
            "days": Table(by_day, "Daily peaks", [*_EACH, "day"], shown=0),
        },
        lambda tables: _content(tables, context.intake.quality),
    )


def _content(tables: Tables, quality: Quality) -> Content:
    series, levels = {}, {}
    # The first few clusters: more lines could not be distinguished.
    rows = some_rows(tables["clusters"], 8)
    for row in rows:
        mine = reduce(and_, (F.col(name) == row[name] for name in _EACH))
        days = some_rows(tables["days"].where(mine).orderBy(F.desc("day")))
        series[f"{row['cluster_id'] or 'cluster'} {row['kind']}"] = [
            (one["day"], one["peak_bytes_per_s"]) for one in days
        ]
        if row["capacity_bytes_per_s"]:
            levels[f"{row['kind']} capacity"] = row["capacity_bytes_per_s"]
    return Content(
        [text for row in rows for text in _findings(row)],
        [("Daily peaks", plots.steps(series, "bytes per second", DAY_S, quality, levels))],
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
