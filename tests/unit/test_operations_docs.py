"""docs/operations.md has a remedy for every complaint that the sidecar can write into its log."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
COMPLAINTS = {"warning", "error", "exception"}
TOLD_ELSEWHERE = {"configuration"}
"""A warning about the configuration says itself what to do: the text is in its field `warning`."""


def complaints() -> set[str]:
    """The first argument of every `log.warning`, `log.error` and `log.exception` of the sidecar."""
    found = set()
    for path in [*(ROOT / "deploy").rglob("*.py"), *(ROOT / "proxy").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in COMPLAINTS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(str(node.args[0].value))
    return found


def test_every_complaint_has_its_row() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == complaints() - TOLD_ELSEWHERE
