"""One report from the records to the page."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from analysis.columns import grain_for, seen
from analysis.days import EVERY_DAY, Days
from analysis.errors import ReportError, WrongUseError, in_short
from analysis.files import delete, delete_earlier, without_unreadable, write_csv, write_text
from analysis.intake import Intake, read
from analysis.page import IndexEntry, render, render_index
from analysis.report import Context, with_teams, written
from analysis.store import Store
from config.visible import visible


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of reports, and their options."""

    source: str
    output: str
    grain_s: int
    options: Mapping[str, Any]
    """By name; each report takes its own."""
    now_ms: int | None = None
    days: Days = EVERY_DAY
    quiet: bool = False


@dataclass(slots=True)
class _Records:
    """The input, read and checked once: for one report, or for all."""

    columns: Collection[str]
    staging: str
    rolled: bool = False
    """Rollups will do in place of records."""
    unreadable: list[str] = field(default_factory=list)
    intake: Intake | None = None
    """None: not read yet."""

    def read(self, spark: SparkSession, asked: Asked) -> Intake:
        if self.intake is None or self.intake.quality.files != tuple(self.unreadable):
            self.intake = read(
                spark,
                asked.source,
                self.columns,
                self.staging,
                now_ms=asked.now_ms,
                unreadable=self.unreadable,
                days=asked.days,
                rolled=self.rolled,
            )
        return self.intake


def make(spark: SparkSession, name: str, asked: Asked) -> str:
    """Make the report `name` in a directory of that name below the output; returns text for the person who asked."""
    return _lines(_made(spark, name, asked), asked)


def make_all(spark: SparkSession, names: Collection[str], asked: Asked) -> tuple[str, dict[str, str]]:
    """Make several reports and `index.html`; returns text for people, and why some failed. Raises ReportError when none
    could be made."""
    names = sorted(names, key=lambda name: name != "chargeback")  # cost comes first
    records = None
    # A store has rollups and columns of their own for each report, which cost less than all columns.
    if not Store(spark, asked.source).exists():
        columns = {one: None for name in names for one in _job(name).COLUMNS}
        records = _Records(columns, f"{asked.output}/_staging")
    entries, failed = [], {}
    try:
        for name in names:
            try:
                entries.append(_made(spark, name, asked, records, names))
            except WrongUseError:
                raise
            except Exception as error:
                failed[name] = in_short(error)
    finally:
        delete(spark, f"{asked.output}/_staging")
    if not entries:
        raise ReportError("; ".join(f"{name}: {text}" for name, text in failed.items()))
    index = f"{asked.output}/index.html"
    write_text(spark, index, render_index(entries, failed))
    lines = [_lines(one, asked, quality=False) for one in entries]
    lines += [visible(f"  {text}") for text in entries[0].quality.sentences()]
    return "\n".join([*lines, f"  {index}"]), failed


def _job(name: str) -> Any:
    return importlib.import_module(f"analysis.jobs.{name}")


def _lines(entry: IndexEntry, asked: Asked, *, quality: bool = True) -> str:
    page = f"{asked.output}/{entry.name}/report.html"
    texts = [*entry.findings, *(entry.quality.sentences() if quality else ()), page]
    return "\n".join(visible(line) for line in [entry.title, *(f"  {text}" for text in texts)])


def _made(
    spark: SparkSession, name: str, asked: Asked, records: _Records | None = None, others: Collection[str] = ()
) -> IndexEntry:
    """One report. `records`: those that are shared with `others`, the names of all reports that are made together,
    whose pages link to each other."""
    began_s = time.monotonic()

    def step(name: str) -> None:
        if not asked.quiet:
            print(f"[{time.monotonic() - began_s:5.0f} s] {name}", file=sys.stderr, flush=True)

    job = _job(name)
    directory = f"{asked.output}/{name}"
    staging = f"{directory}/_staging"
    records = records or _Records(job.COLUMNS, staging, getattr(job, "ROLLED", False))

    def whole() -> IndexEntry:
        step(f"{name}: reading and checking records")
        intake = records.read(spark, asked)
        grain = grain_for(asked.grain_s, intake.quality.interval_s)
        if grain != asked.grain_s:
            intake = replace(intake, quality=replace(intake.quality, grain_s=grain))
        write_csv(seen(intake.instances.drop("renamed")), f"{directory}/instances.csv", ["instance"])
        aside = f"{directory}/set-aside"
        delete(spark, aside)
        if intake.aside is not None and (any(intake.quality.aside.values()) or records.unreadable):
            intake.aside.write.mode("overwrite").json(aside)
        step(f"{name}: computing")
        report = with_teams(job.run(Context(intake, grain, staging, asked.options)), asked.options.get("owners"))
        tables = written(report, directory)
        step("writing the page")
        content = report.content(tables)
        for file, text in content.files.items():
            write_text(spark, f"{directory}/{file}", text)
        now = {f"{one}.{suffix}" for one in (*tables, "instances") for suffix in ("csv", "parquet")}
        delete_earlier(spark, directory, now | content.files.keys())
        page = render(report, content, tables, intake.quality, here=name, others=others)
        write_text(spark, f"{directory}/report.html", page)
        return IndexEntry(name, report.title, report.question, content.findings, intake.quality)

    try:
        return without_unreadable(asked.source, records.unreadable, whole)
    finally:
        delete(spark, staging)
