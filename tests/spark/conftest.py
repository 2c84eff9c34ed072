"""Spark tests: one session for each process that runs tests, and brokers for what streams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.brokers import kafka, kafka_secure, topic
from tests.support.browser import browse
from tests.support.quick_spark import keep_names, local_files, make_quick
from tests.support.spark_archive import quick_jvm
from tests.support.spark_tools import DAY_MS, T0_MS, Make, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quota.record import Row

__all__ = ["browse", "kafka", "kafka_secure", "spark", "topic"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small Spark for all tests of the jobs. Without a Java that can run it they fail: they are never skipped."""
    from analysis.session import SMALL, open_session

    small = {
        **SMALL,  # test_analysis_cluster.py submits jobs whose queries are compiled
        "spark.default.parallelism": "2",
        "spark.driver.extraJavaOptions": quick_jvm(),
        "spark.jars": str(local_files()),
    }
    keep_names()
    session = open_session("local[2]", "1g", small)
    make_quick(session)
    yield session
    session.stop()


@pytest.fixture
def report(spark: SparkSession, tmp_path: Path) -> Make:
    """report(name, records, **options) -> what is printed, and where the files are. The page must be in order."""

    from analysis.runner import Asked, make

    def made(name: str, rows: list[Row], **options: Any) -> tuple[str, Path]:
        write(tmp_path / "in", rows)
        now_ms = T0_MS + 30 * DAY_MS
        printed = make(
            spark, name, Asked(str(tmp_path / "in"), str(tmp_path / "out"), 60, options, quiet=True, now_ms=now_ms)
        )
        page = (tmp_path / "out" / name / "report.html").read_text()
        assert not re.search(r"<script[^>]|<link|(src|href)=.https?:", page)  # needs nothing but itself
        assert "<evil>" not in page
        return printed, tmp_path / "out" / name

    return made
