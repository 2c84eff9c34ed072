"""`forecast` on weeks whose truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from analysis.owners import Owners
from tests.support.spark_tools import Make, record, table

if TYPE_CHECKING:
    from quota.record import Row

MB = 1_000_000
DAY_S = 86_400
DAYS = 28


def day_of(day: int, sequence: int, rate: float, **values: Any) -> Row:
    """One busy minute at noon; records of the whole day are not needed for its peak."""
    at = day * DAY_S + 43_200
    return record(sequence, at, duration_s=60.0, produce_bytes=round(rate * 60), **values)


def test_when_limits_and_the_cluster_s_capacity_are_reached(report: Make) -> None:
    rows: list[Row] = [record(1, 0, duration_s=60.0, instance="ends"), record(2, DAYS * DAY_S - 60, instance="ends")]
    own = {"produce_limit_mode": "enforce", "produce_limit": 99.9 * MB}
    fleet = {"produce_group_user": "fleet", "produce_fleet_limit": 59.9 * MB, "produce_limit": 30.0 * MB}
    for day in range(DAYS):
        # Grows by 1 MB/s a day from 50 MB/s, on Saturdays and Sundays half of that. (Day 0 is a Monday.)
        week = 0.5 if day % 7 >= 5 else 1.0
        grows = (50 + day) * MB * week
        of = {"user": "grows", "produce_group_user": "grows", "produce_group_utilisation_peak": grows / (99.9 * MB)}
        rows.append(day_of(day, day + 1, grows, **of, **own))
        # 10 MB/s on each of two sidecars, 0.25 MB/s more each day: together 20 + 0.5 n of 59.9 MB/s.
        for sidecar in ("i1", "i2"):
            rows.append(day_of(day, 100 + day, (10 + 0.25 * day) * MB, instance=sidecar, user="fleet", **fleet))
        held = {"produce_group_client_id": "held", "produce_group_utilisation_peak": 1.02}
        rows.append(day_of(day, 200 + day, 5 * MB, client_id="held", **held, **own | {"produce_limit": 5.0 * MB}))
        if day >= 20:
            new = {"produce_group_client_id": "new", "produce_group_utilisation_peak": 0.5}
            rows.append(day_of(day, 300 + day, MB, client_id="new", **new, **own))
    owners = Owners.model_validate({"owners": [{"team": "shop", "user": "grows"}, {"team": "rest", "user": "*"}]})
    printed, out = report("forecast", rows, horizon_days=90, capacity={"produce": 200.0 * MB}, owners=owners)
    limits = {row["group_user"] or row["group_client"]: row for row in table(out, "limits")}
    assert {name: (row["scope"], row["state"]) for name, row in limits.items()} == {
        "held": ("instance", "reached"),
        "grows": ("instance", "expected"),
        "fleet": ("fleet", "expected"),
        "new": ("instance", "not known"),
    }
    assert {row["team"] for row in limits.values()} == {"shop", "rest"}
    # 99.9 MB/s are reached on day 50 with 50 + n = 100 MB/s, on a Tuesday (50 mod 7 = 1): 2025-10-20 and 50 days.
    assert (limits["grows"]["expected_on"], limits["grows"]["limit"]) == ("2025-12-09", "9.99E7")
    # 20 + 0.5 n = 60 MB/s on day 80.
    assert limits["fleet"]["expected_on"] == "2026-01-08"
    for one in ("grows", "fleet"):  # without noise there is hardly a doubt
        assert float(limits[one]["error_share"]) < 0.01
        assert limits[one]["earliest"] <= limits[one]["expected_on"] <= limits[one]["latest"]
    # An average day of the week grows by 6/7 of what a weekday grows by: (5 * 1 + 2 * 0.5) / 7.
    assert float(limits["grows"]["growth_per_day"]) == pytest.approx(6 / 7 * MB, rel=0.01)
    # The Friday before the last day: 50 + 25.
    assert float(limits["grows"]["used_share"]) == pytest.approx(0.75, rel=0.01)
    assert (limits["new"]["days"], limits["new"]["expected_on"]) == ("8", "")
    (produce,) = [row for row in table(out, "clusters") if row["kind"] == "produce"]
    # In the busy minute 50 + n of one, 20 + 0.5 n of the fleet, 5, and from day 20 on 1: some 200 MB/s on day 83.
    assert (produce["state"], float(produce["limit"])) == ("expected", 200e6)
    assert "2026-01-04" <= produce["expected_on"] <= "2026-01-16"
    assert len([row for row in table(out, "ahead") if row["group_user"] == "grows"]) == 90
    assert "1 of 4 limits were reached in the last week. Within 90 days 2 will probably be reached" in printed
    assert "grows, produce (99.9 MB/s): expected to be reached on 2025-12-09 (80 %: from 2025-12-09 to" in printed
    assert "Back-test: the last one or two weeks of" in printed
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 3  # two limits, and the cluster's produce; it has no limit of fetched bytes
