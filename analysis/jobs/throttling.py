"""`throttling`: who was slowed down, by what, for how long."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, bucket, cluster, moment, ratio
from analysis.report import Context, Plot, Report, Story, Table
from analysis.rows import over_time, some_rows
from analysis.words import several, share, span, who
from quota.record import CAUSES

_COUNTS = tuple(f"throttle_{cause}_count" for cause in CAUSES)
_SECONDS = tuple(f"throttle_{cause}_seconds" for cause in CAUSES)
COLUMNS = (*_COUNTS, *_SECONDS, "requests", "connections_peak")
HOUR_S = 3600


def run(context: Context) -> Report:
    """Delays per client and cause, and per hour. One request has one cause, so they may be added up."""
    rows = context.records.withColumns({"cluster_id": cluster(), "hour_s": bucket(HOUR_S)})
    hourly = rows.groupBy(*CLIENT, "hour_s").agg(
        *(F.sum(name).alias(name) for name in (*_COUNTS, *_SECONDS, "requests")),
        F.sum(F.col("duration_s") * F.greatest("connections_peak", F.lit(1))).alias("connection_seconds"),
    )
    hourly = context.kept(hourly, "hourly")
    delayed = sum((F.col(name) for name in _SECONDS[1:]), F.col(_SECONDS[0]))
    count = sum((F.col(name) for name in _COUNTS[1:]), F.col(_COUNTS[0]))
    sums = hourly.groupBy(*CLIENT).agg(
        *(F.sum(name).alias(name) for name in (*_COUNTS, *_SECONDS, "requests", "connection_seconds")),
        F.sum((count > 0).cast("long")).alias("hours_with_throttles"),
    )
    longest = F.greatest(*_SECONDS)
    cause = F.coalesce(*(F.when(F.col(f"throttle_{name}_seconds") == longest, name) for name in CAUSES))
    clients = sums.where(count > 0).select(
        *CLIENT,
        delayed.alias("delayed_seconds"),
        count.alias("requests_delayed"),
        ratio(count.cast("double"), F.col("requests")).alias("requests_delayed_share"),
        ratio(delayed, F.col("connection_seconds")).alias("time_lost_share"),
        cause.alias("main_cause"),
        "hours_with_throttles",
        *_SECONDS,
    )
    causes = hourly.select(
        F.explode(
            F.array(
                *(
                    F.struct(
                        F.lit(name).alias("cause"),
                        F.col(f"throttle_{name}_count").alias("requests_delayed"),
                        F.col(f"throttle_{name}_seconds").alias("delayed_seconds"),
                        F.struct(*CLIENT).alias("client"),
                    )
                    for name in CAUSES
                )
            )
        ).alias("one")
    ).select("one.*")
    by_cause = (
        causes.where("requests_delayed > 0")
        .groupBy("cause", "client")
        .agg(F.sum("requests_delayed").alias("requests_delayed"), F.sum("delayed_seconds").alias("delayed_seconds"))
        .groupBy("cause")
        .agg(
            F.count("*").alias("clients"),
            F.sum("requests_delayed").alias("requests_delayed"),
            F.sum("delayed_seconds").alias("delayed_seconds"),
        )
    )
    hours = hourly.groupBy(moment("hour_s").alias("hour")).agg(*(F.sum(name).alias(name) for name in _SECONDS))
    return Report(
        "Throttling",
        "Who was slowed down, by which quota, and how much time did it cost?",
        {
            "causes": Table(by_cause, "Causes", [F.col("delayed_seconds").desc(), F.col("cause")]),
            "clients": Table(clients, "Clients that were delayed", [F.col("delayed_seconds").desc(), *CLIENT]),
            "hours": Table(hours, "Hours", [F.col("hour")], shown=0),
        },
        _tell,
    )


def _tell(tables: Mapping[str, DataFrame]) -> Story:
    causes, top = some_rows(tables["causes"]), some_rows(tables["clients"], 12)
    hours, step_s = over_time(tables["hours"], "hour", _SECONDS, HOUR_S)
    total = sum(row["delayed_seconds"] for row in causes)
    number = tables["clients"].count()
    if not causes:
        return Story(["Nobody was throttled in this time."])
    findings = [
        f"{several(number, 'client')} lost {span(total)} to throttles, in "
        f"{sum(row['requests_delayed'] for row in causes):,} delayed requests.",
        (
            f"Most of it, {share(causes[0]['delayed_seconds'] / total if total else 0)}, was due to "
            if len(causes) > 1
            else "All of it was due to "
        )
        + ("the brokers' own quotas." if causes[0]["cause"] == "broker" else f"the {causes[0]['cause']} quota."),
    ]
    findings += [
        f"{who(row)} lost {span(row['delayed_seconds'])} (mainly {row['main_cause']}): "
        f"{share(row['time_lost_share'])} of the time its connections were open, in "
        f"{several(row['hours_with_throttles'], 'clock hour')}."
        for row in top[:3]
    ]
    used = [row["cause"] for row in causes]
    series = {cause: [(row["hour"], row[f"throttle_{cause}_seconds"] * 60 / step_s) for row in hours] for cause in used}
    victims = {who(row): {cause: row[f"throttle_{cause}_seconds"] / 60 for cause in used} for row in top[:12]}
    return Story(
        findings,
        [
            Plot("Time lost to throttles, hour by hour", plots.lines(series, "minutes per hour")),
            Plot("Who lost most", plots.bars(victims, "minutes")),
        ],
        notes=[
            "Delays of several connections at the same time add up: two connections held for a "
            "minute each are two minutes.",
            "Each delayed request has one cause, the quota with the longest delay. 'broker' are "
            "quotas of the brokers' own.",
            "The share of time lost is against the connections open at most in each interval, so it "
            "is at least that much.",
        ],
    )
