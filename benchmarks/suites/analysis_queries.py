"""Queries over usage records in SQL that Spark and DuckDB both read: of each report what it asks of all records.
`python -m benchmarks.suites.analysis_queries ENGINE INPUT OUTPUT [NAME,…]` runs them with one engine and writes JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOUR_S, DAY_S, GRAIN_S = 3600, 86_400, 300
BURST_ABOVE = 2
_SUMS = ("produce_bytes", "fetch_bytes", "request_seconds", "requests")


def _bucket(seconds: int) -> str:
    return f"CAST(FLOOR((start_ms + end_ms) / 2000.0 / {seconds}) AS BIGINT)"


def _sums(names: tuple[str, ...]) -> str:
    return ", ".join(f"SUM({name}) AS {name}" for name in names)


_CLIENT = 'cluster_id, "user", client_id'
_KINDS = ("produce", "fetch", "request")
_AMOUNTS = {"produce": "produce_bytes", "fetch": "fetch_bytes", "request": "request_seconds * 100"}
_USES = (
    "produce_bytes",
    "fetch_bytes",
    "request_seconds",
    "mutations",
    "requests_transaction",
    "requests_admin",
    "requests_group",
)
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
        **_of_rates(grain_s),
        **_of_hours(),
    }


def _of_rates(grain_s: int) -> dict[str, str]:
    """Where percentiles, peaks and densities are asked for."""
    needs = {kind: f"GREATEST({amount} / duration_s, {kind}_rate_p95)" for kind, amount in _AMOUNTS.items()}
    need = ", ".join(
        f"percentile_disc(0.99) WITHIN GROUP (ORDER BY {value}) AS {kind}_need, "
        f"SUM(throttle_{kind}_seconds) AS {kind}_held, MAX({kind}_limit) AS {kind}_limit"
        for kind, value in needs.items()
    )
    day = f"CAST(FLOOR(bucket * {grain_s} / {DAY_S}.0) AS BIGINT)"
    limits = " UNION ALL ".join(
        f"SELECT cluster_id, '{kind}' AS kind, {_bucket(grain_s)} AS bucket, {kind}_group_user AS group_user, "
        f"{kind}_group_client_id AS group_client, MAX({kind}_group_utilisation_peak) AS seen, "
        f"MAX({kind}_limit) AS most FROM records WHERE {kind}_limit IS NOT NULL GROUP BY 1, 2, 3, 4, 5"
        for kind in ("produce", "fetch")
    )
    return {
        "noisy": f"""
WITH mine AS (SELECT {_CLIENT}, {_bucket(grain_s)} AS bucket, SUM(produce_bytes + fetch_bytes) AS moved,
                     SUM(request_seconds) AS busy, SUM(requests) AS requests
              FROM records GROUP BY 1, 2, 3, 4),
     all_clients AS (SELECT cluster_id, bucket, SUM(busy) AS all_busy, SUM(requests) AS all_requests
                   FROM mine GROUP BY 1, 2),
     usual AS (SELECT {_CLIENT}, percentile_disc(0.95) WITHIN GROUP (ORDER BY moved) AS burst_above
               FROM mine GROUP BY 1, 2, 3)
SELECT {_CLIENT}, COUNT(*) AS buckets, SUM(CASE WHEN moved > burst_above THEN 1 ELSE 0 END) AS bursts,
       AVG(CASE WHEN moved > burst_above THEN others_ms END) AS in_bursts
FROM (SELECT {_CLIENT}, moved, burst_above,
             (all_busy - busy) * 1000 / NULLIF(all_requests - requests, 0) AS others_ms
      FROM mine JOIN all_clients USING (cluster_id, bucket) JOIN usual USING ({_CLIENT}))
WHERE others_ms IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        "capacity": f"""
SELECT cluster_id, {day} AS day, MAX(produced) / {grain_s} AS produce_peak, MAX(fetched) / {grain_s} AS fetch_peak
FROM (SELECT cluster_id, {_bucket(grain_s)} AS bucket, SUM(produce_bytes) AS produced, SUM(fetch_bytes) AS fetched
      FROM records GROUP BY 1, 2)
GROUP BY 1, 2 ORDER BY 1, 2""",
        "recommend": f"""
SELECT cluster_id, user_name, client_id, {", ".join(f"MAX({kind}_need) AS {kind}_need" for kind in needs)},
       SUM(produce_held + fetch_held + request_held) AS held
FROM (SELECT cluster_id, "user" AS user_name, client_id, CAST(FLOOR(end_ms / {HOUR_S}000.0) AS BIGINT) AS hour, {need}
      FROM records GROUP BY 1, 2, 3, 4)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        "whatif": """
SELECT cluster_id, user_name, client_id, COUNT(*) AS sidecars, SUM(used) AS used, MAX(density) AS density,
       SUM(held) AS held
FROM (SELECT cluster_id, instance, "user" AS user_name, client_id, SUM(produce_bytes) AS used,
             MAX(produce_bytes / duration_s) AS density, SUM(throttle_produce_seconds) AS held
      FROM records GROUP BY 1, 2, 3, 4)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        "forecast": f"""
SELECT cluster_id, kind, group_user, group_client, COUNT(*) AS days, MAX(peak) AS peak
FROM (SELECT cluster_id, kind, group_user, group_client, {day} AS day, MAX(seen * most) AS peak
      FROM ({limits})
      GROUP BY 1, 2, 3, 4, 5)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3 NULLS FIRST, 4 NULLS FIRST""",
    }


def _of_hours() -> dict[str, str]:
    """Where sums of hours will do."""
    hour = _bucket(HOUR_S)
    held = " + ".join(f"throttle_{cause}_seconds" for cause in (*_KINDS, "mutation", "broker"))
    delayed = held.replace("_seconds", "_count")
    return {
        "compliance": """
SELECT client_library, client_library_version, COUNT(*) AS clients, SUM(mutes) AS mutes, SUM(ignored) AS ignored
FROM (SELECT cluster_id, "user", client_id, client_library, client_library_version, SUM(mutes) AS mutes,
             SUM(mutes_ignored) AS ignored, SUM(requests) AS requests
      FROM records GROUP BY 1, 2, 3, 4, 5)
GROUP BY 1, 2 ORDER BY 1 NULLS FIRST, 2 NULLS FIRST""",
        "slo": f"""
SELECT user_name, SUM(seconds) AS seconds, SUM(held) AS held, SUM(requests) AS requests, SUM(delayed) AS delayed
FROM (SELECT cluster_id, "user" AS user_name, client_id, {hour} AS hour, SUM(duration_s) AS seconds,
             SUM(LEAST({held}, duration_s)) AS held, SUM(requests) AS requests, SUM({delayed}) AS delayed
      FROM records GROUP BY 1, 2, 3, 4)
GROUP BY 1 ORDER BY 1""",
        "changes": f"""
SELECT cluster_id, user_name, client_id, COUNT(*) AS hours, SUM(CASE WHEN most <> before THEN 1 ELSE 0 END) AS changes
FROM (SELECT *, LAG(most) OVER (PARTITION BY cluster_id, user_name, client_id ORDER BY hour) AS before
      FROM (SELECT cluster_id, "user" AS user_name, client_id, {hour} AS hour, SUM(duration_s) AS seconds,
                   MAX(COALESCE(produce_fleet_limit, produce_limit, 0)) AS most, {_sums(_SUMS)},
                   MAX(COALESCE(fetch_fleet_limit, fetch_limit, 0)) AS most_fetched, {_sums(_DELAYS)}
            FROM records GROUP BY 1, 2, 3, 4))
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        "anomalies": f"""
SELECT cluster_id, user_name, client_id, {", ".join(f"MAX({name}) AS {name}" for name in _USES)}
FROM (SELECT cluster_id, "user" AS user_name, client_id, {hour} AS hour, {_sums(_USES)}
      FROM records GROUP BY 1, 2, 3, 4)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
    }


QUERIES = queries()

Ask = Callable[[str], list[list[Any]]]


def duckdb_asker(pattern: str, *, memory: str = "4GB") -> Ask:
    """Answers by DuckDB, all cores."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET memory_limit = '{memory}'")
    connection.execute(f"CREATE VIEW records AS SELECT * FROM read_parquet({_files(pattern)}, union_by_name = true)")
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


def differences(one: list[list[Any]], other: list[list[Any]]) -> Iterator[str]:
    """Where two results differ. Sums of fractions depend on the order of summing, so they may by 1e-9."""
    if len(one) != len(other):
        yield f"{len(one)} rows, {len(other)} rows"
    for left, right in zip(one, other, strict=False):
        for a, b in zip(left, right, strict=True):
            near = isinstance(a, int | float) and isinstance(b, int | float) and abs(a - b) <= 1e-9 * abs(b)
            if a != b and not near:
                yield f"{left} is not {right}"


def main(engine: str, pattern: str, output: str, names: str = ",".join(QUERIES)) -> None:
    """Run each query once and write what came, how long it took, and the CPU time of that."""
    ask = ASKERS[engine](pattern)
    figures = {}
    for name in names.split(","):
        began, cpu = time.monotonic(), time.process_time()
        rows = ask(QUERIES[name])
        figures[name] = {
            "seconds": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu,  # Spark's is the JVM's, and not in here
            "rows": [[_plain(value) for value in row] for row in rows],
        }
    Path(output).write_text(json.dumps(figures))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else float(value)


if __name__ == "__main__":
    main(*sys.argv[1:5])
