"""What ends the demo before its time."""

from __future__ import annotations

from pathlib import Path

TAIL_LINES = 15


class DemoError(Exception):
    """Something the demo stands on failed; the message says what, and what to do where that is known."""


def tail(title: str, log: Path) -> str:
    """The end of a child's log, as a further paragraph of a message; says so when there is nothing in it."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return f"\n--- {title}:\n" + ("\n".join(lines[-TAIL_LINES:]) if lines else "(it wrote nothing)")
