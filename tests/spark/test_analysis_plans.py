"""Reports on a large input, seen on a small one: queries are fit for any size, and DuckDB finds the same figures."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from analysis.levels import CandidateQuotas
from analysis.owners import PriceModel
from analysis.runner import Asked, make
from benchmarks.suites.analysis_queries import queries
from quota.entity import DEFAULT
from quota.table import Entry, QuotaTable
from tests.lab.fleet import START_MS, GeneratedFleet, write
from tests.support.spark_tools import DAY_MS, not_before_4, table, watched

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

FLEET = GeneratedFleet(sidecars=24, days=1, interval_s=600, apps=3, hot=8, repeated=0.01, parts=2)
"""(1/3)^(1/8) = 87 % of the sidecars are of one application."""
PRICES = {"currency": "EUR", "prices": {"produce_gb": 1, "burst_gb": 1, "idle_produce_mb_s_hour": 1}}
OPTIONS: dict[str, dict[str, Any]] = {
    "usage": {},
    "throttling": {},
    "chargeback": {"prices": PriceModel.model_validate(PRICES)},
    "noisy": {},
    "capacity": {},
    "recommend": {},
    "whatif": {"candidates": {"c": CandidateQuotas(QuotaTable([Entry(DEFAULT, producer_byte_rate=1e6)]))}},
    "compliance": {},
    "slo": {"target": 0.99},
    "forecast": {"horizon_days": 30},
}


@pytest.fixture(scope="module")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleet")
    write(spark, FLEET, str(place), quiet=True)
    return place


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def made(spark: SparkSession, fleet: Path, out: Path) -> Callable[[str], list[str]]:
    """made(name): the report is there, below `out`, and its plans; each is made once, by the first test that asks."""

    @cache
    def report(name: str) -> list[str]:
        with watched(spark) as seen:
            make(
                spark, name, Asked(f"{fleet}/0*", str(out), 60, OPTIONS[name], quiet=True, now_ms=START_MS + 9 * DAY_MS)
            )
        return seen

    return report


@not_before_4
@pytest.mark.parametrize("name", OPTIONS)
def test_plans_are_fit_for_any_size(made: Callable[[str], list[str]], name: str) -> None:
    assert made(name)
    for plan in made(name):
        # No row goes through Python, but for the intervals that are replayed and the days of a series; and no pair of
        # rows is looked at without a key.
        text = plan.replace("MapInArrow", "") if name in ("whatif", "forecast") else plan
        assert not re.search(r"Python|Pandas|Arrow|CartesianProduct|BroadcastNestedLoopJoin", text), plan
        # A window without a key would bring everything into one task.
        for window in re.findall(r"windowspecdefinition\([^,]*,", plan):
            assert re.fullmatch(r"windowspecdefinition\(\w+#\d+L?,", window), plan
        # What comes to the driver is one row, or has a limit.
        if "InsertIntoHadoopFsRelationCommand" not in plan:
            limit = r"(?m)^\(1?\d+\) (?:CollectLimit|TakeOrderedAndProject)\n(?:.*\n)*?Arguments: (\d+)"
            limits = list(map(int, re.findall(limit, plan)))
            assert (limits and max(limits) <= 1000) or re.search(r"(?m)^Keys: \[\]$", plan), plan


def test_duckdb_finds_the_same(made: Callable[[str], list[str]], fleet: Path, out: Path) -> None:
    """Each record once, the same sums, counts and bursts, from SQL that knows nothing of the jobs."""
    connection = duckdb.connect()
    once = f"SELECT DISTINCT ON (instance, sequence) * FROM read_parquet('{fleet}/0*/*.parquet')"
    connection.execute(f"CREATE VIEW records AS {once}")
    found = {name: connection.execute(query).fetchall() for name, query in queries(FLEET.interval_s).items()}

    def clients(report: str) -> dict[tuple[str, ...], dict[str, str]]:
        made(report)
        rows = {(row["cluster_id"], row["user"], row["client_id"]): row for row in table(out / report, "clients")}
        assert len(rows) == len(found[report]) > 0
        return rows

    used = clients("usage")
    assert len(used) > 20
    for cluster, user, client, produced, fetched, seconds, requests, *_ in found["usage"]:
        row = used[cluster, user, client]
        sums = [int(row[name]) for name in ("produce_bytes", "fetch_bytes", "requests")]
        assert sums == [produced, fetched, requests]
        assert float(row["request_seconds"]) == pytest.approx(seconds)
    held = clients("throttling")
    for cluster, user, client, *delays, hours in found["throttling"]:
        row = held[cluster, user, client]
        assert int(row["requests_delayed"]) == sum(delays[0::2])
        assert float(row["delayed_seconds"]) == pytest.approx(sum(delays[1::2]))
        assert int(row["hours_with_throttles"]) == hours
    made("chargeback")
    bill = {row["payer"]: row for row in table(out / "chargeback", "bill")}
    assert len(bill) == len(found["chargeback"]) > 1
    for payer, moved, burst in found["chargeback"]:
        assert int(bill[payer]["produce_bytes"]) + int(bill[payer]["fetch_bytes"]) == moved
        assert float(bill[payer]["burst_bytes"]) == pytest.approx(burst)
