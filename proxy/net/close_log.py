"""Rate-limited log lines about single connections: a few of each kind at once, the rest as a count."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import structlog
import trio

from proxy.core.errors import CloseReason

log = structlog.get_logger("kquota.connection")

INTERVAL_S: Final = 10.0
MAX_LINES: Final = 20
"""Lines of each kind per interval; metrics count all."""


class CloseLogLimiter:
    """Logs why connections ended that neither side meant to end."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._until_s = 0.0

    def closed(self, reason: str, kind: str | None = None, **details: Any) -> None:
        """Log `connection closed`, unless many have been closed for the same reason lately."""
        if self._may_log(reason, kind):
            log.warning("connection closed", reason=reason, kind=kind, **details)

    def failed(self, **details: Any) -> None:
        """Log the exception that is being handled, an internal error: one connection ends because of it."""
        if self._may_log(str(CloseReason.INTERNAL_ERROR), None):
            log.exception("connection closed: internal error", **details)

    def _may_log(self, reason: str, kind: str | None) -> bool:
        now_s = trio.current_time()
        if now_s >= self._until_s:
            self.add_up()
            self._until_s = now_s + INTERVAL_S
        self._counts[reason, kind] += 1
        return self._counts[reason, kind] <= MAX_LINES

    def add_up(self) -> None:
        """Log how many more there were, and start a new interval."""
        for (reason, kind), count in self._counts.items():
            if count > MAX_LINES:
                log.warning("more connections closed", reason=reason, kind=kind, count=count - MAX_LINES)
        self._counts.clear()

    def look(self, now_s: float) -> None:
        """Call this periodically: at the end of an interval it logs the count of suppressed lines."""
        if self._counts and now_s >= self._until_s:
            self.add_up()
