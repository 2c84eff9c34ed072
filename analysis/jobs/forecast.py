"""`forecast`: when each limit, and each cluster's capacity, will be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import DAY_S, HOUR_S, moment, only_row, place_in, ratio, some_rows, sums
from analysis.kinds import (
    BYTE_KINDS,
    GROUP,
    LIMITS,
    MEASURES,
    OF_PROMISES,
    OF_USE,
    by_group,
    by_kind,
    of_kind,
    of_sidecars,
    promised,
)
from analysis.report import Content, Context, Plot, Report, Table
from analysis.session import ship_code
from analysis.trend import CERTAINTY, FEWEST_DAYS, RESULT, WEEK, forecasts
from analysis.words import group_name, rate, several, share
from quota.entity import Kind
from quota.record import UNITS

COLUMNS = (*(MEASURES[kind].column for kind in Kind), *dict.fromkeys((*OF_USE, *OF_PROMISES)))
ROLLED = True
NEARLY = 0.95
"""A limit used to this fraction in the last week has been reached: its clients are throttled and use no more."""
NAMES = (*GROUP, "scope")
PLOTTED = 4
SERIES_PER_TASK = 500
STATES = ("reached", "expected", "possible", "not expected", "not known", "no limit")
WHOLE = "cluster"


def run(context: Context) -> Report:
    """Option `horizon_days`: days to forecast. Option `capacity`: kind -> bytes/s that the clusters can really do."""
    horizon: int = context.options.get("horizon_days", 90)
    quality = context.intake.quality
    first_day, last_day = quality.whole_days
    grain = context.grain_s
    amounts = tuple(MEASURES[kind].column for kind in Kind)
    buckets = context.kept(context.in_buckets(grain, (*amounts, *LIMITS)), "buckets")
    rows = context.records
    limits = promised(context.kept(of_sidecars(rows, quality.last_ms - HOUR_S * 1000), "promised"))
    used = by_group(buckets, F.lit(float(grain))).unionByName(_of_clusters(buckets, limits, grain, context.options))
    day = F.floor(F.col("bucket") / DAY_S).cast("long")
    peaks = (
        used.withColumn("day", day)
        .where(F.col("day").between(first_day, last_day))
        .groupBy(*NAMES, "day")
        .agg(F.max("rate").alias("peak"), F.max_by("limit", "bucket").alias("limit"))
        .where("peak IS NOT NULL")
    )
    peaks = context.kept(peaks, "peaks")
    series = peaks.groupBy(*NAMES).agg(
        F.max_by("limit", "day").alias("limit"),
        F.max(F.when(F.col("day") > last_day - WEEK, F.col("peak"))).alias("peak_last_week"),
        (F.lit(last_day + 1) - F.min("day")).alias("days"),
        F.collect_list("day").alias("_days"),
        F.collect_list("peak").alias("_peaks"),
    )
    series = context.kept(series.withColumn("series", F.monotonically_increasing_id()), "series")
    ahead = context.kept(_ahead(series, last_day, horizon), "ahead")
    found = _judged(series, ahead, last_day)
    pressing = place_in("state", STATES)
    order: list[Column | str] = [pressing, F.col("expected_on").asc_nulls_last(), F.col("used_share").desc()]
    left_out = ("growth_per_day", "held_out_days")
    of_cluster = F.col("scope") == WHOLE
    days = peaks.select(*NAMES, moment(F.col("day") * DAY_S).alias("day"), F.col("peak").alias("rate"))
    foreseen = ahead.join(series.select("series", *NAMES), "series").select(
        *NAMES, moment(F.col("day") * DAY_S).alias("day"), "mean", "low", "high"
    )
    return Report(
        "Forecast",
        f"When will each limit and each cluster's capacity be reached, within the next {horizon} days?",
        {
            "clusters": Table(
                found.where(of_cluster).drop("group_user", "group_client", "scope"), "Clusters",
                [*order, "cluster_id", "kind"], left_out=left_out,
            ),
            "limits": Table(
                found.where(~of_cluster), "Limits", [*order, *GROUP], left_out=left_out
            ),
            "days": Table(days, "Daily peaks", [*NAMES, "day"], shown=0),
            "ahead": Table(foreseen, "Days ahead", [*NAMES, "day"], shown=0),
        },
        lambda tables: _content(tables, horizon),
    )  # fmt: skip


def _of_clusters(buckets: DataFrame, limits: DataFrame, grain: int, options: Mapping[str, Any]) -> DataFrame:
    """What all clients of a cluster used together, towards its capacity, or else the sum of its limits in force."""
    summed = buckets.groupBy("cluster_id", "bucket").agg(*sums(MEASURES[kind].column for kind in BYTE_KINDS))
    each = by_kind(summed, ["cluster_id", "bucket"], BYTE_KINDS, amount="{column}").withColumn(
        "rate", F.col("amount") / grain
    )
    capacity = of_kind(options.get("capacity") or {}, F.col("limits_bytes_per_s"))
    no_name = F.lit(None).cast("string")
    return (
        each.join(limits.select("cluster_id", "kind", "limits_bytes_per_s"), ["cluster_id", "kind"], "left")
        .withColumn("limit", capacity)
        .select(
            "cluster_id", "kind", no_name.alias("group_user"), no_name.alias("group_client"),
            F.lit(WHOLE).alias("scope"), "bucket", "limit", "rate", ratio(F.col("rate"), capacity).alias("used_share"),
        )
    )  # fmt: skip


def _ahead(series: DataFrame, last_day: int, horizon: int) -> DataFrame:
    spark = series.sparkSession
    ship_code(spark)
    tasks = max(spark.sparkContext.defaultParallelism, series.count() // SERIES_PER_TASK + 1)
    rows = series.select("series", F.col("_days").alias("days"), F.col("_peaks").alias("peaks"))
    return rows.repartition(tasks, "series").mapInArrow(forecasts(last_day, horizon), RESULT)


def _judged(series: DataFrame, ahead: DataFrame, last_day: int) -> DataFrame:
    """One row per series: whether and when its limit will be reached, and how good such a forecast has been."""
    over = {"expected_on": "mean", "earliest": "high", "latest": "low"}
    limits = series.select("series", "limit")
    sums = (
        ahead.join(limits, "series")
        .groupBy("series")
        .agg(
            *(F.min(F.when(F.col(name) >= F.col("limit"), F.col("day"))).alias(day) for day, name in over.items()),
            F.max("growth").alias("growth_per_day"),
            F.max("held_out").alias("held_out_days"),
            F.max("error_share").alias("error_share"),
            F.max("covered_share").alias("covered_share"),
        )
    )
    used = ratio(F.col("peak_last_week"), F.col("limit"))
    state = (
        F.when(F.col("limit").isNull(), "no limit")
        .when(used >= NEARLY, "reached")
        .when(F.col("growth_per_day").isNull(), "not known")
        .when(F.col("expected_on").isNotNull(), "expected")
        .when(F.col("earliest").isNotNull(), "possible")
        .otherwise("not expected")
    )
    found = series.join(sums, "series", "left").withColumns({"used_share": used, "state": state})
    dates = [
        F.when(F.col("state").isin("expected", "possible"), F.date_from_unix_date(F.col(name).cast("int"))).alias(name)
        for name in over
    ]
    return found.select(
        *NAMES, "limit", "peak_last_week", "used_share", "state", *dates, "growth_per_day", "days",
        "held_out_days", "error_share", "covered_share",
    )  # fmt: skip


def _content(tables: Mapping[str, DataFrame], horizon: int) -> Content:
    clusters, limits = some_rows(tables["clusters"], 12), tables["limits"]
    counts = {row["state"]: row["count"] for row in some_rows(limits.groupBy("state").count())}
    findings = [text for row in clusters if (text := _sentence(row))]
    findings.append(
        f"{counts.get('reached', 0):,} of {several(sum(counts.values()), 'limit')} were reached in the last week. "
        f"Within {horizon} days {counts.get('expected', 0):,} will probably be reached, {counts.get('possible', 0):,} "
        "more possibly."
    )
    soon = some_rows(limits.where("state = 'expected'"), 4)
    findings += [_sentence(row) for row in soon]
    unknown = counts.get("not known", 0)
    if unknown:
        findings.append(f"Too few records for a forecast, less than {FEWEST_DAYS} days: {several(unknown, 'limit')}.")
    tested = tables["clusters"].unionByName(limits, allowMissingColumns=True)
    test = only_row(tested.where("held_out_days IS NOT NULL").agg(
        F.count("*").alias("series"),
        F.median("error_share").alias("error"),
        (F.sum(F.col("covered_share") * F.col("held_out_days")) / F.sum("held_out_days")).alias("covered"),
    ))  # fmt: skip
    if test["series"]:
        findings.append(
            f"Back-test: the last one or two weeks of {test['series']:,} series were forecast from the weeks before. "
            f"The median error was {share(test['error'])}, and {share(test['covered'])} of the days lay within the "
            f"{share(CERTAINTY)} bounds."
        )
    pictures = [
        _picture(tables, row) for row in [*soon, *clusters][:PLOTTED] if row["state"] not in ("not known", "no limit")
    ]
    return Content(
        findings,
        pictures,
        notes=[
            "The forecast of daily peaks is a linear trend with a factor per weekday, fitted by least squares. It "
            "leaves incomplete days out; without a record a client "
            "used nothing.",
            f"Expected on: the first day whose forecast reaches the limit; with {share(CERTAINTY)} probability it lies "
            "between earliest and latest. Planned changes are not taken into account.",
            f"Reached: {share(NEARLY)} of the limit or more were used in the last seven days. The demand of "
            "a throttled client is not known.",
            "A limit with scope: instance is compared with the busiest sidecar, in the quota's window; one with scope: "
            "fleet, and a cluster's capacity, with the sum of all sidecars per time bucket. Without --capacity, the "
            "sum of the enforced limits takes its place.",
            "Error share and covered share come from the back-test: the mean error divided by the mean peak, and the "
            f"share of held-out days within the bounds (ideally {share(CERTAINTY)}). With less than eight weeks of "
            "records the covered share is lower.",
        ],
    )


def _sentence(row: Any) -> str:
    name, kind = _name(row), row["kind"]
    what = f"{name}, {kind}" + (f" ({rate(kind, row['limit'])})" if row["limit"] else "")
    if row["state"] == "reached":
        return f"{what}: {share(row['used_share'])} used in the last week."
    if row["state"] == "expected":
        bounds = f"from {row['earliest']}" + (f" to {row['latest']}" if row["latest"] else " on, or later than seen")
        return f"{what}: expected to be reached on {row['expected_on']} ({share(CERTAINTY)}: {bounds})."
    if row["state"] == "possible":
        return f"{what}: may be reached from {row['earliest']} on."
    if row["state"] == "not expected":
        return f"{what}: not reached within the horizon; {share(row['used_share'])} used in the last week."
    return ""


def _name(row: Any) -> str:
    if "scope" not in row:  # from the table of clusters
        return str(row["cluster_id"] or "The cluster")
    return group_name(row["group_user"], row["group_client"])


def _picture(tables: Mapping[str, DataFrame], row: Any) -> Plot:
    names = {name: row[name] for name in NAMES if name in row}
    if "scope" not in row:
        names |= {"scope": WHOLE, "group_user": None, "group_client": None}
    mine = F.lit(True)
    for name, value in names.items():
        mine &= F.col(name).eqNullSafe(F.lit(value))
    seen = [(one["day"], one["rate"]) for one in some_rows(tables["days"].where(mine).orderBy(F.col("day").desc()))]
    ahead = [
        (one["day"], one["mean"], one["low"], one["high"])
        for one in some_rows(tables["ahead"].where(mine).orderBy("day"))
    ]
    bytes_per_s = Kind(row["kind"]) in BYTE_KINDS
    label = "bytes per second" if bytes_per_s else UNITS[row["kind"]]
    svg = plots.outlook(seen, ahead, label, bytes_per_s=bytes_per_s, level=row["limit"])
    return Plot(f"{_name(row)}, {row['kind']}: daily peaks and forecast", svg)
