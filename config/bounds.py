"""Limits on how large, deeply nested and full a file may be, checked before anything recurses into it or stores it.

A YAML parser's events come one by one and need no stack, but what builds values of them does: libyaml's composer is C
code that recurses once per level, so that 50 000 brackets end the process. It also holds the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from config.problems import ConfigError, Problem, place_text

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Far above any real file (10 000 quota entries are about 1 MB)."""
MAX_DEPTH: Final = 32
"""Nesting of lists and mappings; the configuration itself needs six."""
MAX_VALUES: Final = 250_000
"""Lists, mappings, keys and values in a file; 10 000 quota entries with two names and two limits are 90 000."""
MAX_ALIASED_VALUES: Final = 200_000
"""What aliases may add to the values in the file: they can make a short file huge ("billion laughs")."""
MAX_DIRECTIVES: Final = 100
"""Lines that begin with %: libyaml compares each with all before it."""
MAX_PROBLEMS: Final = 500
"""Problems reported per file: finding the place of each takes time."""

_BEGIN: Final = frozenset({SequenceStartEvent, MappingStartEvent})
_END: Final = frozenset({SequenceEndEvent, MappingEndEvent})
_VALUES: Final = frozenset({ScalarEvent, AliasEvent})


class TooMuchError(Exception):
    """There are too many values; :func:`count_values` finds out where."""


def check_text(file: str, data: bytes) -> str:
    """The text of a file. Raises ConfigError if it is too large, and UnicodeDecodeError."""
    if len(data) > MAX_FILE_BYTES:
        raise _refused(file, f"expected a file of at most {MAX_FILE_BYTES} bytes, it has {len(data)}")
    text = data.decode("utf-8-sig")
    directives = text.count("\n%") + text.startswith("%")
    if directives > MAX_DIRECTIVES:
        raise _refused(
            file, f"expected at most {MAX_DIRECTIVES} directives (lines that begin with %), there are {directives}"
        )
    return text


def count_values(file: str, next_event: Callable[[], Any]) -> int:
    """The number of values in a parser's events. Raises ConfigError if there are too many or they nest too deeply, and
    whatever the parser raises."""
    depth = count = 0
    while (kind := type(event := next_event())) is not StreamEndEvent:
        if kind in _VALUES:
            count += 1
        elif kind in _BEGIN:
            depth += 1
            count += 1
            if depth > MAX_DEPTH:
                raise _refused(file, f"expected at most {MAX_DEPTH} levels of nesting", event)
        elif kind in _END:
            depth -= 1
        if count > MAX_VALUES:
            text = f"expected at most {MAX_VALUES} values in the file (keys, values, lists and mappings)"
            raise _refused(file, text, event)
    return count


def first_of(problems: list[Problem], more: int = 0) -> list[Problem]:
    """At most MAX_PROBLEMS problems, and the number of further ones; `more` were left out before."""
    more += max(len(problems) - MAX_PROBLEMS, 0)
    if not more:
        return problems
    last = Problem(problems[0].file, place_text(()), None, None, None, f"has {more} more problems")
    return [*problems[:MAX_PROBLEMS], last]


def _refused(file: str, expected: str, event: Any = None) -> ConfigError:
    line, column = (None, None) if event is None else (event.start_mark.line + 1, event.start_mark.column + 1)
    return ConfigError([Problem(file, place_text(()), line, column, None, expected)])
