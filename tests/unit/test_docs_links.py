"""Links of the pages lead to files and headings that exist; pictures are complete in themselves."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("tests/README.md", "examples/README.md", "helm/kquota/README.md", "docs/llms.txt")
PAGES = sorted([*ROOT.glob("*.md"), *map(ROOT.joinpath, BESIDE), *ROOT.glob("docs/**/*.md")])


QUESTIONS = [
    ("Does it work with EKS and MSK?", "docs/providers.md#amazon-msk"),
    ("How do I set a quota per team, by principal?", "docs/which-quota.md#by-user-or-by-client-id"),
    ("Why is my consumer or producer slow?", "docs/runbook.md#kquotaclientthrottledforlong"),
    ("How do 20 pods share one limit?", "docs/fleet.md#the-split"),
    ("What if the sidecar dies?", "docs/testing.md#faults"),
    ("How do I upgrade, roll back or uninstall?", "docs/operations.md#upgrade"),
    ("How do I upgrade, roll back or uninstall?", "docs/operations.md#uninstall"),
    ("Which alerts do I need?", "docs/runbook.md#kquotanotready"),
    ("What does it cost in CPU and latency?", "docs/performance.md#what-it-costs"),
    ("Is it secure? Which credentials does it need?", "SECURITY.md#trust"),
]
"""Headings of the FAQ, so that the site's search finds each, and the section that has the details."""
ANSWER_WORDS = 150
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


def test_image_has_one_name_and_version() -> None:
    """It has no public home yet: one name stands for it everywhere, to be replaced at once."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for page in [*PAGES, *(ROOT / "examples").glob("*.yaml")]:
        for image, tag in re.findall(
            r"([\w.-]+(?:/[\w.-]+)*/kquota[\w-]*)(?::([v\d][\w.]*))?(?=[\s`,}]|$)", page.read_text()
        ):
            if image.startswith("registry.") or tag:
                assert re.fullmatch(r"registry\.example/(charts/)?kquota(-analysis|-redirect)?", image), (
                    f"{page}: {image}"
                )
                assert tag in ("", version), f"{page}: {image}:{tag}"


@pytest.mark.parametrize(("question", "details"), QUESTIONS)
def test_questions_are_answered_within_two_clicks(question: str, details: str) -> None:
    """README, the FAQ, the section: the answer itself is short, and its links resolve (above)."""
    faq = ROOT / "docs/faq.md"
    assert "(docs/faq.md)" in (ROOT / "README.md").read_text()
    (answer,) = re.findall(rf"^## {re.escape(question)}\n(.*?)(?=^## |\Z)", faq.read_text(), re.MULTILINE | re.DOTALL)
    links = {(faq.parent / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", answer)}
    assert ROOT / details in links
    assert len(answer.split()) <= ANSWER_WORDS


def test_docs_stay_short() -> None:
    outside = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "SUPPORT.md", "tests/README.md", "helm/kquota/README.md")
    pages = [*map(ROOT.joinpath, outside), *ROOT.glob("docs/**/*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= DOC_WORDS
