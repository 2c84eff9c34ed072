"""Gathers all metrics at each scrape: step by step, letting traffic through in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import trio
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import Metric

from proxy.app.common.checkpoints import with_checkpoints
from proxy.app.metrics.clients import ClientSeries, LibrarySeries
from proxy.app.metrics.families import counter, written
from proxy.app.metrics.own import traffic_families
from proxy.core.telemetry.observer import Counters
from quota.ledger import Ledger

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The format that every Prometheus reads; our names need nothing newer."""
SHORTEST_INTERVAL_MS = 1000.0


class Exposition:
    """Everything under /metrics."""

    def __init__(
        self, ledger: Ledger, counters: Counters, max_groups: int, own: Callable[[], Iterable[Metric]] = tuple
    ) -> None:
        """`own()` returns the families of the sidecar itself (:mod:`proxy.app.metrics.own`)."""
        self._own = own
        self._ledger = ledger
        self._counters = counters
        self._max_groups = max_groups
        self._clients = ClientSeries(ledger, max_groups)
        self.libraries = counters.libraries
        self.long_turns = counters.long_turns
        self._libraries = LibrarySeries(counters.libraries)
        self._process = ProcessCollector(registry=None)
        self._lock = trio.Lock()
        self._text: bytes | None = None
        self._text_ms = 0.0
        self.admin_evicted = 0

    async def text(self, now_ms: float) -> bytes:
        """The exposition. One gathering at a time; an answer younger than a second is reused."""
        async with self._lock:
            if self._text is None or now_ms - self._text_ms >= SHORTEST_INTERVAL_MS:
                steps = chain(self._clients.look(now_ms), self._libraries.look(now_ms), self._parts(now_ms))
                parts = [part async for part in with_checkpoints(steps, "metrics", self.long_turns) if part is not None]
                self._text, self._text_ms = b"".join([*parts, generate_latest(self._process)]), now_ms
            return self._text

    async def expire(self, now_ms: float) -> int:
        """Evict what is idle from the ledger, in steps; other tasks run in between."""
        forgotten = 0
        async for count in with_checkpoints(self._ledger.sweep(now_ms), "sweep", self.long_turns):
            forgotten += count
        return forgotten

    def _parts(self, now_ms: float) -> Iterator[bytes | None]:
        """Every metric as of the last refresh; None: other tasks may run."""
        for family in chain(
            self._clients.families(now_ms),
            self._libraries.families(),
            traffic_families(self._counters, self._ledger.connections, self._max_groups),
            self._own(),
            [counter("admin_evicted", "Admin connections closed for newer ones.", self.admin_evicted)],
        ):
            if family is None:
                yield None
            else:
                yield from written(family)
