"""Tables in documents: what stands between two marks is written by a measurement, all around it by people."""

from __future__ import annotations

import re
from pathlib import Path


def replace_between(document: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the marks `begin` and `end`, which stay.

    Raises:
        ValueError: the marks are not there, or more than once.
    """
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    before = document.read_text(encoding="utf-8")
    after, count = re.subn(pattern, lambda _: begin + text + end, before, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{document} has no place for the table: {begin} … {end}")
    document.write_text(after, encoding="utf-8")
