"""What unquoted text in YAML means: null, true, false and decimal numbers are what they look like, all else is text.
PyYAML reads by YAML 1.1 (190:20:30 is 685230, no is false) and quotes whatever that would not read as text, hence
:func:`dump` writes what this loader reads back."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

MAX_NUMBER_CHARS: Final = 1000
"""Length of a number: converting it takes time by the square of its length."""
PLAIN: Final = "unquoted"
"""Tag of a scalar without quotes and without a tag of its own."""
TEXT: Final = "tag:yaml.org,2002:str"
UNTAGGED: Final = frozenset({PLAIN, TEXT, "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"})
"""Tags that say what is written anyhow. All others are refused."""
MERGE_KEY: Final = "<<"

_WORDS: Final = (
    dict.fromkeys(("", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
)
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FRACTION: Final = re.compile(r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
NOT_ALWAYS_TEXT: Final = frozenset({"", *"nNtTfF~+-.0123456789"})
"""The first characters of all unquoted text that :func:`unquoted` has to look at."""

_Base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml when the wheel has it: about ten times faster
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Loader(_Base):  # type: ignore[misc]
    """PyYAML's loader, for its events and nodes: which scalars are unquoted, and nothing about their meaning."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node without one of its own."""
        if kind is yaml.ScalarNode:
            return PLAIN if implicit[0] else TEXT
        return super().resolve(kind, value, implicit)


def unquoted(text: str) -> Any:
    """The value of unquoted text. Raises ValueError for text that has to be quoted, or written in another way."""
    if text in _WORDS:
        return _WORDS[text]
    if text == "~":
        raise ValueError("YAML reads ~ as null, which is written null here")
    whole = _WHOLE.fullmatch(text)
    if whole is None and _FRACTION.fullmatch(text) is None:
        return text
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(f"it has {len(text)} characters, at most {MAX_NUMBER_CHARS} are taken")
    return int(text) if whole is not None else float(text)


def number(value: Any) -> int | float | None:
    """The value if it is a finite number that a float can hold; None for everything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


def is_merge(key: yaml.Node) -> bool:
    """Whether a key is YAML's ``<<``, which merges the mappings that are its value."""
    return bool(key.value == MERGE_KEY and key.tag == PLAIN)


def dump(values: Any) -> str:
    """Values as YAML text, a list's entries on one line each."""
    return str(
        yaml.dump(values, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=None, width=1_000_000)
    )
