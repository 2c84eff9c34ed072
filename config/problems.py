"""The problems of a configuration: messages that name the file, the place, the value and what was expected."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from config.visible import visible

if TYPE_CHECKING:
    from pydantic import ValidationError

Place = tuple[str | int, ...]
"""A path inside the file, for example ``("quotas", 3, "producer_byte_rate")``."""

_LONGEST_VALUE = 80
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


MISSING: Final[Any] = object()
"""Marks a value that is not in the file at all."""
WHOLE_FILE: Final = "(the whole file)"


def place_text(place: Place) -> str:
    """``("quotas", 3, "user")`` as ``quotas[3].user``; names that contain dots are quoted: ``["quota.window.num"]``."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in part and len(place) > 1:
            text += f"[{json.dumps(_short(part))}]"
        else:
            text += f".{_short(part)}" if text else _short(part)
    return text or WHOLE_FILE


def value_text(value: Any) -> str:
    """The value as its author would recognise it: JSON, shortened when long."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, dict) and value:
        return "a mapping with " + _short(", ".join(str(key) for key in list(value)[:6]))
    if isinstance(value, list) and value:
        return f"a list of {len(value)}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # written as 5, stored as 5.0
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong (or, as a warning, worth knowing) at one place of one file."""

    file: str
    place: str
    """For example ``quotas[3].producer_byte_rate``."""
    line: int | None
    """1-based; None when the place has no position, such as a file that cannot be read."""
    column: int | None
    value: str | None
    """The offending value as text; None when showing it would add nothing."""
    expected: str
    """What was expected, or what follows from the value (warnings)."""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        place = "" if self.place == WHOLE_FILE else f"{self.place}: "
        got = "" if self.value is None else f"got {self.value}, "
        return visible(f"{where}: {place}{got}{self.expected}")

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object, for ``kquota check --json``."""
        return asdict(self)


def first_error(error: ValidationError) -> str:
    """What pydantic found first in a file that programs write: the place, and what is wrong there."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return visible(f"{'.'.join(map(str, first['loc'])) or 'the whole file'}: {first['msg']}")


class ConfigError(Exception):
    """An invalid configuration; ``problems`` lists everything found, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def first_of(problems: list[Problem], more: int = 0) -> list[Problem]:
    """At most MAX_PROBLEMS problems, and the number of further ones; `more` were left out before."""
    more += max(len(problems) - MAX_PROBLEMS, 0)
    if not more:
        return problems
    last = Problem(problems[0].file, WHOLE_FILE, None, None, None, f"has {more} more problems")
    return [*problems[:MAX_PROBLEMS], last]


def refused(file: str, expected: str, mark: Any = None) -> ConfigError:
    """The error for a file that cannot be read, is no YAML or is beyond a limit. `mark`: PyYAML's of the position."""
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return ConfigError([Problem(file, WHOLE_FILE, line, column, None, expected)])
