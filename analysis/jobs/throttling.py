"""`throttling`: which clients were throttled, by what, for how long."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, HOUR_S, bucket, moment, over_time, ratio, some_rows, sums
from analysis.intake import Quality
from analysis.kinds import COUNTS, SECONDS, all_of, exploded
from analysis.report import Content, Context, Plot, Report, Table
from analysis.words import several, share, span, who
from quota.entity import Kind
from quota.record import CAUSES

_HELD = {kind.value: f"throttle_{kind}_held_seconds" for kind in Kind}
"""By cause: the part of the delay before requests were forwarded. Missing in version 1, where it was 0."""
COLUMNS = (*COUNTS, *SECONDS, *_HELD.values(), "requests", "connections_peak")
_SUMS = ("requests_delayed", "delayed_seconds", "held_seconds")


def run(context: Context) -> Report:
    """Delays per client and cause, and per hour. One request has one cause, so they may be added up."""
    rows = context.records.withColumn("hour_s", bucket(HOUR_S))
    hourly = rows.groupBy(*CLIENT, "hour_s").agg(
        *sums((*COUNTS, *SECONDS, "requests")),
        *(F.coalesce(F.sum(name), F.lit(0.0)).alias(name) for name in _HELD.values()),
        F.sum(F.col("duration_s") * F.greatest("connections_peak", F.lit(1))).alias("connection_seconds"),
        F.min("start_ms").alias("first_ms"),
        F.max("end_ms").alias("last_ms"),
    )
    hourly = context.kept(hourly, "hourly")
    delayed = all_of(SECONDS)
    held = all_of(tuple(_HELD.values()))
    count = all_of(COUNTS)
    summed = hourly.groupBy(*CLIENT).agg(
        *sums((*COUNTS, *SECONDS, *_HELD.values(), "requests", "connection_seconds")),
        F.sum((count > 0).cast("long")).alias("hours_with_throttles"),
    )
    longest = F.greatest(*SECONDS)
    cause = F.coalesce(*(F.when(F.col(f"throttle_{name}_seconds") == longest, name) for name in CAUSES))
    clients = summed.where(count > 0).select(
        *CLIENT,
        delayed.alias("delayed_seconds"),
        held.alias("held_seconds"),
        count.alias("requests_delayed"),
        ratio(count.cast("double"), F.col("requests")).alias("requests_delayed_share"),
        ratio(delayed, F.col("connection_seconds")).alias("time_lost_share"),
        cause.alias("main_cause"),
        "hours_with_throttles",
        *SECONDS,
    )
    causes = exploded(
        hourly,
        CLIENT,
        (
            [
                F.lit(name).alias("cause"),
                F.col(f"throttle_{name}_count").alias("requests_delayed"),
                F.col(f"throttle_{name}_seconds").alias("delayed_seconds"),
                (F.col(_HELD[name]) if name in _HELD else F.lit(0.0)).alias("held_seconds"),
            ]
            for name in CAUSES
        ),
    )
    by_cause = (
        causes.where("requests_delayed > 0")
        .groupBy("cause", *CLIENT)
        .agg(*sums(_SUMS))
        .groupBy("cause")
        .agg(F.count("*").alias("clients"), *sums(_SUMS))
    )
    client_hours = hourly.where(count > 0).select(
        *CLIENT,
        moment("hour_s").alias("hour"),
        delayed.alias("delayed_seconds"),
        count.alias("requests_delayed"),
        cause.alias("main_cause"),
    )
    return Report(
        "Throttling",
        "Which clients were throttled, by which quota, and how much time did it cost?",
        {
            "causes": Table(by_cause, "Causes", [F.col("delayed_seconds").desc(), F.col("cause")]),
            "clients": Table(
                clients,
                "Delayed clients",
                [F.col("delayed_seconds").desc(), *CLIENT],
                summed=("delayed_seconds", "held_seconds", "requests_delayed"),
            ),
            "client_hours": Table(
                client_hours, "Each client, per hour", [F.col("delayed_seconds").desc(), "hour", *CLIENT]
            ),
            "hours": context.hours(hourly, SECONDS),
        },
        lambda tables: _content(tables, context.intake.quality),
    )


def _content(tables: Mapping[str, DataFrame], quality: Quality) -> Content:
    causes, top = some_rows(tables["causes"]), some_rows(tables["clients"], 12)
    hours, step_s = over_time(tables["hours"], "hour", (*SECONDS, "observed_seconds"), HOUR_S)
    total = sum(row["delayed_seconds"] for row in causes)
    number = tables["clients"].count()
    if not causes:
        return Content(["No client was throttled in this time."])
    part = causes[0]["delayed_seconds"] / total if total else 0.0
    findings = [
        f"{several(number, 'client')} lost {span(total)} to throttles, in "
        f"{sum(row['requests_delayed'] for row in causes):,} delayed requests.",
        (
            f"{'Most' if part > 0.5 else 'The largest part'} of it, {share(part)}, was due to "
            if len(causes) > 1
            else "All of it was due to "
        )
        + ("the brokers' own quotas." if causes[0]["cause"] == "broker" else f"the {causes[0]['cause']} quota."),
    ]
    held = sum(row["held_seconds"] for row in causes)
    if held and total:
        findings.append(
            f"{span(held)} ({share(held / total)}) was queueing in kquota; clients saw the rest as throttle_time_ms."
        )
    findings += [
        f"{who(row)} lost {span(row['delayed_seconds'])} (mainly {row['main_cause']}): {share(row['time_lost_share'])} "
        f"of the time its connections were open, in {several(row['hours_with_throttles'], 'clock hour')}."
        for row in top[:3]
    ]
    used = [row["cause"] for row in causes]
    series = {
        cause: [(row["hour"], row[f"throttle_{cause}_seconds"] * 60 / row["observed_seconds"]) for row in hours]
        for cause in used
    }
    victims = {who(row): {cause: row[f"throttle_{cause}_seconds"] / 60 for cause in used} for row in top[:12]}
    return Content(
        findings,
        [
            Plot("Time lost to throttles, per hour", plots.steps(series, "minutes per hour", step_s, quality)),
            Plot("Clients with the longest delays", plots.bars(victims, "minutes")),
        ],
        notes=[
            "Delays of several connections add up: two connections delayed for a minute each are two minutes.",
            "held_seconds is the part of delayed_seconds in which requests waited before they were forwarded. No "
            "throttle time reports it.",
            "Each delayed request has one cause, the quota with the longest delay. 'broker': the brokers' own quotas.",
            "The share of time lost divides by the most connections open in each interval, so it is a lower bound.",
        ],
    )
