"""What Spark says of the queries that it ran: their physical plans, and how many rows each task took in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASKS = 10_000


@dataclass(slots=True)
class Watched:
    """Filled when the block is over."""

    plans: list[str] = field(default_factory=list)
    stages: list[list[int]] = field(default_factory=list)
    """Rows that came over a shuffle, task by task."""


@contextmanager
def watched(spark: SparkSession) -> Iterator[Watched]:
    """The plans, as they were at last, and the stages of all queries that run in the block."""
    seen = Watched()
    before = {one.executionId() for one in _executions(spark)}
    yield seen
    core: Any = spark.sparkContext._jsc.sc()
    core.listenerBus().waitUntilEmpty()
    for one in _executions(spark):
        if one.executionId() in before:
            continue
        seen.plans.append(one.physicalPlanDescription())
        for stage in _items(one.stages().toSeq()):
            tasks = [_shuffled(task) for task in _items(core.statusStore().taskList(stage, 0, MAX_TASKS))]
            if any(tasks):
                seen.stages.append(tasks)


def _executions(spark: SparkSession) -> list[Any]:
    session: Any = spark._jsparkSession
    return list(_items(session.sharedState().statusStore().executionsList()))


def _items(found: Any) -> Iterator[Any]:
    for index in range(found.size()):
        yield found.apply(index)


def _shuffled(task: Any) -> int:
    metrics = task.taskMetrics()
    return metrics.get().shuffleReadMetrics().recordsRead() if metrics.isDefined() else 0
