"""Limits from the cluster's own client quotas, polled periodically (`quotas.source: cluster`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import structlog
import trio

from config.model import Config
from config.table import to_table
from proxy.app.common.gc_tuning import beside_traffic
from proxy.app.sources.quota_source import MAX_LOGGED, QuotaSource
from proxy.app.sources.security import own_credentials
from proxy.net.tls.contexts import ClientTls
from proxy.net.upstream.cluster import Access, ClusterError, ask_quotas, first_answer
from quota.admin import Changes, Entity, Quotas, canonical, enforced
from quota.overlay import from_cluster
from quota.table import QuotaTable

log = structlog.get_logger("kquota.quotas")

FIRST_RETRY_S: Final = 0.2
"""While no answer has come yet, ask again after this time (doubling up to the interval)."""

AGAIN_S: Final = (0.2, 0.8, 2.0)
"""Pauses between further polls after an altered quota: brokers may learn of it a little later (KRaft)."""

Address = tuple[str, int]


class ClusterSource(QuotaSource):
    """The cluster's quotas as of the last answer, which stay in force while no answer comes."""

    def __init__(
        self, config: Config, addresses: Callable[[], Iterable[Address]], tls: ClientTls | None = None
    ) -> None:
        """`addresses()` returns the brokers to ask, in this order; by TLS where `tls` is given."""
        self._addresses = addresses
        self._last: Address | None = None
        self._interval_s = config.quota_settings.poll_interval_s
        self._access = Access(config.upstream.connect_timeout_ms / 1000, tls, own_credentials(config))
        self._in_file = to_table(config)
        self._quotas: Quotas | None = None
        self._changing = trio.Lock()
        self._wanted = trio.Event()
        self._again_s: list[float] = []
        super().__init__(config, self._in_file)
        self.state.successful = False
        self.state.success_at_s = 0.0
        self._error: str | None = None

    async def run(self) -> None:
        """Poll until cancelled."""
        retry_s = FIRST_RETRY_S
        while True:
            self._wanted = trio.Event()
            try:
                await self._poll()
            except Exception:  # an internal error must not end the traffic
                log.exception("reading the cluster's quotas failed: internal error")
                self._failed("internal error")
            pause_s = self._interval_s
            if self._quotas is None:
                pause_s, retry_s = min(retry_s, pause_s), retry_s * 2
            elif self._again_s and not self._wanted.is_set():
                pause_s = min(self._again_s.pop(0), pause_s)
            with trio.move_on_after(pause_s):
                await self._wanted.wait()

    @property
    def not_ready(self) -> str | None:
        """Until the first answer no client would be limited."""
        if self._quotas is not None:
            return None
        return f"cannot read the cluster's quotas: {self._error or 'no answer yet'}"

    async def _reload(self, table: QuotaTable) -> None:
        async with self._changing:
            self._in_file = table
            await self._use(self._quotas)

    async def _poll(self) -> None:
        state = self.state
        state.polls += 1
        try:
            broker, quotas = await first_answer(self._in_order(), partial(ask_quotas, access=self._access))
        except ClusterError as error:
            self._failed(str(error))
            return
        self._last, self._error = broker, None
        if quotas != self._quotas:
            await self._changed(broker, quotas)
        state.successful = True  # they are in force
        state.success_at_s = time.time()

    def _in_order(self) -> list[Address]:
        """The broker that answered last comes first: others may lag behind it."""
        first = [] if self._last is None else [self._last]
        return list(dict.fromkeys([*first, *self._addresses()]))

    async def _changed(self, broker: Address, quotas: Quotas) -> None:
        async with self._changing:
            first = self._quotas is None
            unusable = await self._use(quotas)
            self.state.changes += not first
        log.info("quotas read from the cluster", broker=f"{broker[0]}:{broker[1]}", entities=len(quotas))
        if unusable:
            log.warning(
                "some of the cluster's quotas cannot be enforced", count=len(unusable), which=unusable[:MAX_LOGGED]
            )

    async def _use(self, quotas: Quotas | None) -> list[str]:
        """Put these quotas in force, with the file's connection limits. Returns what cannot be enforced."""
        table, unusable = await beside_traffic(from_cluster, self._in_file, quotas or {})
        self._quotas = quotas
        self.state.unusable = len(unusable)
        self._put_in_force(table)
        return unusable

    def _failed(self, error: str) -> None:
        self.state.poll_failures += 1
        self.state.successful = False
        if error != self._error:
            effect = "no quotas yet, so not ready" if self._quotas is None else "the last known ones stay in force"
            log.warning("the cluster's quotas cannot be read", error=error, effect=effect)
        self._error = error

    # ---- QuotaAuthority ---------------------------------------------------------------------------------------------

    @property
    def managed(self) -> str:
        """At the brokers."""
        return "in the cluster itself, at its brokers"

    def origin(self, entity: Entity, key: str) -> str:
        """At the brokers; connection limits may be in the configuration file, and then take precedence."""
        quotas = self._quotas or {}
        found = quotas.get(entity)
        if found is None:  # the address may be spelled in another way
            found = next((limits for named, limits in quotas.items() if canonical(named) == entity), {})
        if key in found and key not in dict(enforced(self._in_file)).get(entity, {}):
            return self.managed
        return "in the configuration file"

    def apply(self, user: str, changes: Changes, done: Callable[[str | None], None]) -> None:
        """The configuration allows no such rule together with this source; a reload could bring one, though."""
        done("a change of quotas.source needs a restart of the sidecar")

    def altered_at_the_broker(self) -> None:
        """Poll now, and a few times more."""
        self._again_s = list(AGAIN_S)
        self._wanted.set()
