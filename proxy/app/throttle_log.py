"""One log line when a counter begins to throttle clients, one when it has stopped (no throttle for QUIET_MS), from the
ledger's recent throttles (`quota.decisions`). Lines beyond MAX_LINES a minute are only counted."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio

from quota.decisions import Decision, Why
from quota.entity import CounterKey, Kind
from quota.ledger import Ledger

LOOK_S: Final = 1.0
QUIET_MS: Final = 60_000.0
"""An episode ends when there was no throttle for this long: a client at its limit is throttled again and again."""
MAX_LINES: Final = 30
MINUTE_MS: Final = 60_000.0
MAX_EPISODES: Final = 1000


@dataclass(slots=True)
class Episode:
    """The episode of one counter."""

    began_ms: float
    until_ms: float
    throttles: int
    delayed_ms: int
    logged: bool
    """Its beginning was logged, so its end will be."""


class ThrottleLog:
    """Writes the lines. `look` is called periodically with the ledger's clock."""

    def __init__(self, ledger: Ledger, log: Any = None) -> None:
        self._ledger = ledger
        self._log = log or structlog.get_logger("kquota.throttle")
        self._seen_ms = -1.0
        self._episodes: OrderedDict[tuple[Kind, CounterKey], Episode] = OrderedDict()
        self._minute_ms = 0.0
        self._lines = 0
        self._unlogged = 0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look(trio.current_time() * 1000.0)

    def look(self, now_ms: float) -> None:
        """Process the throttles since the last call, and the episodes that are over."""
        self._next_minute(now_ms)
        newest = self._seen_ms
        for (kind, key), decisions in self._ledger.decisions.since(self._seen_ms):
            newest = max(newest, decisions[-1].at_ms)
            self._note(kind, key, decisions)
        self._seen_ms = newest
        over = [place for place, one in self._episodes.items() if now_ms - one.until_ms >= QUIET_MS]
        for place in over:
            self._end(*place, self._episodes.pop(place))

    def _note(self, kind: Kind, key: CounterKey, decisions: list[Decision]) -> None:
        delayed_ms = sum(one.delay_ms for one in decisions)
        until_ms = max(_ends_ms(one) for one in decisions)
        episode = self._episodes.get((kind, key))
        if episode is not None:
            episode.until_ms = max(episode.until_ms, until_ms)
            episode.throttles += len(decisions)
            episode.delayed_ms += delayed_ms
            return
        first = decisions[0]
        logged = self._write(
            "throttling begins",
            **_names(kind, key),
            by=f"{first.identity.user}/{first.identity.client_id}",
            why=str(first.why),
            delay_ms=first.delay_ms,
            limit=first.limit,
            observed=round(first.observed, 1),
        )
        began_ms = _ends_ms(first) - first.delay_ms
        self._episodes[kind, key] = Episode(began_ms, until_ms, len(decisions), delayed_ms, logged)
        if len(self._episodes) > MAX_EPISODES:
            self._episodes.popitem(last=False)

    def _end(self, kind: Kind, key: CounterKey, episode: Episode) -> None:
        if episode.logged:
            self._write(
                "throttling has ended",
                **_names(kind, key),
                lasted_s=round((episode.until_ms - episode.began_ms) / 1000.0, 1),
                throttles_at_least=episode.throttles,
                held_s_at_least=round(episode.delayed_ms / 1000.0, 1),
            )

    def _write(self, event: str, **values: Any) -> bool:
        if self._lines >= MAX_LINES:
            self._unlogged += 1
            return False
        self._lines += 1
        self._log.info(event, **values)
        return True

    def _next_minute(self, now_ms: float) -> None:
        if now_ms - self._minute_ms < MINUTE_MS:
            return
        if self._unlogged:
            self._log.info("messages about throttled counters omitted", left_out=self._unlogged)
        self._minute_ms, self._lines, self._unlogged = now_ms, 0, 0


def _ends_ms(one: Decision) -> float:
    return one.at_ms if one.why is Why.QUEUED else one.at_ms + one.delay_ms


def _names(kind: Kind, key: CounterKey) -> dict[str, str | None]:
    """The counter, as /quotas names it: null for a name that plays no part."""
    return {"quota": kind.value, "user": key.user, "client_id": key.client_id}
