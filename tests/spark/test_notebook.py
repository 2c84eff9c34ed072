"""The notebook over usage records, run cell by cell over records whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quota.record import SCHEMA_VERSION
from tests.support.spark_tools import record, write

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/notebooks/usage-records.ipynb"
MB = 1_000_000


def test_notebook_figures_are_right(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"produce_limit": 1e6, "produce_group_client_id": "c"}
    held = {"throttle_produce_count": 4, "throttle_produce_seconds": 25.0}  # of several connections
    fleet = {"user": "shop", "produce_limit": 1e6, "produce_fleet_limit": 2e6, "produce_group_user": "shop"}
    rows = [
        record(1, 0, produce_bytes=9 * MB, produce_group_utilisation_peak=0.9, **own),
        record(2, 10, produce_bytes=9 * MB, produce_group_utilisation_peak=0.7, **own, **held),
        record(2, 10, produce_bytes=9 * MB, produce_group_utilisation_peak=0.7, **own, **held),  # came twice
        record(5, 3600, fetch_bytes=5 * MB),  # two are missing
        record(1, 0, instance="i2", duration_s=60.0, produce_bytes=45 * MB, **fleet),
        record(1, 0, instance="i3", duration_s=60.0, produce_bytes=45 * MB, **fleet),
        b'{"half of a rec\n',
        record(9, 0, instance="i9", produce_bytes=MB) | {"schema_version": SCHEMA_VERSION + 1},
    ]
    monkeypatch.setenv("USAGE", str(write(tmp_path / "in", rows)))
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # what a test would not notice to be old
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert names["spark"] is spark
    found = {name: [tuple(row) for row in names[name].collect()] for name in ("top", "held", "near", "missing")}
    assert found["top"] == [("shop", "c", 90 * MB, 0, 2), ("u", "c", 18 * MB, 5 * MB, 1)]
    assert found["held"] == [("u", "c", 10.0, 30.0, 4, pytest.approx(1 / 3))]
    assert found["near"] == [("u", "c", 0.9), ("shop", "c", 0.75)]  # 90 MB in a minute of 2 MB/s
    assert found["missing"] == [("i1", 2)]
    assert [row["produce_bytes_per_s"] for row in names["hours"].collect()] == [108 * MB / 3600, 0]
    names["records"].unpersist()
