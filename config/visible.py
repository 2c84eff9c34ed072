"""Makes foreign text safe to show to people: it must not control a terminal, or pass for other text.

Names come from clients, files and clusters. A terminal obeys control characters (C0 and, in many encodings, C1), some
of them even inside a title or a colour; direction marks make a name look like another one; unusual line separators make
one log entry look like two.
"""

from __future__ import annotations

import unicodedata


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with every invisible character as its code: ``\x1b``, ``\x9b``, ``\u202e``, ``\n``, ``\ud800``.

    That is all of Unicode's categories of control, format (marks of direction, characters without width), surrogate,
    unassigned and private characters, and every separator but the space. `lines`: the text is of several lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else repr(c)[1:-1] for c in text)


def has_control(text: str) -> bool:
    """Whether a control character (C0, DEL or C1) is in the text: no name in a configuration has one."""
    return any(unicodedata.category(c) == "Cc" for c in text)
