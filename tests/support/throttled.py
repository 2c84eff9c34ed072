"""The whole answer of /throttled at once, for tests of its text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from proxy.app.admin import explain
from proxy.app.admin.explain import Moment, Origin, throttled_row
from quota.counter import QuotaCounter
from quota.ledger import Ledger


def throttled_json(
    groups: Iterable[QuotaCounter], ledger: Ledger, at: Moment, origin: Origin | None = None
) -> dict[str, Any]:
    """As the admin port puts it together."""
    rows = [throttled_row(group, ledger, at, origin) for group in groups]
    rows.sort(key=lambda row: (row["now"]["muted_ms"], row["now"]["wait_ms"]), reverse=True)
    return {"throttled": rows} | explain.throttled_json(ledger, at)
