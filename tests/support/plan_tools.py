"""What Spark says of the queries that it ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def watched(spark: SparkSession) -> Iterator[list[str]]:
    """The physical plans, as they were at last, of all queries that run in the block; filled when it is over."""
    plans: list[str] = []
    before = {one.executionId() for one in _executions(spark)}
    yield plans
    core: Any = spark.sparkContext._jsc.sc()
    core.listenerBus().waitUntilEmpty()
    plans += [one.physicalPlanDescription() for one in _executions(spark) if one.executionId() not in before]


def _executions(spark: SparkSession) -> list[Any]:
    session: Any = spark._jsparkSession
    found = session.sharedState().statusStore().executionsList()
    return [found.apply(index) for index in range(found.size())]
