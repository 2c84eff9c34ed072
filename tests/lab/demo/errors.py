"""Errors that end the demo early."""

from __future__ import annotations

from pathlib import Path

TAIL_LINES = 15


class DemoError(Exception):
    """Something the demo needs has failed; the message says what, and what to do if that is known."""


def tail(title: str, log: Path) -> str:
    """The end of a child's log, as a further paragraph of a message; says so when it is empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return f"\n--- {title}:\n" + ("\n".join(lines[-TAIL_LINES:]) if lines else "(it wrote nothing)")
