"""Log lines about single connections, but not one for each of a flood: some of each kind now, the rest as a number."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import structlog
import trio

log = structlog.get_logger("kquota.connection")

INTERVAL_S: Final = 10.0
MAX_LINES: Final = 20
"""Of each kind per interval; metrics count all."""


class CloseLogLimiter:
    """Why connections ended that neither side wanted to end."""

    def __init__(self) -> None:
        self._said: Counter[tuple[str, str | None]] = Counter()
        self._until_s = 0.0

    def closed(self, reason: str, kind: str | None = None, **details: Any) -> None:
        """Say `connection closed`, unless many have been closed for the same reason lately."""
        now_s = trio.current_time()
        if now_s >= self._until_s:
            self.add_up()
            self._until_s = now_s + INTERVAL_S
        self._said[reason, kind] += 1
        if self._said[reason, kind] <= MAX_LINES:
            log.warning("connection closed", reason=reason, kind=kind, **details)

    def add_up(self) -> None:
        """Say how many more there have been, and begin anew."""
        for (reason, kind), count in self._said.items():
            if count > MAX_LINES:
                log.warning("more connections closed", reason=reason, kind=kind, count=count - MAX_LINES)
        self._said.clear()

    def look(self, now_s: float) -> None:
        """To be called now and then: what was not said is added up at the end of the interval."""
        if self._said and now_s >= self._until_s:
            self.add_up()
