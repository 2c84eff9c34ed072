"""Figures formatted for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from config.units import readable_rate, readable_size, readable_span
from quota.entity import ANONYMOUS, Kind

MONEY: Final = frozenset(("total", "usage", "bursts", "idle_reservations"))
"""Columns of a bill: amounts, where they are fractions."""


size = readable_size
"""Bytes with three digits: ``1.5 MB``."""


def span(seconds: float) -> str:
    """A length of time: ``45 s``, ``12 min``, ``3 h 30 min``, ``30 d``."""
    return readable_span(seconds * 1000)


def share(value: float | None) -> str:
    """A fraction as percent."""
    return "–" if value is None else f"{value * 100:.3g} %"


def who(row: Any) -> str:
    """A client as ``user / client-id``, or as ``client-id`` if it has not logged in."""
    client_id = row["client_id"] or "(no client-id)"
    return client_id if row["user"] == ANONYMOUS else f"{row['user']} / {client_id}"


def group_name(user: str | None, client_id: str | None) -> str:
    """The name of a group that shares a limit; a name that is None plays no part."""
    if user == ANONYMOUS and client_id:
        return client_id
    return " / ".join(one or "(none)" for one in (user, client_id) if one is not None) or "(all clients)"


def rate(kind: str, value: float) -> str:
    """A rate or a limit of this kind of quota, worded as in `kquota explain`."""
    return readable_rate(Kind(kind), value)


def several(count: int, noun: str) -> str:
    """``1 client``, ``2 clients``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


RATES: Final = frozenset(("limit", "highest_rate", "rate", "peak_last_week"))
"""Columns in the unit of their row's kind of quota."""


def cell(name: str, value: Any, kind: str | None = None) -> str:
    """A table cell, in the unit given by its column's name and its row's kind of quota."""
    if value is None:
        return "–"
    if kind is not None and name in RATES:
        return rate(kind, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_share"):
        return share(value)
    if "bytes" in name:
        return size(value) + ("/s" if name.endswith("_per_s") else "")
    if name in MONEY and isinstance(value, float):
        return f"{value:,.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
