"""Three queries over usage records in SQL that Spark and DuckDB both read: what `usage`, `throttling` and `chargeback`
ask first. `python -m benchmarks.suites.analysis_queries ENGINE INPUT OUTPUT` runs them with one engine and writes JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOUR_S, GRAIN_S = 3600, 300
BURST_ABOVE = 2
_SUMS = ("produce_bytes", "fetch_bytes", "request_seconds", "requests")


def _bucket(seconds: int) -> str:
    return f"CAST(FLOOR((start_ms + end_ms) / 2000.0 / {seconds}) AS BIGINT)"


def _sums(names: tuple[str, ...]) -> str:
    return ", ".join(f"SUM({name}) AS {name}" for name in names)


_DELAYS = tuple(
    f"throttle_{cause}_{unit}" for cause in ("produce", "fetch", "request") for unit in ("count", "seconds")
)


def queries(grain_s: int = GRAIN_S) -> dict[str, str]:
    """As the jobs compute it, without what surrounds them: no check of values, no repeats taken out, no page.

    `grain_s`: of the intervals' length.
    """
    return {
        "usage": f"""
SELECT cluster_id, user_name, client_id, {_sums(_SUMS)}, COUNT(*) AS buckets, MAX(produce_bytes) AS most
FROM (SELECT cluster_id, "user" AS user_name, client_id, {_bucket(grain_s)} AS bucket, {_sums(_SUMS)}
      FROM records GROUP BY 1, 2, 3, 4)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        "throttling": f"""
SELECT cluster_id, user_name, client_id, {_sums(_DELAYS)}, COUNT(*) AS hours
FROM (SELECT cluster_id, "user" AS user_name, client_id, {_bucket(HOUR_S)} AS hour, {_sums(_DELAYS)}
      FROM records GROUP BY 1, 2, 3, 4)
WHERE throttle_produce_count + throttle_fetch_count + throttle_request_count > 0
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        "chargeback": f"""
SELECT payer, SUM(moved) AS moved,
       SUM(CASE WHEN moved > {BURST_ABOVE} * usual THEN moved - {BURST_ABOVE} * usual ELSE 0 END) AS burst_bytes
FROM (SELECT payer, moved, SUM(moved) OVER (PARTITION BY payer, hour) / {HOUR_S / grain_s} AS usual
      FROM (SELECT "user" AS payer, {_bucket(HOUR_S)} AS hour, {_bucket(grain_s)} AS bucket,
                   CAST(SUM(produce_bytes + fetch_bytes) AS DOUBLE) AS moved
            FROM records GROUP BY 1, 2, 3))
GROUP BY 1 ORDER BY 1""",
    }


QUERIES = queries()

Ask = Callable[[str], list[list[Any]]]


def duckdb_asker(pattern: str, *, memory: str = "4GB") -> Ask:
    """Answers by DuckDB, all cores."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET memory_limit = '{memory}'")
    connection.execute(f"CREATE VIEW records AS SELECT * FROM read_parquet({_files(pattern)})")
    return lambda query: [list(row) for row in connection.execute(query).fetchall()]


def spark_asker(pattern: str, *, memory: str = "4g") -> Ask:
    """Answers by Spark as the reports start it, on all cores of this machine."""
    from analysis.session import open_session

    spark = open_session(memory=memory, conf={"spark.sql.ansi.doubleQuotedIdentifiers": "true"})
    spark.read.parquet(*_files(pattern)).createOrReplaceTempView("records")
    return lambda query: [list(row) for row in spark.sql(query).collect()]


def _files(pattern: str) -> list[str]:
    found = sorted(str(path) for place in pattern.split(",") for path in Path(place).glob("**/*.parquet"))
    if not found:
        raise SystemExit(f"no Parquet files below {pattern}")
    return found


ASKERS = {"spark": spark_asker, "duckdb": duckdb_asker}


def differences(one: list[list[Any]], other: list[list[Any]], tolerance: float = 1e-9) -> Iterator[str]:
    """Where two results differ. Sums of fractions depend on the order of summing, so they may by `tolerance`."""
    if len(one) != len(other):
        yield f"{len(one)} rows, {len(other)} rows"
    for left, right in zip(one, other, strict=False):
        for a, b in zip(left, right, strict=True):
            near = isinstance(a, int | float) and isinstance(b, int | float) and abs(a - b) <= tolerance * abs(b)
            if a != b and not near:
                yield f"{left} is not {right}"


def main(engine: str, pattern: str, output: str) -> None:
    """Run each query once and write what came and how long it took."""
    ask = ASKERS[engine](pattern)
    told = {}
    for name, query in QUERIES.items():
        began = time.monotonic()
        rows = ask(query)
        told[name] = {"seconds": time.monotonic() - began, "rows": [[_plain(value) for value in row] for row in rows]}
    Path(output).write_text(json.dumps(told))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else float(value)


if __name__ == "__main__":
    main(*sys.argv[1:4])
