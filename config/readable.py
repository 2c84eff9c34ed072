"""Figures formatted for people, the same in the sidecar's answers (`kquota explain`) and in reports."""

from __future__ import annotations

from quota.entity import Kind

_BYTES = (Kind.PRODUCE, Kind.FETCH)


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


def three_digits(value: float) -> float:
    """Measurements have three significant digits: 1234567 -> 1230000."""
    return float(f"{value:.3g}")


def readable_size(value: float) -> str:
    """Measured bytes, with three digits: ``1.5 MB``."""
    return readable_bytes(three_digits(value))


def readable_rate(kind: Kind, rate: float) -> str:
    """A measured rate of this kind of quota: ``1.5 MB/s``, ``37.5 %`` of a thread, ``2/s`` (partitions)."""
    if kind in _BYTES:
        return f"{readable_size(rate)}/s"
    return f"{three_digits(rate):g} %" if kind is Kind.REQUEST else f"{three_digits(rate):g}/s"


def readable_span(value_ms: float) -> str:
    """``250 ms``, ``12.3 s``, ``4 min 10 s``, ``2 h 5 min``, ``11 d 14 h``."""
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
