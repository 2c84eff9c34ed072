"""One instance of a fleet: the task that passes records to the arithmetic and shares to the ledger."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio
import trio.lowlevel

from config.fleet import FleetSection as FleetSettings
from config.model import Config
from deploy.fleet.exchange import Exchange
from deploy.sources.security import Security
from quota.fleet.core import Fleet
from quota.fleet.shares import Shares
from quota.fleet.timing import Timing
from quota.ledger import Ledger

log = structlog.get_logger("kquota.fleet")

TICKS: Final = 4
"""Per interval."""
AT_ONCE: Final = 200
"""Records processed in one piece, about a millisecond, before traffic is served."""
END_S: Final = 1.5
"""On a drain, how long the last record may take."""


class Member:
    """Takes part in the fleet until it is stopped."""

    def __init__(
        self, settings: FleetSettings, ledger: Ledger, exchange: Exchange, now_ms: Callable[[], float], name: str
    ) -> None:
        self.settings: Final = settings
        self.exchange: Final = exchange
        self._now_ms = now_ms
        now = now_ms()
        kept = ledger.settings
        window_ms = (kept.num_samples - 1) * kept.window_ms
        timing = Timing(interval_ms=settings.interval_s, window_ms=window_ms)
        self.fleet: Final = Fleet(
            settings.id, secrets.randbits(64), name, now, timing=timing, at_least=settings.instances
        )
        self.shares: Final = Shares(ledger, self.fleet, now)
        self._connected = False
        self._lost = False

    async def run(self) -> None:
        """Work until cancelled."""
        self.exchange.start()
        while True:
            try:
                await self._step()
            except Exception:  # a bug of ours must not end the traffic
                log.exception("the fleet's split cannot be computed")
            await trio.sleep(self.settings.interval_s / 1000 / TICKS)

    async def _step(self) -> None:
        exchange, fleet = self.exchange, self.fleet
        if exchange.partitions and not self._connected:
            self._connected = True
            fleet.connected(exchange.partitions, self._now_ms())
        for count, (partition, data) in enumerate(exchange.take(), 1):
            fleet.read(partition, data, self._now_ms())
            if count % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        for partition, data in self.shares.step(self._now_ms()):
            exchange.publish(partition, data)
        exchange.wanted = fleet.wanted
        if fleet.lost != self._lost:
            self._lost = fleet.lost
            if self._lost:
                log.warning(
                    "no contact with the fleet: this instance cannot read its own records back, so each fleet limit is "
                    "divided by the number of known instances",
                    instances=fleet.known,
                    error=exchange.state.error,
                )
            else:
                log.info("contact with the fleet is restored", instances=fleet.known)

    def leave(self) -> None:
        """Announce that this instance leaves: the others may use its share now."""
        for partition, data in self.shares.leave(self._now_ms()):
            self.exchange.publish(partition, data)
        self.exchange.stop()

    async def finish(self) -> None:
        """Wait until that record has been sent."""
        await trio.to_thread.run_sync(self.exchange.join, END_S, abandon_on_cancel=True)


def new_member(config: Config, ledger: Ledger, security: Security, now_ms: Callable[[], float]) -> Member | None:
    """The member of the configured fleet; None without one."""
    settings = config.fleet
    if settings is None:
        return None
    bootstrap = [f"{address.host}:{address.port}" for address in config.upstream.bootstrap]
    name = os.environ.get("KQUOTA_POD_NAME") or socket.gethostname()
    return Member(settings, ledger, Exchange(settings, bootstrap, security.producer_settings), now_ms, name)
