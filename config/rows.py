"""Reads quota entries in their most common form without the YAML parser, which takes most of the time of a file of ten
thousand.

    quotas:                                                quotas:
      - client-id: etl            which the parser           - "row 0 of 5d0c…"
        producer_byte_rate: 4M    gets as                    - client-id: last
      - client-id: …                                           producer_byte_rate: 1M
      - client-id: last
        producer_byte_rate: 1M

A row is a list item on lines of its own, of plain keys with short plain or quoted values, in block or in flow style.
Several rows in succession are taken out and replaced by one quoted item. If the parser then finds it as an item of the
list of quotas, the rows were items too: it is at the same column, where the parser is in the same state. What follows
it was the next item before, at that column as well, because the last row is never taken out; so no value can continue
in what follows, and a row of which only the beginning was recognised is left to the parser. If anything differs, for
instance because the rows are inside a text, the parser gets the whole file.

Many rows equal an earlier one but for their first pair or two. The text after these is then cached, and not matched
again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from config.bounds import MAX_VALUES, TooMuchError

_MAX_INDENT: Final = 8
_MAX_KEYS: Final = 8
_KEY: Final = "([a-z][a-z_-]{0,40})"
_PLAIN: Final = "[A-Za-z0-9_.<][A-Za-z0-9_.<>/@=+%-]*"  # means the same inside and outside of braces
_QUOTED: Final = r""""[ !#-\[\]-~]*"|'[ -&(-~]*'"""
_PAIR: Final = f"{_KEY}: ({_PLAIN}|{_QUOTED})"
_NEXT: Final = "- "
_MAX_TRIED: Final = 1000
"""Places where a row could begin but none can be taken out, before the rest is left to the parser."""
_OTHER_BREAKS: Final = "\t\r\x85\u2028\u2029"
"""Tabs, and characters that end a line in YAML but not here."""

_LONGEST: Final = 4096
"""Characters of a row whose text may be cached; longer ones are matched each time."""
_MAX_KNOWN: Final = 1000
"""Ends of rows cached; a file in which all are different gains nothing by it."""

Row = tuple[str, ...]
"""Keys and values alternating, as written."""
EntryOf = Callable[[Row, Callable[[str], Any]], Any]
"""Makes an entry of a row, with a function that converts values from their text; None: the row becomes a mapping."""


class Rows:
    """The rows of a file, and its text without them."""

    def __init__(self, text: str, value_of: Callable[[str], Any], entry_of: EntryOf | None = None) -> None:
        """`value_of` converts a value from its text, quotes included; a row becomes what `entry_of` returns, or a
        mapping if that is None."""
        self.text = text
        """The text for the parser."""
        self._token = os.urandom(8).hex()  # cannot occur in the file
        self.values = 0
        """Rows, their keys and their values."""
        self._runs: list[list[Any]] = []
        self._ends: dict[str, Row] = {}
        """Text after the first pair or two of a row, with its pairs."""
        self._twice = False
        self._value_of = value_of
        self._entry_of = entry_of
        if not any(mark in text for mark in _OTHER_BREAKS):
            self._take_out(text)

    def _take_out(self, text: str) -> None:
        parts: list[str] = []
        kept_from = at = tried = 0
        while tried < _MAX_TRIED and (found := text.find(_NEXT, at)) >= 0:
            begin = text.rfind("\n", max(found - _MAX_INDENT - 1, 0), found) + 1
            indent = text[begin:found]
            run: list[Any] = []
            last = end = found + 1
            if begin and not indent.strip(" "):
                run, last, end = self._run(text, begin, indent)
            at = max(end, found + 1)
            if not run:
                tried += 1
                continue
            parts.append(f'{text[kept_from:begin]}{indent}- "{self._name(len(self._runs))}"\n')
            kept_from = last
            self._runs.append(run)
        if parts:
            self.text = "".join(parts) + text[kept_from:]

    def _run(self, text: str, begin: int, indent: str) -> tuple[list[Any], int, int]:
        """The successive entries from a place on, except the last, and where that one begins and ends. Each is built at
        once: freeing ten thousand rows together would block all threads."""
        flow = text.startswith("{", begin + len(indent) + len(_NEXT))
        first, first_two, whole = _patterns(indent, flow)
        between, next_row = ", " if flow else "\n", f"\n{indent}{_NEXT}"
        find, ends, value_of, entry_of = text.find, self._ends, self._value_of, self._entry_of
        run: list[Any] = []
        last = end = begin
        row: Row | None = None
        while True:  # there may be many thousands
            next_end = find(next_row, end, end + _LONGEST) + 1
            behind, pairs = find(between, end, next_end), first
            known = ends.get(text[behind:next_end])
            if known is None and behind >= 0:
                behind, pairs = find(between, behind + 1, next_end), first_two
                known = ends.get(text[behind:next_end])
            match = None if known is None else pairs.fullmatch(text, end, behind)
            if match is None:
                known, match = None, whole.match(text, end)
                if match is None:
                    return run, last, end
            if row is not None:
                entry = None if entry_of is None else entry_of(row, value_of)
                run.append(self._mapping(row) if entry is None else entry)
                self.values += 1 + len(row)
                if self.values > MAX_VALUES:
                    raise TooMuchError
            last = end
            if known is None:
                end = match.end()
                row = match.groups()[: match.lastindex]
                if end == next_end and len(ends) < _MAX_KNOWN:
                    ends[text[match.end(2) : end]] = row[2:]
                    if len(row) > 2:
                        ends[text[match.end(4) : end]] = row[4:]
            else:
                end = next_end
                row = match.groups() + known

    def put_back(self, values: Any) -> bool:
        """Put the rows back into the parsed values. False: their place was not found, or a row has a duplicate key, and
        the whole file has to be parsed."""
        if not self._runs:
            return True
        if self._twice:
            return False
        quotas = values.get("quotas") if isinstance(values, dict) else None
        if isinstance(quotas, dict):
            quotas = quotas.get("entries")
        if not isinstance(quotas, list):
            return False
        found: list[Any] = []
        places = {self._name(number): run for number, run in enumerate(self._runs)}
        for item in quotas:
            run = places.pop(item, None) if isinstance(item, str) else None
            if run is None:
                found.append(item)
            else:
                found += run
        quotas[:] = found
        return not places

    def _mapping(self, row: Row) -> dict[str, Any]:
        mapping = {key: self._value_of(written) for key, written in zip(row[::2], row[1::2], strict=True)}
        self._twice |= len(mapping) * 2 < len(row)
        return mapping

    def _name(self, number: int) -> str:
        return f"row {number} of {self._token}"


@lru_cache(maxsize=32)
def _patterns(indent: str, flow: bool) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Patterns for a row up to its first pair, up to its second, and for a whole row."""
    between = ", " if flow else f"\n{indent}  "
    first = indent + _NEXT + (r"\{" if flow else "") + _PAIR
    others = ""
    for _ in range(_MAX_KEYS - 1):
        others = f"(?:{between}{_PAIR}{others})?"
    texts = first, first + between + _PAIR, first + others + (r"\}" if flow else "") + "\n"
    up_to_first, up_to_second, whole = map(re.compile, texts)
    return up_to_first, up_to_second, whole
