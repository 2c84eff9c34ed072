"""One report from the records to the page."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analysis.columns import moment
from analysis.files import delete, write_csv, write_text
from analysis.intake import read
from analysis.page import render
from analysis.progress import Progress
from analysis.report import Context, written


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
) -> str:
    """Make the report `name` in a directory of that name below `output`; returns what to tell the person who asked."""
    job = importlib.import_module(f"analysis.jobs.{name}")
    directory = f"{output.rstrip('/')}/{name}"
    staging = f"{directory}/_staging"
    with contextlib.ExitStack() as stack:
        progress = None if quiet else stack.enter_context(Progress(spark))
        stack.callback(delete, spark, staging)

        def step(text: str) -> None:
            if progress is not None:
                progress.step(text)

        step("reading and checking records")
        intake = read(spark, source, job.COLUMNS, staging, now_ms=now_ms)
        step("what went in")
        _write_intake(intake.instances.drop("renamed"), directory)
        aside = f"{directory}/set-aside"
        delete(spark, aside)
        if intake.aside is not None and any(intake.quality.aside.values()):
            intake.aside.write.mode("overwrite").json(aside)
        step(f"{name}: computing")
        report = job.run(Context(intake, grain_s, staging, options))
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
    return "\n".join([*lines, f"  {directory}/report.html"])


def _write_intake(instances: Any, directory: str) -> None:
    frame = instances.withColumns(
        {"first_seen": moment(F.col("first_ms") / 1000), "last_seen": moment(F.col("last_ms") / 1000)}
    )
    write_csv(frame.drop("first_ms", "last_ms"), f"{directory}/instances.csv", ["instance"])
