"""Limits on how large, deeply nested and full a file may be, checked before anything recurses into it or stores it.

A YAML parser's events come one by one and need no stack, but what builds values of them does: libyaml's composer is C
code that recurses once per level, so that 50 000 brackets end the process. It also holds the GIL.
"""

from __future__ import annotations

from typing import Any, Final

from config.problems import ConfigError, Problem, place_text

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Far above any real file (10 000 quota entries are about 1 MB)."""
MAX_DEPTH: Final = 32
"""Nesting of lists and mappings; the configuration itself needs six."""
MAX_VALUES: Final = 250_000
"""Lists, mappings, keys and values in a file; 10 000 quota entries with two names and two limits are 90 000."""
MAX_ALIASED_VALUES: Final = 400_000
"""What aliases may add to these values: they can make a short file huge ("billion laughs")."""
MAX_DIRECTIVES: Final = 100
"""Lines that begin with %: libyaml compares each with all before it."""
MAX_PROBLEMS: Final = 500
"""Problems reported per file: finding the place of each takes time."""


def check_text(file: str, data: bytes) -> str:
    """The text of a file. Raises ConfigError if it is too large, and UnicodeDecodeError."""
    if len(data) > MAX_FILE_BYTES:
        raise refused(file, f"expected a file of at most {MAX_FILE_BYTES} bytes, it has {len(data)}")
    text = data.decode("utf-8-sig")
    directives = text.count("\n%") + text.startswith("%")
    if directives > MAX_DIRECTIVES:
        raise refused(
            file, f"expected at most {MAX_DIRECTIVES} directives (lines that begin with %), there are {directives}"
        )
    return text


def first_of(problems: list[Problem], more: int = 0) -> list[Problem]:
    """At most MAX_PROBLEMS problems, and the number of further ones; `more` were left out before."""
    more += max(len(problems) - MAX_PROBLEMS, 0)
    if not more:
        return problems
    last = Problem(problems[0].file, place_text(()), None, None, None, f"has {more} more problems")
    return [*problems[:MAX_PROBLEMS], last]


def refused(file: str, expected: str, event: Any = None) -> ConfigError:
    """The error for a file that is beyond a limit, at the position of an event."""
    line, column = (None, None) if event is None else (event.start_mark.line + 1, event.start_mark.column + 1)
    return ConfigError([Problem(file, place_text(()), line, column, None, expected)])
