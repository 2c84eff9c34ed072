"""`changes`: the effect of each change of a quota, a day before and a day after."""

from __future__ import annotations

from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, named, some_rows
from analysis.kinds import AMOUNTS, USED, by_kind
from analysis.report import Content, Context, Report, Table, Tables
from analysis.words import rate, several, share, who
from quota.entity import Kind

SEEN_S = DAY_S
"""Length of the periods before and after a change; of hours in which the client was active."""
COLUMNS = (
    *AMOUNTS.values(),
    *(f"{kind}_{limit}" for kind in Kind for limit in ("limit", "fleet_limit")),
    *(f"throttle_{kind}_{figure}" for kind in Kind for figure in ("count", "seconds")),
)
_SUMMED = ("seconds", "used", "rated", "throttled", "delayed")


def run(context: Context) -> Report:
    """Per client, kind and hour; a change is where an hour has another limit than the client's previous hour."""
    rows = context.records.withColumn("hour_s", bucket(HOUR_S))
    sums = {"seconds": "sum(duration_s)"}
    # Of sidecars that share a limit, seconds at the same time count once.
    once = "least(sum(duration_s), (max(end_ms) - min(start_ms)) / 1000)"
    for kind in Kind:
        sums |= {
            # Shares of a fleet's limit move all the time; the limit that people set is the fleet's.
            f"{kind}_limit": f"max(coalesce({kind}_fleet_limit, {kind}_limit))",
            f"{kind}_used": f"sum(double({USED[kind]}))",
            f"{kind}_rated": f"IF(max({kind}_fleet_limit) IS NULL, sum(duration_s), {once})",
            f"{kind}_throttled": f"sum(least(throttle_{kind}_seconds, duration_s))",
            f"{kind}_delayed": f"sum(throttle_{kind}_count)",
        }
    hourly = context.kept(rows.groupBy(*CLIENT, "hour_s").agg(*named(**sums)), "hourly")
    figures = {name: f"{{kind}}_{name}" for name in ("limit", *_SUMMED[1:])}
    kinds = by_kind(hourly, (*CLIENT, "hour_s", "seconds"), tuple(Kind), **figures)
    in_order = Window.partitionBy(*CLIENT, "kind").orderBy("hour_s")
    sides = {"before": in_order.rangeBetween(-SEEN_S, -HOUR_S), "after": in_order.rangeBetween(0, SEEN_S - HOUR_S)}
    around = {f"{name}_{side}": F.sum(name).over(window) for side, window in sides.items() for name in _SUMMED}
    changed = kinds.withColumns(
        {"_place": F.row_number().over(in_order), "limit_before": F.lag("limit").over(in_order), **around}
    ).where("_place > 1 AND NOT (limit <=> limit_before)")
    found = changed.selectExpr(
        *CLIENT,
        "kind",
        "timestamp_seconds(hour_s) AS since",
        "limit_before",
        "limit AS limit_after",
        *(f"used_{side} / nullif(rated_{side}, 0) AS rate_{side}" for side in sides),
        *(f"throttled_{side} / nullif(seconds_{side}, 0) AS throttled_share_{side}" for side in sides),
        *(f"coalesce(delayed_{side}, 0) AS delayed_{side}" for side in sides),
    )
    largest = F.abs(F.col("throttled_share_after") - F.col("throttled_share_before")).desc_nulls_last()
    order: list[Column | str] = [largest, *CLIENT, "kind", "since"]
    return Report(
        "Changes of quotas",
        "How did usage and delays change from the day before to the day after each quota change?",
        {"changes": Table(found, "Changes", order)},
        _content,
    )


def _content(tables: Tables) -> Content:
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
