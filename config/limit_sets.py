"""Quota entries of the common kind: names, and a set of limits that many other entries have as well.

A file of ten thousand entries has few different sets of limits. Each set is validated once, as part of a whole entry
and by the same model as everything else; an entry that differs only in its names needs only these to be validated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydantic import ValidationError

from config.model import QuotaEntry
from config.problems import MISSING, Missing
from config.rows import Row
from config.table import to_entry, to_name
from quota.entity import Name
from quota.pause import Pause, without_pause
from quota.table import Entry

_NAMES: Final = ("client-id", "user")
_NEVER_AMONG_LIMITS: Final = {*_NAMES, "ip"}
"""A name after the limits: such a set belongs to one entry alone."""
_SURELY_SHORT: Final = 1000
"""Characters, far below what a name may have (`config.types.text`) in any encoding."""
_MAX_SETS: Final = 10_000
"""Sets of limits cached; a file in which nearly all are different gains nothing by it."""


class LimitSetCache:
    """Converts rows to entries."""

    def __init__(self, pause: Pause = without_pause) -> None:
        """`pause` is called with each row, as there may be many thousands."""
        self._pause = pause
        self._known: dict[Row, Entry | None] = {}
        """By the text of a row after its names; None: of another kind, or invalid."""

    def entry(self, row: Row, value_of: Callable[[str], Any]) -> Entry | None:
        """The entry for a row (see `config.rows`). None: the row has to be validated whole.

        `value_of` converts a value from its text.
        """
        self._pause()
        key = row[0]
        if key not in _NAMES:
            return None
        name, other, limits = _name(value_of(row[1])), None, row[2:]
        if limits and limits[0] in _NAMES:
            if limits[0] == key:
                return None
            other, limits = _name(value_of(limits[1])), limits[2:]
            if other is None:
                return None
        if name is None:
            return None
        like = self._known.get(limits, MISSING)
        if isinstance(like, Missing):
            return self._look(row, limits, value_of)
        if like is None:
            return None
        return like.about(name, other) if key == "user" else like.about(other, name)

    def _look(self, row: Row, limits: Row, value_of: Callable[[str], Any]) -> Entry | None:
        """The same for a row whose limits have not been seen before."""
        values = {key: value_of(written) for key, written in zip(row[::2], row[1::2], strict=True)}
        found = None
        if len(values) * 2 == len(row) and not _NEVER_AMONG_LIMITS.intersection(limits[::2]):
            try:
                entry = QuotaEntry.model_validate(values)
            except ValidationError:
                pass  # reported when the whole entry is validated
            else:
                found = None if entry.limits_connections else to_entry(entry)
        if len(self._known) < _MAX_SETS:
            self._known[limits] = found
        return found


def _name(value: Any) -> Name:
    """A user or client-id. None: it is not one, or has to be validated."""
    if value.__class__ is not str or not 0 < len(value) <= _SURELY_SHORT:
        return None
    return to_name(value)
