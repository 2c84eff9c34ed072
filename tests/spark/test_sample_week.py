"""`make report REPORT=all` without a demo: the week in examples/usage, and what its index says first."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.lab.sample_week import FILE, table
from tests.support.browser import Browse, accessible
from tests.support.spark_tools import not_before_4

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 280
ROWS = "return [...document.querySelectorAll(arguments[0] + ' tbody tr:not([hidden])')].map((row) => row.innerText)"


def given(report: str) -> list[str]:
    """The input and options of the Makefile, where there is no folder of the demo's records."""
    command = ["make", "--dry-run", "--no-print-directory", "report", f"REPORT={report}", "DEMO_USAGE=/nonexistent"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = re.search(r'input="([^"]*)"', said)
    assert found is not None, said
    return shlex.split(found[1])


def test_shipped_week_is_the_generated_one() -> None:
    assert pq.read_table(FILE).equals(table()), "run python -m tests.lab.sample_week"


@not_before_4
def test_index_of_the_week_leads_to_clients_and_delays(tmp_path: Path, browse: Browse) -> None:
    words = ["report", "all", "--input", *given("all"), "--output", str(tmp_path), "--quiet"]
    command = [sys.executable, "-m", "proxy.app.cli.main", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*/report.html"))) == 11, "all but whatif, which needs a candidate"
    with browse(1300) as driver:
        driver.get((tmp_path / "index.html").as_uri())
        accessible(driver)
        first, *others = driver.find_elements("css selector", "section:first-of-type li")
        assert re.fullmatch(
            r"2 teams owe [\d.,]+ EUR in all, most of all data: [\d.,]+ EUR, \d.+ % of everything\.", first.text
        )
        assert len(others) == 4
        # From a client to its hours, and to what delayed it.
        driver.get((tmp_path / "usage/report.html").as_uri())
        driver.find_element("link text", "etl").click()
        assert driver.current_url == (tmp_path / "throttling/report.html").as_uri() + "#etl"
        rows = driver.execute_script(ROWS, "table[data-name='Each client, per hour']")
        assert len(rows) == 9, "three hours of each night until Thursday"
        assert all("etl" in row and "produce" in row for row in rows)
        accessible(driver)
        assert "ANONYMOUS" not in driver.find_element("tag name", "main").text
