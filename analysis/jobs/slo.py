"""`slo`: the share of each team's time and requests that quotas throttled, against a target."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, HOUR_S, some_rows, sums
from analysis.intake import Quality
from analysis.kinds import COUNTS, SECONDS
from analysis.owners import Owners
from analysis.report import TEAM, Content, Context, Report, Table, Tables
from analysis.words import several, share, span, who

COLUMNS = (*COUNTS, *SECONDS, "requests")
ROLLED = True
_SUMS = ("seconds", "time_delayed_seconds", "requests", "requests_delayed")
PLOTTED = 8


def run(context: Context) -> Report:
    """Per client and hour first; teams are looked up on clients, not on records."""
    target: float = context.options["target"]
    owners: Owners | None = context.options.get("owners")
    team = F.col("user") if owners is None else owners.column()
    hourly = context.in_buckets(HOUR_S, (*_SUMS, "first_ms", "last_ms")).withColumnRenamed("bucket", "hour_s")
    hourly = context.kept(hourly.withColumn(TEAM, team), "hourly")
    teams = _judged(hourly.groupBy(TEAM), [F.count_distinct(*CLIENT).alias("clients")], target)
    clients = _judged(hourly.groupBy(TEAM, *CLIENT), [], target)
    worst: list[Column | str] = [F.desc("budget_used_share"), TEAM]
    return Report(
        "Service level",
        f"Was each team free of delays for {target * 100:.6g} % of its time and of its requests?",
        {
            "teams": Table(teams, "Teams" if owners else "Users, as no file of owners was given", worst),
            "clients": Table(clients.where("requests_delayed > 0"), "Delayed clients", [*worst, *CLIENT]),
            "hours": context.hours(hourly, _SUMS),
        },
        lambda tables: _content(tables, target, context.intake.quality),
    )


def _judged(groups: GroupedData, more: list[Column], target: float) -> DataFrame:
    """Sums, shares, and the used part of what the target allows: 1 is all of it."""
    shares = groups.agg(*more, *sums(_SUMS)).selectExpr(
        "*",
        "coalesce(time_delayed_seconds / nullif(seconds, 0), 0) AS time_delayed_share",
        "coalesce(requests_delayed / nullif(requests, 0), 0) AS requests_delayed_share",
    )
    worse = F.greatest("time_delayed_share", "requests_delayed_share")
    # Rounded: 1 - 0.9 is less than 0.1 in floating point, and a sum of seconds is not exact either.
    used = F.round(worse / _allowed(target), 9)
    return shares.withColumns({"budget_used_share": used, "kept": used <= 1})


def _allowed(target: float) -> float:
    return round(1 - target, 9)


def _content(tables: Tables, target: float, quality: Quality) -> Content:
    teams = tables["teams"]
    number, missed = teams.count(), some_rows(teams.where("NOT kept"), 12)
    several_missed = teams.where("NOT kept").count()
    findings = [
        f"{several_missed:,} of {several(number, 'team')} missed the target: more than {share(_allowed(target))} of "
        "their time or of their requests was delayed by quotas."
    ]
    findings += [
        f"{row[TEAM]}: delayed for {span(row['time_delayed_seconds'])} ({share(row['time_delayed_share'])} of its "
        f"time), {row['requests_delayed']:,} of {row['requests']:,} requests delayed "
        f"({share(row['requests_delayed_share'])})."
        for row in missed[:4]
    ]
    first = some_rows(tables["clients"], 1)
    if missed and first:
        findings.append(f"The client that exceeded the target most: {who(first[0])}.")
    hours = plots.per_hour(tables["hours"], {"delayed": "time_delayed_seconds"}, "minutes per hour", quality, 60)
    bars = {row[TEAM]: {"% of time": row["time_delayed_share"] * 100} for row in some_rows(teams, PLOTTED)}
    return Content(
        findings,
        [("Delayed time per hour", hours), ("Teams", plots.bars(bars, "percent of the time"))],
        notes=[
            "Time is the intervals in which a client sent requests. Delays of an interval count up to its length, "
            "however many connections waited.",
            "budget_used_share is the larger of the two shares, divided by 100 % minus the target.",
            "Delays by the brokers' own quotas count as well.",
        ],
    )
