"""The Spark room: one session for each process that runs tests, and brokers for what streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import kafka, kafka_secure, topic
from tests.support.spark_archive import quick_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["kafka", "kafka_secure", "spark", "topic"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small Spark for all tests of the jobs. Without a Java that can run it they fail: they are never skipped."""
    from analysis.session import open_session

    small = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Queries over a handful of rows: compiling them takes longer than interpreting them. What is submitted to a
        # cluster (test_analysis_cluster.py) is compiled.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": quick_jvm(),
    }
    session = open_session("local[2]", "1g", small)
    yield session
    session.stop()
