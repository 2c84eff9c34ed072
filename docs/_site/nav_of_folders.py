"""Entries of mkdocs.yml's nav that stand for all pages of a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def spread(nav: Any, docs: Path) -> Any:
    """The same nav, with `folder/*` replaced by the folder's pages in the order of their names, README first."""
    if isinstance(nav, list):
        return [spread(item, docs) for item in nav]
    if isinstance(nav, dict):
        return {title: spread(inner, docs) for title, inner in nav.items()}
    if isinstance(nav, str) and nav.endswith("/*"):
        folder = docs / nav.removesuffix("/*")
        paths = sorted(folder.glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
        return [{_title(path): path.relative_to(docs).as_posix()} for path in paths]
    return nav


def _title(path: Path) -> str:
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path.stem
