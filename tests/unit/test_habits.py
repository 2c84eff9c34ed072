"""What a public project promises about itself: one version everywhere, workflows that call targets that exist."""

from __future__ import annotations

import ast
import datetime
import re
from pathlib import Path

import pytest
import yaml

from tests.release_check import NotFitError, version_of

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_version_is_the_same_everywhere() -> None:
    version = version_of(ROOT)
    for manifest in (ROOT / "deploy/kubernetes").glob("*.yaml"):
        tags = set(re.findall(r"image: \"?kquota:([^\"\s]+)", manifest.read_text()))
        assert tags <= {version}, manifest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The places that say which version this is."""
    (tmp_path / "helm/kquota").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "helm/kquota/Chart.yaml").write_text('version: 1.2.3\nappVersion: "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-01-31\n")
    return tmp_path


def test_a_tree_that_agrees(tree: Path) -> None:
    assert version_of(tree) == "1.2.3"


TOMORROW = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)).date()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("helm/kquota/Chart.yaml", "version: 1.2.2\nappVersion: 1.2.3\n", "version is 1.2.2, pyproject.toml has 1.2.3"),
        ("helm/kquota/Chart.yaml", "version: 1.2.3\nappVersion: 1.2.4\n", "appVersion is 1.2.4"),
        ("CHANGELOG.md", "## [1.2.30] - 2026-01-31\n", 'no section "## [1.2.3] - YYYY-MM-DD"'),
        ("CHANGELOG.md", "## [1.2.3] - 2026-02-31\n", "the date of 1.2.3"),
        ("CHANGELOG.md", f"## [1.2.3] - {TOMORROW}\n", "still to come"),
    ],
    ids=["chart", "app", "no-section", "no-day", "future"],
)
def test_a_tree_that_does_not(tree: Path, name: str, text: str, told: str) -> None:
    (tree / name).write_text(text)
    with pytest.raises(NotFitError, match=re.escape(told)):
        version_of(tree)


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


def test_the_workflows_run_what_the_makefile_checks() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert {"make check", "make test-unit", "bash .ci/run"} <= set(re.findall(r"make [a-z-]+|bash \.ci/run", text))


def test_hooks_run_the_tools_of_make_check() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local", "the versions that .venv has, no second list of versions"
    for hook in repository["hooks"]:
        program, *arguments = hook["entry"].split()
        assert program == ".venv/bin/ruff" or (program == "make" and set(arguments) <= TARGETS)


def test_contributing_names_files_and_targets_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:quota|proxy|config|deploy|analysis|tests|benchmarks|docs|helm)/[\w./-]+)`", text))
    assert len(paths) > 25
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert targets - TARGETS == set()


def test_the_changelog_is_kept_in_the_form_that_it_names() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == "[Unreleased]"
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert max(map(len, text.splitlines())) <= 100


PACKAGES = ("quota", "proxy", "config", "deploy", "analysis", "benchmarks")
MODULES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_each_module_says_what_it_is_for() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
