"""Limits of a whole fleet (`scope: fleet`): what all sidecars use together is held against them, and they are promised
once. All figures are worked out by hand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from analysis.levels import CandidateQuotas, load_candidate
from config.load import load_bytes
from config.table import entries, to_table
from proxy.app.cli.check import summary_json
from quota.table import Entry, QuotaTable
from tests.support.spark_tools import Make, floats, record, table

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pathlib import Path

    from quota.record import Row

MB = 1_000_000


def share(limit: float, part: float, *, kind: str = "produce") -> dict[str, Any]:
    """A sidecar's part of the fleet's limit, as in its records."""
    return {
        f"{kind}_limit": limit * part,
        f"{kind}_limit_mode": "enforce",
        f"{kind}_group_user": "shop",
        f"{kind}_fleet_limit": limit,
        f"{kind}_fleet_share": part,
    }


def test_usage_adds_up_all_sidecars_against_a_fleet_s_limit(report: Make) -> None:
    # One minute: 180 MB and 120 MB on two sidecars are 3 + 2 MB/s of 4 MB/s, by two clients of the user; none of the
    # sidecars saw more than nine tenths of its share used. The next minute: 60 MB, 1 MB/s.
    shop = {"user": "shop", "duration_s": 60.0}
    rows = [
        record(1, 0, produce_bytes=180 * MB, produce_group_utilisation_peak=0.9, **share(4e6, 0.75), **shop),
        record(1, 0, instance="i2", client_id="d", produce_bytes=120 * MB, **share(4e6, 0.25), **shop),
        record(2, 60, produce_bytes=60 * MB, **share(4e6, 0.75), **shop),
    ]
    # Of its own limit a sidecar has used so much in its own window, whatever another one has.
    own = {"user": "own", "produce_limit": 20e6, "produce_limit_mode": "enforce", "produce_group_user": "own"}
    for instance, peak in (("i1", 0.5), ("i2", 0.75)):
        of = {"instance": instance, "produce_bytes": 600 * MB, "produce_group_utilisation_peak": peak}
        rows.append(record(3, 0, **of, **own))
    printed, out = report("usage", rows)
    first, second = table(out, "limits")
    names = ("kind", "group_user", "group_client", "scope")
    assert [first[name] for name in names] == ["produce", "shop", "", "fleet"]
    assert floats(first, "limit", "highest_rate", "used_share") == [4e6, 5e6, 1.25]
    assert [second[name] for name in names] == ["produce", "own", "", "instance"]
    assert floats(second, "limit", "highest_rate", "used_share") == [20e6, 15e6, 0.75]  # 15 MB/s are 0.75 * 20 MB/s
    assert "1 of 2 limits was used up at some time, 1 of them with scope: fleet." in printed


def test_capacity_promises_a_fleet_s_limit_once(report: Make) -> None:
    own = {"user": "own", "produce_limit": 1e6, "produce_limit_mode": "enforce", "produce_group_user": "own"}
    rows = [record(1, 0, instance=f"i{n}", user="shop", **share(10e6, 0.25)) for n in range(4)]
    rows += [record(2, 0, instance=f"i{n}", **own) for n in range(3)]
    printed, out = report("capacity", rows, capacity={"produce": 26e6})
    _, produce = table(out, "clusters")
    # 10 MB/s of the fleet, and 1 MB/s on each of three sidecars: half of the capacity.
    assert floats(produce, "limits_bytes_per_s", "oversubscription") == [13e6, 0.5]
    assert (produce["limits"], produce["fleet_limits"], produce["sidecars"]) == ("4", "1", "4")
    assert "4 limits on 4 sidecars, 1 of them with scope: fleet, add up to 13 MB/s, 50 % of the capacity" in printed


def test_recommend_sums_clients_of_a_shared_limit(report: Make) -> None:
    """0.8 MB/s on each of three sidecars under a limit of the fleet; the same under limits of their own."""
    rows: list[Row] = []
    for n in range(3):
        at = {"instance": f"i{n}", "client_id": "app", "produce_bytes": 8 * MB}
        rows.append(record(1, 36_000, user="shop", request_seconds=1.0, **share(2e6, 1 / 3), **at))
        rows.append(record(2, 36_000, user="own", produce_limit=2e6, **at))
        # A limit of the fleet next to one of each sidecar: an entry has one scope.
        both = share(8e6, 1 / 3, kind="fetch") | {"produce_limit": 2e6}
        rows.append(record(3, 36_000, user="both", fetch_bytes=8 * MB, **both, **at))
        # It became the fleet's: what it is now counts.
        rows.append(record(4, 36_000 - 7200, user="moved", produce_limit=2e6, **at | {"produce_bytes": 90 * MB}))
        rows.append(record(5, 36_000, user="moved", **share(2e6, 1 / 3), **at))
    _, out = report("recommend", rows, headroom=0.25)
    advice = {
        (row["user"], row["kind"]): (row["scope"], *floats(row, "need", "recommended"), row["change"])
        for row in table(out, "recommendations")
    }
    assert advice == {
        ("shop", "produce"): ("fleet", pytest.approx(2.4e6), 3e6, "raise"),  # 3 * 0.8 MB/s * 1.25
        ("shop", "request"): ("fleet", pytest.approx(30), 38, "new"),  # 3 * 10 % * 1.25 = 37.5 %
        ("own", "produce"): ("instance", 0.8e6, 1e6, "lower"),
        ("both", "produce"): ("instance", 0.8e6, 1e6, "lower"),
        ("both", "fetch"): ("fleet", pytest.approx(2.4e6), 3e6, "lower"),
        ("moved", "produce"): ("fleet", pytest.approx(2.4e6), 3e6, "raise"),
    }
    patch = (out / "values.yaml").read_bytes()
    assert yaml.safe_load(patch)["quotas"] == [
        {"user": "both", "client-id": "app", "scope": "fleet", "consumer_byte_rate": 3_000_000},
        {"user": "moved", "client-id": "app", "scope": "fleet", "producer_byte_rate": 3_000_000},
        {"user": "own", "client-id": "app", "producer_byte_rate": 1_000_000},
        {"user": "shop", "client-id": "app", "scope": "fleet", "producer_byte_rate": 3_000_000,
         "request_percentage": 38},
    ]  # fmt: skip
    assert {one.scope for one in entries(load_bytes("values.yaml", patch, on_paper=True))} == {"fleet", None}
    assert "on all sidecars together" in (out / "quotas.diff").read_text()


def test_whatif_of_a_limit_of_the_fleet(report: Make, tmp_path: Path) -> None:
    """3 MB/s for 20 s on one sidecar, and on another one 10 s later, by another client of the user."""
    at = {"user": "shop", "duration_s": 20.0, "produce_bytes": 60 * MB}
    rows = [record(1, 0, **at), record(1, 10, instance="i2", client_id="d", **at)]
    file = b"{fleet: {id: shop}, quotas: [{user: shop, producer_byte_rate: 4M, scope: fleet}]}"
    config = load_bytes("q.yaml", file, on_paper=True)
    (tmp_path / "q.json").write_text(json.dumps(summary_json("q.yaml", config, to_table(config))))
    each = CandidateQuotas(QuotaTable([Entry("shop", producer_byte_rate=4e6)]))
    printed, out = report("whatif", rows, candidates={"fleet": load_candidate(tmp_path / "q.json"), "each": each})
    groups = {row["candidate"]: row for row in table(out, "groups")}
    # Together 3 MB in each of the first ten seconds, 6 in the next ten, 3 in the last ten. In the window are eleven
    # seconds over 10 s: in second 11 they make 39 MB, 3.9 MB/s, in second 12 4.2 MB/s, in seconds 19 and 20 6.3 MB/s;
    # then it falls by 0.3 MB/s each second, to 4.2 MB/s in second 27. So 16 s, of 30; (6.3 - 4) / 4 * 10 s = 5.75 s.
    names = ("limit", "seconds_over", "time_over_share", "longest_delay_s", "extreme_in_window", "sidecars")
    assert floats(groups["fleet"], *names) == pytest.approx([4e6, 16, 16 / 30, 5.75, 6.3e6, 2])
    assert groups["fleet"]["scope"] == "fleet"
    # Each for itself, 3 MB/s are 3.3 MB/s in the window: never over.
    assert floats(groups["each"], *names[:4], "sidecars") == [4e6, 0, 0, 0, 2]
    assert groups["each"]["scope"] == "instance"
    promised = {row["candidate"]: float(row["produce_limits_bytes_per_s"]) for row in table(out, "candidates")}
    assert promised == {"fleet": 4e6, "each": 8e6}
    assert "fleet: 1 of 1 limited group over the limit, for 16 s (53.3 %)" in printed
