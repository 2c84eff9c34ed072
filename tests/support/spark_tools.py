"""Records for the tests of the Spark jobs, and a look at what the jobs wrote."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analysis.session import SMALL, before_spark_4
from quota.record import Row, to_line
from tests.support.spark_archive import quick_jvm
from tests.support.usage_rows import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

not_before_4 = pytest.mark.skipif(before_spark_4(), reason="Spark 3.5 cannot (docs/analysis.md)")
Make = Callable[..., tuple[str, Path]]
"""make(name, records, **options) -> what a report prints, and where its files are."""
DAY_MS = 86_400_000
T0_MS = 1_760_918_400_000
"""2025-10-20 00:00:00 UTC, a Monday."""
QUICK = [
    part
    for name, value in (SMALL | {"spark.driver.extraJavaOptions": quick_jvm()}).items()
    for part in ("--conf", f"{name}={value}")
]
"""Options of a report over a few rows, for which compiling takes longer than interpreting."""


def record(sequence: int, start_s: float, *, duration_s: float = 10.0, instance: str = "i1", **values: Any) -> Row:
    """A record of user u, client c, `start_s` seconds after T0. `requests` is put into a family by itself."""
    start_ms = T0_MS + round(start_s * 1000)
    requests = values.get("requests", 0)
    return build(
        {
            "instance": instance,
            "sequence": sequence,
            "start_ms": start_ms,
            "end_ms": start_ms + round(duration_s * 1000),
            "duration_s": duration_s,
            "samples": round(duration_s),
            "cluster_id": "east",
            "pod": f"pod-{instance}",
            "kquota_version": "0",
            "user": "u",
            "client_id": "c",
            "requests_produce": requests,
        }
        | values
    )


def write(directory: Path, rows: Iterable[Row | bytes], name: str = "date=2025-10-20/hour=00/a.jsonl") -> Path:
    """Write records, or raw lines, to a file below `directory`; returns the directory."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(row if isinstance(row, bytes) else to_line(row) for row in rows))
    return directory


def table(directory: Path, name: str) -> list[dict[str, str]]:
    with (directory / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def floats(row: dict[str, str], *names: str) -> list[float]:
    return [float(row[name]) for name in names]


def json_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.rglob("*.json")) for line in path.read_text().splitlines()]


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
