"""Rate-limited log lines about single connections: a few of each kind at once, the rest as a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog
import trio

from proxy.core.errors import CloseReason

log = structlog.get_logger("kquota.connection")

INTERVAL_S: Final = 10.0
MAX_LINES: Final = 20
"""Per interval; metrics count all."""


class LogLimiter:
    """Which lines to log at once; at the end of an interval `log_more(message, count=N, …)` counts the others."""

    def __init__(self, log_more: Callable[..., Any], message: str, *, kinds: int = MAX_LINES, each: int = 1) -> None:
        """`kinds`: of lines, at most, per interval; `each`: lines of each of them."""
        self._log_more, self._message = log_more, message
        self._kinds, self._each = kinds, each
        self._counts: dict[tuple[tuple[str, Any], ...], int] = {}
        self._until_s = 0.0

    def allows(self, **kind: Any) -> bool:
        """Whether to log a line of this kind; it is counted otherwise."""
        now_s = trio.current_time()
        if now_s >= self._until_s:
            self.look()
            self._until_s = now_s + INTERVAL_S
        key = tuple(kind.items())
        if key not in self._counts and len(self._counts) >= self._kinds:
            return False
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] <= self._each

    def look(self) -> None:
        """Call this periodically: it ends an interval also if there is nothing to log any more."""
        if trio.current_time() < self._until_s:
            return
        for kind, count in self._counts.items():
            if count > self._each:
                self._log_more(self._message, **dict(kind), count=count - self._each)
        self._counts.clear()


class CloseLogLimiter:
    """Logs why connections ended that neither side meant to end."""

    def __init__(self) -> None:
        self._limiter = LogLimiter(log.warning, "more connections closed", kinds=1000, each=MAX_LINES)
        self.look = self._limiter.look

    def closed(self, reason: str, kind: str | None = None, **details: Any) -> None:
        """Log `connection closed`, unless many have been closed for the same reason lately."""
        if self._limiter.allows(reason=reason, kind=kind):
            log.warning("connection closed", reason=reason, kind=kind, **details)

    def failed(self, **details: Any) -> None:
        """Log the exception that is being handled, an internal error: one connection ends because of it."""
        if self._limiter.allows(reason=str(CloseReason.INTERNAL_ERROR), kind=None):
            log.exception("connection closed: internal error", **details)
