"""SECURITY.md: each promise names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_every_promise_has_its_test() -> None:
    for heading in ("application owner", "broker owner", "network", "Other pods"):
        (part,) = re.findall(rf"^## [^\n]*{heading}[^\n]*\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", part, re.MULTILINE)[1:]
        assert len(rows) >= 4
        for attempt, _, shown in rows:
            assert re.findall(r"`tests/\S+::\w+`", shown), attempt


def test_the_tests_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 30
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), (file, name)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", TEXT):
        assert (ROOT / target).exists(), target
