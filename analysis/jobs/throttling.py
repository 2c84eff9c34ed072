"""`throttling`: which clients were throttled, by what, for how long."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, HOUR_S, bucket, named, some_rows, sums
from analysis.intake import Quality
from analysis.kinds import COUNTS, DELAYED, SECONDS, exploded
from analysis.report import Content, Context, Report, Table, Tables
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
        *(F.expr(f"coalesce(sum({name}), 0) AS {name}") for name in _HELD.values()),
        F.expr("sum(duration_s * greatest(connections_peak, 1)) AS connection_seconds"),
        *named(first_ms="min(start_ms)", last_ms="max(end_ms)"),
    )
    hourly = context.kept(hourly, "hourly")
    summed = hourly.groupBy(*CLIENT).agg(
        *sums((*COUNTS, *SECONDS, *_HELD.values(), "requests", "connection_seconds")),
        F.expr(f"count_if({DELAYED['requests_delayed']} > 0) AS hours_with_throttles"),
    )
    clients = _delayed(summed).selectExpr(
        *CLIENT,
        "delayed_seconds",
        "held_seconds",
        "requests_delayed",
        "requests_delayed / nullif(requests, 0) AS requests_delayed_share",
        "delayed_seconds / nullif(connection_seconds, 0) AS time_lost_share",
        "main_cause",
        "hours_with_throttles",
        *SECONDS,
    )
    each = [
        {
            "cause": f"'{name}'",
            "requests_delayed": f"throttle_{name}_count",
            "delayed_seconds": f"throttle_{name}_seconds",
            "held_seconds": _HELD.get(name, "double(0)"),
        }
        for name in CAUSES
    ]
    by_cause = (
        exploded(hourly, CLIENT, each)
        .where("requests_delayed > 0")
        .groupBy("cause", *CLIENT)
        .agg(*sums(_SUMS))
        .groupBy("cause")
        .agg(F.count("*").alias("clients"), *sums(_SUMS))
    )
    client_hours = _delayed(hourly).selectExpr(
        *CLIENT, "timestamp_seconds(hour_s) AS hour", "delayed_seconds", "requests_delayed", "main_cause"
    )
    return Report(
        "Throttling",
        "Which clients were throttled, by which quota, and how much time did it cost?",
        {
            "causes": Table(by_cause, "Causes", [F.desc("delayed_seconds"), "cause"]),
            "clients": Table(
                clients,
                "Delayed clients",
                [F.desc("delayed_seconds"), *CLIENT],
                summed=("delayed_seconds", "held_seconds", "requests_delayed"),
            ),
            "client_hours": Table(client_hours, "Each client, per hour", [F.desc("delayed_seconds"), "hour", *CLIENT]),
            "hours": context.hours(hourly, SECONDS),
        },
        lambda tables: _content(tables, context.intake.quality),
    )


def _delayed(rows: DataFrame) -> DataFrame:
    """Those with delays: their sums, and the cause of the longest ones."""
    longest = F.greatest(*SECONDS)
    cause = F.coalesce(*(F.when(F.col(f"throttle_{name}_seconds") == longest, name) for name in CAUSES))
    all_held = F.expr(" + ".join(_HELD.values()))
    found = {name: F.expr(one) for name, one in DELAYED.items()} | {"held_seconds": all_held, "main_cause": cause}
    return rows.withColumns(found).where("requests_delayed > 0")


def _content(tables: Tables, quality: Quality) -> Content:
    causes, top = some_rows(tables["causes"]), some_rows(tables["clients"], 12)
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
    used = {row["cause"]: f"throttle_{row['cause']}_seconds" for row in causes}
    hours = plots.per_hour(tables["hours"], used, "minutes per hour", quality, 60)
    victims = {who(row): {cause: row[name] / 60 for cause, name in used.items()} for row in top[:12]}
    return Content(
        findings,
        [
            ("Time lost to throttles, per hour", hours),
            ("Clients with the longest delays", plots.bars(victims, "minutes")),
        ],
        notes=[
            "Delays of several connections add up: two connections delayed for a minute each are two minutes.",
            "held_seconds is the part of delayed_seconds in which requests waited before they were forwarded. No "
            "throttle time reports it.",
            "Each delayed request has one cause, the quota with the longest delay. 'broker': the brokers' own quotas.",
            "The share of time lost divides by the most connections open in each interval, so it is a lower bound.",
        ],
    )
