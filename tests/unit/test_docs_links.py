"""Links of the pages lead somewhere, there is one version, published costs are those of the code."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.release_check import version_of

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("tests/README.md", "examples/README.md", "helm/kquota/README.md", "docs/llms.txt")
PAGES = sorted([*ROOT.glob("*.md"), *map(ROOT.joinpath, BESIDE), *ROOT.glob("docs/**/*.md")])

DOC_WORDS = 45_000
README_LINES = 120
RUN = re.compile(r"`(?:benchmarks/results/)?(\d{4}-\d\d-\d\d-[\w-]+\.json)`")
"""A published run as pages name it."""


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("place", ["deploy", "helm", "proxy", "quota", "config", "analysis", "benchmarks", "Makefile"])
def test_pages_that_the_code_names_exist(place: str) -> None:
    start = ROOT / place
    for path in [start] if start.is_file() else start.rglob("*"):
        if path.suffix not in (".py", ".pyx", ".yaml", ".json", ".tpl", ".txt", ".md", ".gotmpl", ""):
            continue
        if not path.is_file() or "results" in path.parts:
            continue
        for page, anchor in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", path.read_text(errors="replace")):
            assert (ROOT / "docs" / page).exists(), f"{path}: {page}"
            assert not anchor or anchor in anchors(ROOT / "docs" / page), f"{path}: {page}#{anchor}"


def test_docs_stay_short() -> None:
    outside = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "SUPPORT.md", "tests/README.md", "helm/kquota/README.md")
    pages = [*map(ROOT.joinpath, outside), *ROOT.glob("docs/**/*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= DOC_WORDS
    assert len(pages[0].read_text().splitlines()) <= README_LINES


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


def test_published_costs_are_of_shipped_code() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    match = RUN.search(page, page.index("## What it costs"), page.index("## What it carries"))
    assert match is not None
    run = json.loads((ROOT / "benchmarks/results" / match[1]).read_text())
    guard = json.loads((ROOT / "benchmarks/suites/guard.json").read_text())
    assert not run["project"]["uncommitted_changes"]
    assert datetime.fromisoformat(run["started"]) >= datetime.fromisoformat(guard["changed"]), (
        f"{match[1]} is of before {guard['commit']}, which changed what a request costs: run `make bench` again"
    )
