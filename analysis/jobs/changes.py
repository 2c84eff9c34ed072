"""`changes`: the effect of each change of a quota, a day before and a day after."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, moment, ratio, some_rows
from analysis.kinds import MEASURES, exploded
from analysis.report import Content, Context, Report, Table
from analysis.words import rate, several, share, who
from quota.entity import Kind

SEEN_S = DAY_S
"""Length of the periods before and after a change; of hours in which the client was active."""
COLUMNS = tuple(
    name
    for kind in Kind
    for name in (
        MEASURES[kind].column,
        f"{kind.value}_limit",
        f"{kind.value}_fleet_limit",
        f"throttle_{kind.value}_count",
        f"throttle_{kind.value}_seconds",
    )
)


def run(context: Context) -> Report:
    """Per client, kind and hour; a change is where an hour has another limit than the client's previous hour."""
    rows = context.records.withColumn("hour_s", bucket(HOUR_S))
    sums = [F.sum("duration_s").alias("seconds")]
    # Of sidecars that share a limit, seconds at the same time count once.
    once = F.least(F.sum("duration_s"), (F.max("end_ms") - F.min("start_ms")) / 1000)
    for kind in Kind:
        measure = MEASURES[kind]
        sums += [
            # Shares of a fleet's limit move all the time; the limit that people set is the fleet's.
            F.max(F.coalesce(f"{kind.value}_fleet_limit", f"{kind.value}_limit")).alias(f"{kind.value}_limit"),
            F.sum(measure.rate(1.0)).alias(f"{kind.value}_used"),
            F.when(F.max(f"{kind.value}_fleet_limit").isNotNull(), once)
            .otherwise(F.sum("duration_s"))
            .alias(f"{kind.value}_rated"),
            F.sum(F.least(f"throttle_{kind.value}_seconds", "duration_s")).alias(f"{kind.value}_throttled"),
            F.sum(f"throttle_{kind.value}_count").alias(f"{kind.value}_delayed"),
        ]
    hourly = context.kept(rows.groupBy(*CLIENT, "hour_s").agg(*sums), "hourly")
    figures_of = ("limit", "used", "rated", "throttled", "delayed")
    kinds = exploded(
        hourly,
        (*CLIENT, "hour_s", "seconds"),
        (
            [F.lit(kind.value).alias("kind"), *(F.col(f"{kind.value}_{name}").alias(name) for name in figures_of)]
            for kind in Kind
        ),
    )
    in_order = Window.partitionBy(*CLIENT, "kind").orderBy("hour_s")
    sides = {"before": in_order.rangeBetween(-SEEN_S, -HOUR_S), "after": in_order.rangeBetween(0, SEEN_S - HOUR_S)}
    around = {
        f"_{name}_{side}": F.sum(name).over(window)
        for side, window in sides.items()
        for name in ("seconds", "used", "rated", "throttled", "delayed")
    }
    changed = kinds.withColumns(
        {"_place": F.row_number().over(in_order), "limit_before": F.lag("limit").over(in_order), **around}
    ).where("_place > 1 AND NOT (limit <=> limit_before)")
    figures = {
        f"{name}_{side}": ratio(F.col(f"_{column}_{side}"), F.col(f"_{per}_{side}"))
        for side in sides
        for name, column, per in (("rate", "used", "rated"), ("throttled_share", "throttled", "seconds"))
    }
    figures |= {f"delayed_{side}": F.coalesce(f"_delayed_{side}", F.lit(0)) for side in sides}
    found = changed.withColumns(figures).select(
        *CLIENT,
        "kind",
        moment("hour_s").alias("since"),
        "limit_before",
        F.col("limit").alias("limit_after"),
        *(f"{name}_{side}" for name in ("rate", "throttled_share", "delayed") for side in sides),
    )
    largest = F.abs(F.col("throttled_share_after") - F.col("throttled_share_before")).desc_nulls_last()
    order: list[Column | str] = [largest, *CLIENT, "kind", "since"]
    return Report(
        "Changes of quotas",
        "How did usage and delays change from the day before to the day after each quota change?",
        {"changes": Table(found, "Changes", order)},
        _content,
    )


def _content(tables: Mapping[str, DataFrame]) -> Content:
    found = tables["changes"]
    number = found.count()
    if not number:
        return Content(["No client's quota changed in this time."], notes=_NOTES)
    clients = found.select(*CLIENT).distinct().count()
    better = found.where("throttled_share_after < throttled_share_before").count()
    worse = found.where("throttled_share_after > throttled_share_before").count()
    findings = [
        f"{several(number, 'change')} of quotas of {several(clients, 'client')}: {better:,} reduced the client's "
        f"throttled time, {worse:,} increased it."
    ]
    findings += [
        f"{who(row)}, {row['kind']}, {row['since']:%Y-%m-%d %H:%M}: from {_limit(row, 'limit_before')} to "
        f"{_limit(row, 'limit_after')}. It was throttled for {share(row['throttled_share_before'])} of its time "
        f"before and {share(row['throttled_share_after'])} after, and used {_limit(row, 'rate_before')} before and "
        f"{_limit(row, 'rate_after')} after."
        for row in some_rows(found, 4)
    ]
    return Content(findings, notes=_NOTES)


_NOTES = [
    "A change is the first hour with another limit in a client's records. Other differences between the two days "
    "(a weekend, a release) are not removed.",
    "With scope: fleet, limit and rate are those of the whole fleet, not of one sidecar.",
    "Figures cover the hours with records within 24 hours before and after. Rates are means, in bytes per second, "
    "percent of one thread, or partitions per second.",
]


def _limit(row: object, name: str) -> str:
    value, kind = row[name], row["kind"]  # type: ignore[index]
    if value is None:
        return "no limit" if name.startswith("limit") else "nothing"
    return rate(kind, value)
