"""Links of the pages lead to files and headings that exist; pictures are complete in themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("tests/README.md", "examples/README.md", "helm/kquota/README.md", "docs/llms.txt")
PAGES = sorted([*ROOT.glob("*.md"), *map(ROOT.joinpath, BESIDE), *ROOT.glob("docs/**/*.md")])


DOC_WORDS = 45_000


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
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
    """In messages, comments, alerts and the chart: `docs/NAME.md#heading`."""
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
