"""One report from the records to the page."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from analysis.columns import grain_for, seen
from analysis.days import EVERY_DAY, Days
from analysis.errors import ReportError
from analysis.files import delete, unreadable_file, write_csv, write_text
from analysis.intake import read
from analysis.page import render
from analysis.progress import Progress
from analysis.report import Context, with_teams, written
from quota.visible import visible

MOST_UNREADABLE = 200
"""More files that cannot be read, and the input is probably something else."""


def make(
    spark: SparkSession,
    name: str,
    source: str,
    output: str,
    grain_s: int,
    options: Mapping[str, Any],
    *,
    quiet: bool = False,
    now_ms: int | None = None,
    days: Days = EVERY_DAY,
) -> str:
    """Make the report `name` in a directory of that name below `output`; returns what to tell the person who asked."""
    unreadable: list[str] = []
    with contextlib.ExitStack() as stack:
        progress = None if quiet else stack.enter_context(Progress(spark))
        step = (lambda _: None) if progress is None else progress.step
        # Which files can be read to their ends shows when they are: what cannot is passed over, and all begins anew.
        while True:
            try:
                return _made(spark, name, source, output, grain_s, options, step, now_ms, unreadable, days)
            except Exception as error:
                file = unreadable_file(error)
                if file is None or file in unreadable:
                    raise
                unreadable.append(file)
                if len(unreadable) > MOST_UNREADABLE:
                    raise ReportError(
                        f"--input {source}: more than {MOST_UNREADABLE} files cannot be read, the last one is {file}"
                    ) from error


def _made(
    spark: SparkSession,
    name: str,
    source: str,
    output: str,
    grain_s: int,
    options: Mapping[str, Any],
    step: Callable[[str], None],
    now_ms: int | None,
    unreadable: Sequence[str],
    days: Days,
) -> str:
    job = importlib.import_module(f"analysis.jobs.{name}")
    directory = f"{output.rstrip('/')}/{name}"
    staging = f"{directory}/_staging"
    with contextlib.ExitStack() as stack:
        stack.callback(delete, spark, staging)
        step("reading and checking records")
        intake = read(spark, source, job.COLUMNS, staging, now_ms=now_ms, unreadable=unreadable, days=days)
        grain = grain_for(grain_s, intake.quality.interval_s)
        if grain != grain_s:
            intake = replace(intake, quality=replace(intake.quality, grain_s=grain))
        step("what went in")
        write_csv(seen(intake.instances.drop("renamed")), f"{directory}/instances.csv", ["instance"])
        aside = f"{directory}/set-aside"
        delete(spark, aside)
        if intake.aside is not None and (any(intake.quality.aside.values()) or unreadable):
            intake.aside.write.mode("overwrite").json(aside)
        step(f"{name}: computing")
        report = with_teams(job.run(Context(intake, grain, staging, options)), options.get("owners"))
        tables = written(report, directory)
        step("writing the page")
        story = report.tell(tables)
        for file, text in story.files.items():
            write_text(spark, f"{directory}/{file}", text)
        write_text(spark, f"{directory}/report.html", render(report, story, tables, intake.quality))
    lines = [
        report.title,
        *(f"  {text}" for text in story.findings),
        *(f"  {text}" for text in intake.quality.sentences()),
    ]
    lines.append(f"  {directory}/report.html")
    return "\n".join(visible(line) for line in lines)
