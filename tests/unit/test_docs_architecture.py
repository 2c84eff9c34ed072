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
    "page",
    sorted(
        str(path.relative_to(ROOT))
        for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    ),
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


def test_prose_is_wrapped_so_that_changes_can_be_read() -> None:
    """At 100 columns. Tables, code, links by themselves and words that are longer have no place to break."""
    pages = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")]
    long = []
    for page in [*pages, *ROOT.glob("docs/**/*.md")]:
        prose = re.sub(r"^( *)(```|~~~).*?^ *\2", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in prose.splitlines():
            if len(line) > 100 and not line.startswith((" " * 4, "|", "#", ">", "<", "![")) and " " in line[:60]:
                long.append(f"{page.relative_to(ROOT)}: {line}")
    assert [line for line in long if not re.search(r"\S{60,}|\]\(", line)] == []
