"""The page of the load test keeps what is around its table, and tells the commit."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine
from benchmarks.suites.load import BEGIN, END, Plan, Result, Round, report, update
from quota import compiled

ROUND = Round(1.0, 10.0, 1.5, 15.0, 0, 2000, 0, 2020, 0.99, 0.98, 5, 9, 600_000.0, 3e6, 0.5, 0.6, 90.0)


def test_the_page_is_brought_up_to_date_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "load.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    for _ in range(2):
        update(page, report(Result(Plan(), [ROUND], machine=describe_machine(), project=describe_project())))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert text.count("Verdict: all is well.") == 1
    assert f"; kquota's data path: {compiled.description()}." in text
    assert "old" not in text
    assert Path("docs/load.md").read_text().count(BEGIN) == 1
