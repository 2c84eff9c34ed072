"""One version everywhere, workflows call targets that exist, published figures name their runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.release_check import version_of

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_version_is_the_same_everywhere() -> None:
    version = version_of(ROOT)
    for manifest in (ROOT / "deploy/kubernetes").glob("*.yaml"):
        tags = set(re.findall(r"image: \"?kquota:([^\"\s]+)", manifest.read_text()))
        assert tags <= {version}, manifest
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(ROOT / "examples").glob("*.yaml")]
    for page in pages:  # the image has no public home yet: one name stands for it everywhere
        for image, tag in re.findall(r"(registry\.[\w./-]*/kquota[\w-]*)(?::([v\d][\w.]*))?", page.read_text()):
            assert re.fullmatch(r"registry\.example/(charts/)?kquota(-analysis|-redirect)?", image), f"{page}: {image}"
            assert tag in ("", version), f"{page}: {image}:{tag}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    called: set[str] = set()
    for job in jobs.values():
        for step in job["steps"]:
            for target in re.findall(r"\bmake (\$\{\{ matrix\.target \}\}|[a-z-]+)", step.get("run", "")):
                called |= set(job["strategy"]["matrix"]["target"]) if target.startswith("$") else {target}
        assert job["timeout-minutes"] <= 120, "a job that hangs must not hang for six hours"
    assert called <= TARGETS
    assert called or workflow.stem == "docs"


def test_published_figures_name_their_runs() -> None:
    """And the commit, where the run stored it."""
    run = re.compile(r"`(?:benchmarks/results/)?(\d{4}-\d\d-\d\d-[\w-]+\.json)`(?:, commit\s`(\w+)`)?")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {name: commit for page in pages for name, commit in run.findall(page.read_text())}
    assert named.keys() == {file.name for file in (ROOT / "benchmarks/results").glob("*.json")}
    for name, commit in named.items():
        result = json.loads((ROOT / "benchmarks/results" / name).read_text())
        assert (commit or None) == (result.get("project", {}).get("commit") if isinstance(result, dict) else None), name


def test_no_test_has_a_name_longer_than_60_characters() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"^ *(?:async )?def (test_\w+)", text, re.MULTILINE) if len(name) > 60] == []
