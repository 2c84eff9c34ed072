"""Published figures name the run that they are of, and the first of them are of the code that is shipped."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
RUN = re.compile(r"`(?:benchmarks/results/)?(\d{4}-\d\d-\d\d-[\w-]+\.json)`(?:, commit\s`(\w+)`)?")
"""As pages name it; the commit is left out where the run did not store it."""
LINES = 300


def test_each_stored_run_is_of_a_page() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {run for page in pages for run, _ in RUN.findall(page.read_text())}
    assert named == {file.name for file in RESULTS.glob("*.json")}


def test_pages_name_the_commit_of_their_runs() -> None:
    named = {run: commit for page in ROOT.glob("docs/**/*.md") for run, commit in RUN.findall(page.read_text())}
    for name, commit in named.items():
        text = (RESULTS / name).read_text()
        result = json.loads(text)
        stored = result.get("project", {}).get("commit") if isinstance(result, dict) else None
        assert (commit or None) == stored, name
        assert text.count("\n") <= LINES, name


def test_published_costs_are_of_shipped_code() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    match = RUN.search(page, page.index("## What it costs"), page.index("## What it carries"))
    assert match is not None
    run = json.loads((RESULTS / match[1]).read_text())
    guard = json.loads((ROOT / "benchmarks/suites/guard.json").read_text())
    assert not run["project"]["uncommitted_changes"]
    assert datetime.fromisoformat(run["started"]) >= datetime.fromisoformat(guard["changed"]), (
        f"{match[1]} is of before {guard['commit']}, which changed what a request costs: run `make bench` again"
    )
