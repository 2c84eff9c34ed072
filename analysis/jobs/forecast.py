"""`forecast`: when each limit, and each cluster's capacity, will be reached."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import DAY_S, merged, named, only_row, place_in, some_rows, sums
from analysis.kinds import AMOUNTS, BYTE_KINDS, BYTES, GROUP, LIMITS, OF_PROMISES, OF_USE, by_group, by_kind, of_kind
from analysis.report import Content, Context, Report, Table, Tables
from analysis.session import ship_code
from analysis.trend import CERTAINTY, FEWEST_DAYS, RESULT, WEEK, forecasts
from analysis.words import group_name, rate, several, share
from quota.record import UNITS

COLUMNS = (*AMOUNTS.values(), *dict.fromkeys((*OF_USE, *OF_PROMISES)))
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
    first_day, last_day = context.intake.quality.whole_days
    grain = context.grain_s
    buckets = context.kept(context.in_buckets(grain, (*AMOUNTS.values(), *LIMITS)), "buckets")
    used = by_group(buckets, F.lit(float(grain))).unionByName(_of_clusters(context, buckets))
    peaks = (
        used.withColumn("day", F.expr(f"floor(bucket / {DAY_S})"))
        .where(f"day BETWEEN {first_day} AND {last_day}")
        .groupBy(*NAMES, "day")
        .agg(*named(peak="max(rate)", limit="max_by(limit, bucket)"))
        .where("peak IS NOT NULL")
    )
    peaks = context.kept(peaks, "peaks")
    series = peaks.groupBy(*NAMES).agg(
        *named(limit="max_by(limit, day)", days=f"{last_day + 1} - min(day)"),
        F.expr(f"max(IF(day > {last_day - WEEK}, peak, NULL)) AS peak_last_week"),
        *named(_days="collect_list(day)", _peaks="collect_list(peak)"),
    )
    series = context.kept(series.withColumn("series", F.monotonically_increasing_id()), "series")
    ahead = context.kept(_ahead(series, last_day, horizon), "ahead")
    found = _judged(series, ahead)
    pressing = place_in("state", STATES)
    order: list[Column | str] = [pressing, F.asc_nulls_last("expected_on"), F.desc("used_share")]
    left_out = ("growth_per_day", "held_out_days")
    of_cluster = F.col("scope") == WHOLE
    day = f"timestamp_seconds(day * {DAY_S}) AS day"
    days = peaks.selectExpr(*NAMES, day, "peak AS rate")
    foreseen = ahead.join(series, "series").selectExpr(*NAMES, day, "mean", "low", "high")
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


def _of_clusters(context: Context, buckets: DataFrame) -> DataFrame:
    """What all clients of a cluster used together, towards its capacity, or else the sum of its limits in force."""
    summed = buckets.groupBy("cluster_id", "bucket").agg(*sums(BYTES))
    each = by_kind(summed, ["cluster_id", "bucket"], BYTE_KINDS, rate=f"{{column}} / {context.grain_s}")
    limits = context.promised().select("cluster_id", "kind", "limits_bytes_per_s")
    capacity = of_kind(context.options.get("capacity") or {}, "limits_bytes_per_s")
    return (
        each.join(limits, ["cluster_id", "kind"], "left")
        .withColumns({"limit": capacity, "scope": F.lit(WHOLE)})
        .withColumns({name: F.lit(None).cast("string") for name in ("group_user", "group_client")})
        .selectExpr(*NAMES, "bucket", "limit", "rate", "rate / nullif(limit, 0) AS used_share")
    )


def _ahead(series: DataFrame, last_day: int, horizon: int) -> DataFrame:
    spark = series.sparkSession
    ship_code(spark)
    tasks = max(spark.sparkContext.defaultParallelism, series.count() // SERIES_PER_TASK + 1)
    rows = series.select("series", F.col("_days").alias("days"), F.col("_peaks").alias("peaks"))
    return rows.repartition(tasks, "series").mapInArrow(forecasts(last_day, horizon), RESULT)


def _judged(series: DataFrame, ahead: DataFrame) -> DataFrame:
    """One row per series: whether and when its limit will be reached, and how good such a forecast has been."""
    over = {"expected_on": "mean", "earliest": "high", "latest": "low"}
    dates = {date: f"min(IF({name} >= limit, day, NULL))" for date, name in over.items()}
    sums = ahead.join(series.select("series", "limit"), "series")
    sums = sums.groupBy("series").agg(
        *named(**dates, growth_per_day="max(growth)", held_out_days="max(held_out)"),
        *merged(max=["error_share", "covered_share"]),
    )
    state = (
        F.when(F.col("limit").isNull(), "no limit")
        .when(F.col("used_share") >= NEARLY, "reached")
        .when(F.col("growth_per_day").isNull(), "not known")
        .when(F.col("expected_on").isNotNull(), "expected")
        .when(F.col("earliest").isNotNull(), "possible")
        .otherwise("not expected")
    )
    used = F.expr("peak_last_week / nullif(limit, 0)")
    found = series.join(sums, "series", "left").withColumn("used_share", used).withColumn("state", state)
    date = "IF(state IN ('expected', 'possible'), date_from_unix_date(int({0})), NULL) AS {0}"
    return found.selectExpr(
        *NAMES, "limit", "peak_last_week", "used_share", "state", *map(date.format, over), "growth_per_day", "days",
        "held_out_days", "error_share", "covered_share",
    )  # fmt: skip


def _content(tables: Tables, horizon: int) -> Content:
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


def _picture(tables: Tables, row: Any) -> tuple[str, str]:
    names = {"scope": WHOLE, "group_user": None, "group_client": None} | row.asDict()
    mine = F.lit(True)
    for name in NAMES:
        mine &= F.col(name).eqNullSafe(F.lit(names[name]))
    seen = [(one["day"], one["rate"]) for one in some_rows(tables["days"].where(mine).orderBy(F.col("day").desc()))]
    ahead = [
        (one["day"], one["mean"], one["low"], one["high"])
        for one in some_rows(tables["ahead"].where(mine).orderBy("day"))
    ]
    label = "bytes per second" if row["kind"] in BYTE_KINDS else UNITS[row["kind"]]
    svg = plots.outlook(seen, ahead, label, row["limit"])
    return (f"{_name(row)}, {row['kind']}: daily peaks and forecast", svg)
