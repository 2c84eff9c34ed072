"""Text of others in what people read: nothing in it may steer a terminal, or pass for other text.

Names come from clients, files and clusters. A terminal obeys control characters (C0 and, in many encodings, C1), some
of them from inside a title or a colour; marks of direction make a name read as another one; separators of lines that
are none make one entry of a log look like two. The reports want the same as the sidecar, and `quota` is what both know.
"""

from __future__ import annotations


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with everything that cannot be seen as its code: ``\x1b``, ``\x9b``, ``\u202e``, ``\n``, ``\ud800``.

    That is all of Unicode's categories of control, format (marks of direction, characters without width), surrogate,
    unassigned and private characters, and every separator but the space. `lines`: the text is of several lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else repr(c)[1:-1] for c in text)
