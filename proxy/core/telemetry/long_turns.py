"""The watchdog of the event loop: turns that use the CPU for longer than others should wait, and for what.

`proxy.net.io.loop` measures turns, by clock readings that it takes anyway and one of the thread's CPU time per
millisecond at most. What may take long says what it is (`begin`), so that the turn is counted under its name.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import structlog

log = structlog.get_logger("kquota.loop")

LONG_S: Final = 0.005
"""A turn that takes longer is recorded: what can be cut is cut to 2 ms, and what cannot takes no longer than this."""
EACH_S: Final = 0.0002
"""What each further callback of a turn may take."""
MARK_S: Final = 0.001
"""How old the reading of CPU time at the beginning of a turn may be: so much of what came before may count as well."""
LOG_INTERVAL_S: Final = 10.0


class LongTurns:
    """The turns of one event loop that took too long. Times are of the loop's clock in seconds, unless named CPU."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(connections=0, tasks=0)
        """By what was done: an API, an HTTP path, `metrics`, `sweep`; or `connections`, or `tasks` of other kinds."""
        self.longest_cpu_s = 0.0
        self._what = ""
        self._begun_s = 0.0
        self._logged_s = -LOG_INTERVAL_S
        self._unlogged = 0

    def begin(self, what: str, now_s: float) -> None:
        """Something begins that may take long; `what` is one of a small number of names."""
        self._what, self._begun_s = what, now_s

    def look(self, what: str, began_s: float, now_s: float, took_s: float, callbacks: int = 0) -> None:
        """A turn has taken more than `LONG_S`, of which the thread had a core for `took_s`. `what`: if nothing was
        begun."""
        if took_s <= LONG_S + EACH_S * callbacks:
            return
        if self._begun_s >= began_s and self._what:
            what = self._what
        self.counts[what] += 1
        self.longest_cpu_s = max(self.longest_cpu_s, took_s)
        self._unlogged += 1
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            count, self._unlogged, self._logged_s = self._unlogged, 0, now_s
            log.info("long turn of the event loop", what=what, cpu_ms=round(took_s * 1000.0, 1), count=count)
