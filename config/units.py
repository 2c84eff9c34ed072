"""Sizes, rates and durations as people write them, and back: ``4M`` is 4 000 000 bytes and ``4Mi`` 4 194 304, as in
Kubernetes. Spellings that mean something else elsewhere are refused with a suggestion: ``2m``, ``10Mb``, ``010``."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

from quota.entity import Kind

_SIZE = re.compile(r"(?P<number>\d[\d_]*(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*?)(?:/s)?", re.ASCII)
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    **{letter + tail: 1000**power for power, letter in enumerate("kMGTP", 1) for tail in ("", "B")},
    **{"K" + tail: 1000 for tail in ("", "B")},  # in SI and Kubernetes k alone, but nothing else is called K
    **{letter + tail: 1024**power for power, letter in enumerate("KMGTP", 1) for tail in ("i", "iB")},
}
_DECIMAL_NAMES = {"k": "kilobytes", "M": "megabytes", "G": "gigabytes", "T": "terabytes", "P": "petabytes"}
_LEADING_ZERO = re.compile(r"0[0_]*(?=[\d])", re.ASCII)
"""Octal in YAML 1.1 and C, decimal elsewhere: too ambiguous for a limit."""
_DURATION = re.compile(r"(?P<number>\d[\d_]*(?:\.\d+)?)\s*(?P<unit>[a-z]*)", re.ASCII)
HOUR_MS = 3_600_000
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": HOUR_MS, "d": 86_400_000}

_LONGEST = 64
"""Characters of a size or duration: the arithmetic of much longer numbers takes long, or overflows."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
"""Java's largest long: the largest byte rate Kafka can express."""


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return pattern.fullmatch(text.strip()) if len(text) <= _LONGEST else None


def _amount(match: re.Match[str] | None, units: dict[str, int], bare_unit: str = "") -> int | None:
    """The number that matched, times its unit; None where there is none, or it is no whole number."""
    if match is None or _LEADING_ZERO.match(match["number"]):
        return None
    factor = units.get(match["unit"] or bare_unit)
    exact = None if factor is None else Decimal(match["number"].replace("_", "")) * factor
    return None if exact is None or exact != int(exact) else int(exact)


@lru_cache(maxsize=1024)  # a file of thousands of quotas has few different sizes
def parse_size(text: str) -> int | None:
    """``4M`` -> 4000000, ``2.5KiB`` -> 2560. None: it is not a size, or not a whole number of bytes."""
    return _amount(_match(_SIZE, text), _SIZE_UNITS)


def similar_size(text: str) -> str | None:
    """A suggestion for text that is not a size: ``2m`` -> ``2M (megabytes) or 2Mi``. None: no suggestion."""
    match = _match(_SIZE, text)
    if match is None:
        return None
    number, unit = match["number"], match["unit"]
    if (zero := _LEADING_ZERO.match(number)) is not None:
        number = number[zero.end() :]
    letter, rest = unit[:1], unit[1:].lower()
    if unit in _SIZE_UNITS:
        return number + unit if zero else f"{Decimal(number.replace('_', '')) * _SIZE_UNITS[unit]:.0f} (whole bytes)"
    if unit == "b":
        return f"{number} (bytes)"
    letter = "k" if letter in "kK" else letter.upper()
    if letter not in _DECIMAL_NAMES or rest not in ("", "b", "i", "ib"):
        return None
    if rest in ("i", "ib"):
        return f"{number}{letter.upper()}i"
    return f"{number}{letter} ({_DECIMAL_NAMES[letter]}) or {number}{letter.upper()}i"


def parse_duration_ms(text: str, *, bare_unit: str | None) -> int | None:
    """``30s`` -> 30000, ``0`` -> 0. ``bare_unit``: of a bare number; None forbids it. None: it is not a duration, or
    finer than a millisecond."""
    match = _match(_DURATION, text)
    if bare_unit is None and match is not None and not match["number"].strip("0_."):
        bare_unit = "ms"  # zero is the same in each
    return _amount(match, _DURATION_UNITS_MS, bare_unit or "")


def readable_bytes(value: float) -> str:
    """``2000000`` -> ``2 MB``, ``4194304`` -> ``4 MiB``: decimal units, but binary where only these are round."""
    if value >= 1024 and value == int(value) and int(value) % 1024 == 0 and int(value) % 1000:
        for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
            if int(value) % 1024**power == 0:
                return f"{int(value) // 1024**power} {unit}"
    for power, unit in ((6, "EB"), (5, "PB"), (4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if abs(value) >= 1000**power:
            return f"{round(value / 1000**power, 3):g} {unit}"
    return f"{round(value, 1):g} B"


def as_written(value: float | None) -> float | None:
    """A number as people write it: a whole one without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def three_digits(value: float) -> float:
    """Measurements have three significant digits: 1234567 -> 1230000."""
    return float(f"{value:.3g}")


def readable_size(value: float) -> str:
    """Measured bytes, with three digits: ``1.5 MB``."""
    return readable_bytes(three_digits(value))


def readable_rate(kind: Kind, rate: float) -> str:
    """A measured rate of this kind of quota: ``1.5 MB/s``, ``37.5 %`` of a thread, ``2/s`` (partitions)."""
    if kind in (Kind.PRODUCE, Kind.FETCH):
        return f"{readable_size(rate)}/s"
    return f"{three_digits(rate):g} %" if kind is Kind.REQUEST else f"{three_digits(rate):g}/s"


def readable_span(value_ms: float) -> str:
    """``0.25 ms``, ``250 ms``, ``12.3 s``, ``4 min 10 s``, ``2 h 5 min``, ``11 d 14 h``."""
    if value_ms < 10:
        return f"{value_ms:.2g} ms"
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    seconds = value_ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s".replace(" 0 s", "")
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min".replace(" 0 min", "")
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h".replace(" 0 h", "")
