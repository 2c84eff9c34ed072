"""The problems of a configuration: messages that name the file, the place, the value and what was expected."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from config.visible import visible

Place = tuple[str | int, ...]
"""A path inside the file, for example ``("quotas", 3, "producer_byte_rate")``."""

_LONGEST_VALUE = 80


class Missing:
    """Marks a value that is not in the file at all."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


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
    return text or "(the whole file)"


def value_text(value: Any) -> str:
    """The value as its author would recognise it: JSON, shortened when long."""
    if isinstance(value, Missing):
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
        got = "" if self.value is None else f"got {self.value}, "
        return visible(f"{where}: {self.place}: {got}{self.expected}")

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object, for ``kquota check --json``."""
        return asdict(self)


def unreadable(file: str, reason: str) -> Problem:
    """The problem of a file that cannot be read."""
    return Problem(file, place_text(()), None, None, None, f"cannot be read: {reason}")


class ConfigError(Exception):
    """An invalid configuration; ``problems`` lists everything found, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
