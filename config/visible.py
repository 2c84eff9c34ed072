"""Makes foreign text safe to show: names come from clients, files and clusters, and must not control a terminal, look
like another name, or make one log entry look like two."""

from __future__ import annotations

import unicodedata


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with every invisible character but the space as its code: ``\x1b``, ``\u202e``, ``\n``, ``\ud800``.
    `lines`: the text is of several lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else repr(c)[1:-1] for c in text)


def has_control(text: str) -> bool:
    """Whether a control character (C0, DEL or C1) is in the text: no name in a configuration has one."""
    return not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text)
