"""docs/architecture.md is true: its table of rooms names every package, and nothing else; its links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("quota", "proxy", "config", "deploy", "analysis", "benchmarks")


def test_the_table_of_rooms_is_complete() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"^\| `([a-z_.]+)` \|", text, re.MULTILINE)
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts) for top in PACKAGES for path in (ROOT / top).rglob("__init__.py")
    }
    assert sorted(named) == sorted(packages)


def test_each_module_says_what_it_is_for() -> None:
    """The table of rooms relies on it."""
    for top in PACKAGES:
        for path in (ROOT / top).rglob("*.py"):
            assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_modules_are_short_enough_to_read() -> None:
    """One reason to change each; generated tables do not count."""
    long = {
        str(path.relative_to(ROOT)): count
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "schema.py" and (count := len(path.read_text().splitlines())) > 500
    }
    assert long == {}
