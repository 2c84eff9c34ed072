"""A job's results: tables, plots and sentences; and how they become Parquet, CSV and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis.columns import CLIENT, HOUR_S, cluster, some_rows, sums
from analysis.files import kept, write_csv
from analysis.intake import Intake
from analysis.kinds import of_sidecars, promised
from analysis.owners import Owners
from analysis.rollups import STEPS, coarser, of_records

TEAM = "team"
Tables = Mapping[str, DataFrame]
"""A report's tables as they were written, by name."""
LEAST_S = 0.001
"""No rate is over less, whatever records say."""


@dataclass(frozen=True, slots=True)
class Context:
    """A job's input."""

    intake: Intake
    grain_s: int
    """Length of the time buckets for rates of the whole fleet, in seconds."""
    staging: str
    """Directory for what is computed once and used several times; deleted when the report is done."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def libraries(self) -> DataFrame:
        """The library of each client; of several the last one in alphabetical order."""
        libraries = self.intake.rollups("day")
        if libraries is None:
            # Separate from sums, as it is a string: among them it would make Spark sort all records.
            libraries = self.records.select(*CLIENT, F.col("client_library").alias("library")).distinct()
        return libraries.groupBy(*CLIENT).agg(F.max("library").alias("library"))

    def promised(self) -> DataFrame:
        """The limits in force in the last hour, added up (:func:`analysis.kinds.promised`)."""
        since_ms = self.intake.quality.last_ms - HOUR_S * 1000
        return promised(self.kept(of_sidecars(self.records, since_ms), "promised"))

    def kept(self, frame: DataFrame, name: str) -> DataFrame:
        """Compute it now, once: it is used by several results."""
        return kept(frame, f"{self.staging}/{name}")

    @property
    def records(self) -> DataFrame:
        """The usable records; :func:`cluster` is their `cluster_id`."""
        return self.intake.records.withColumn("cluster_id", cluster())

    def observed_s(self, frame: DataFrame, step_s: int, time: str = "bucket") -> Column:
        """Seconds of each bucket of `frame` (`time`: its start; `first_ms`, `last_ms`) in which a sidecar ran, for
        rates: all but where they began or ended, and no less than an interval."""
        quality = self.intake.quality
        interval_ms = quality.interval_s * 1000
        ends_s = {int(one // 1000) for times in quality.covered for one in times}
        partial = frame.where(F.col(time).isin([one // step_s * step_s for one in ends_s]))
        found: dict[int, float] = {}
        for row in some_rows(partial.groupBy(time).agg(F.min("first_ms").alias("low"), F.max("last_ms").alias("high"))):
            begin, finish = row[time] * 1000, (row[time] + step_s) * 1000
            # An interval belongs to one bucket, also the part of it that lies outside.
            low = row["low"] if row["low"] <= begin + interval_ms / 2 else begin
            high = row["high"] if row["high"] >= finish - interval_ms / 2 else finish
            covered_ms = sum(max(min(high, last) - max(low, first), 0) for first, last in quality.covered)
            found[row[time]] = min(max(covered_ms / 1000, quality.interval_s, LEAST_S), float(step_s))
        seconds = F.from_json(F.lit(json.dumps(found)), "map<string, double>")
        return F.coalesce(seconds[F.col(time).cast("string")], F.lit(float(step_s)))

    def hours(self, hourly: DataFrame, names: Sequence[str]) -> Table:
        """Sums of these columns by `hour`, for plots, and how much of it the input covers (`hourly`: with `hour_s`)."""
        summed = hourly.groupBy("hour_s").agg(*sums(names))
        observed = self.observed_s(hourly, HOUR_S, "hour_s").alias("observed_seconds")
        return Table(
            summed.select(F.timestamp_seconds("hour_s").alias("hour"), *names, observed), "Hours", ["hour"], shown=0
        )

    def in_buckets(self, step_s: int, names: Sequence[str]) -> DataFrame:
        """One row per client and bucket (:mod:`analysis.rollups`), from the store's rollups if they suffice."""
        for name, length_s in reversed(STEPS.items()):
            if step_s % length_s == 0 and (rollup := self.intake.rollups(name)) is not None:
                return (rollup if length_s == step_s else coarser(rollup, step_s)).select(*CLIENT, "bucket", *names)
        return of_records(self.records, step_s, names)


@dataclass(frozen=True, slots=True)
class Table:
    """A result to be written. `order`: the order for people."""

    frame: DataFrame | Callable[[Tables], DataFrame]
    """Or a function of the previous tables, as they were written."""
    caption: str
    order: Sequence[Column | str]
    shown: int = 200
    """How many rows the page has; 0: none, the table is for plots and for readers of the files."""
    left_out: Sequence[str] = ()
    summed: Sequence[str] = ()
    """Columns that are summed by team, if teams are known."""
    per: Sequence[str] = ()
    """And by these columns."""


@dataclass(frozen=True, slots=True)
class Content:
    """The findings, written after the tables."""

    findings: Sequence[str]
    plots: Sequence[tuple[str, str]] = ()
    """Caption, and picture as SVG text."""
    files: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a job: lazily computed tables, and a function that writes the content once they are written."""

    title: str
    question: str
    tables: Mapping[str, Table]
    content: Callable[[Tables], Content]


def with_teams(report: Report, owners: Owners | None) -> Report:
    """The report with a column `team` in each table of clients, or of groups that share a limit, and sums by team."""
    if owners is None:
        return report
    tables: dict[str, Table] = {}
    for name, table in report.tables.items():
        tables[name] = _with_team(table, owners)
        if table.summed:
            tables["teams"] = _of_teams(name, table)
    return replace(report, tables=tables)


def _with_team(table: Table, owners: Owners) -> Table:
    if not isinstance(table.frame, DataFrame):
        return table
    names = table.frame.columns
    for user, client in (("user", "client_id"), ("group_user", "group_client")):
        if TEAM not in names and {user, client} <= set(names):
            return replace(table, frame=table.frame.select(owners.column(user, client).alias(TEAM), *names))
    return table


def _of_teams(name: str, table: Table) -> Table:
    return Table(
        lambda tables: tables[name].groupBy(TEAM, *table.per).agg(F.count("*").alias("rows"), *sums(table.summed)),
        f"Teams: sums of “{table.caption}”",
        [*table.per, F.desc(table.summed[0]), TEAM],
    )


def written(report: Report, directory: str) -> dict[str, DataFrame]:
    """Write every table as Parquet and CSV; returns them as read back, so that nothing is computed twice."""
    back: dict[str, DataFrame] = {}
    for name, table in report.tables.items():
        frame = table.frame if isinstance(table.frame, DataFrame) else table.frame(back)
        frame = kept(frame, f"{directory}/{name}.parquet")
        write_csv(frame, f"{directory}/{name}.csv", table.order)
        back[name] = frame.orderBy(*table.order)
    return back
