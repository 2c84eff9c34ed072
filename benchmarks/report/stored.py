"""The form of stored results: repeated measurements as median and spread, and a row a line."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any, Final

LINE_CHARACTERS: Final = 280
"""What fits on a line stands on one."""
SERIES: Final = 12
"""A list of more numbers than this is a series of measurements."""


def text(result: Any) -> str:
    """A result as `benchmarks/results` keeps it."""
    return _printed(summarised(result), "") + "\n"


def summarised(value: Any) -> Any:
    """The same with each series, and the rounds of each row, as [least, median, most].

    Rows of rounds are mappings with a `round`; those whose other texts are the same are rounds of one row, which has
    their `values` as its own.
    """
    if isinstance(value, dict):
        return {key: summarised(one) for key, one in value.items()}
    if not isinstance(value, list | tuple):
        return _short(value) if isinstance(value, float) else value
    if value and all(isinstance(one, dict) and "round" in one for one in value):
        rows: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
        for one in value:
            label = tuple((key, text) for key, text in one.items() if isinstance(text, str))
            parts = {key: part for key, part in one.items() if key not in ("round", "values")}
            rows.setdefault(label, []).append(parts | one.get("values", {}))
        return [{"rounds": len(rounds)} | _merged(rounds) for rounds in rows.values()]
    if len(value) > SERIES and all(_is_number(one) for one in value):
        return _spread(value)
    return [summarised(one) for one in value]


def _merged(rounds: Sequence[Any]) -> Any:
    """One value for all rounds: of numbers the spread, of mappings each part, else what the first has."""
    first = rounds[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for one in rounds for key in one)
        return {key: _merged([one[key] for one in rounds if key in one]) for key in keys}
    numbers = [one for one in rounds if _is_number(one)]
    if numbers:
        return _spread(numbers) if len(numbers) > 1 else summarised(numbers[0])
    return summarised(first)


def _spread(numbers: Sequence[float]) -> list[float] | float:
    least, most = min(numbers), max(numbers)
    return _short(least) if least == most else [_short(one) for one in (least, statistics.median(numbers), most)]


def _short(number: float) -> float:
    """Four digits; whole numbers as they are."""
    return int(number) if number == int(number) else float(f"{number:.4g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _printed(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= LINE_CHARACTERS or not isinstance(value, dict | list):
        return line
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_printed(one, deeper)}" for key, one in value.items()]
        begin, end = "{", "}"
    else:
        parts = [_printed(one, deeper) for one in value]
        begin, end = "[", "]"
    if isinstance(value, dict) or not any(isinstance(one, dict | list) for one in value):
        parts = _filled(parts, len(deeper))
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{end}"


def _filled(parts: Sequence[str], indent: int) -> list[str]:
    """As many parts on a line as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and "\n" not in lines[-1] + part and indent + len(lines[-1]) + len(part) + 2 <= LINE_CHARACTERS:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines
