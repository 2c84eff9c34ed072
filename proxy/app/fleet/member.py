"""One instance of a fleet: the task that passes records to the arithmetic and shares to the ledger."""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Final

import structlog
import trio
import trio.lowlevel

from config.model import Config
from config.sections import FleetSection as FleetSettings
from proxy.app.fleet.exchange import Exchange
from proxy.app.sources.security import FleetKeys, Security
from quota.fleet.core import Fleet
from quota.fleet.record import Seal
from quota.fleet.shares import Shares
from quota.fleet.timing import Timing
from quota.ledger import Ledger

log = structlog.get_logger("kquota.fleet")

TICKS: Final = 4
"""Per interval."""
SLICE_MS: Final = 1.0
"""Records are read for so long before traffic is served."""
END_S: Final = 1.5
"""On a drain, how long the last record may take."""
WARN_INTERVAL_MS: Final = 60_000


class Member:
    """Takes part in the fleet until it is stopped."""

    def __init__(
        self,
        settings: FleetSettings,
        ledger: Ledger,
        exchange: Exchange,
        keys: FleetKeys,
        now_ms: Callable[[], float],
        name: str,
    ) -> None:
        self.settings: Final = settings
        self.exchange: Final = exchange
        self._keys = keys
        self._used = keys.current
        self._now_ms = now_ms
        now = now_ms()
        kept = ledger.settings
        window_ms = (kept.num_samples - 1) * kept.window_ms
        timing = Timing(interval_ms=round(settings.interval_s * 1000), window_ms=window_ms)
        self.fleet: Final = Fleet(
            self._seal(), secrets.randbits(64), name, now, timing=timing, at_least=settings.instances
        )
        self.shares: Final = Shares(ledger, self.fleet, now)
        self._connected = False
        self._lost = False
        self._renumbered = 0
        self._warned: tuple[int, int, int] = (0, 0, 0)
        self._warned_ms = -math.inf

    async def run(self) -> None:
        """Work until cancelled."""
        self.exchange.start()
        while True:
            try:
                await self._step()
            except Exception:  # an internal error must not end the traffic
                log.exception("the fleet's split cannot be computed")
            await trio.sleep(self.settings.interval_s / TICKS)

    def _seal(self) -> Seal:
        return Seal(self._used, self.settings.topic, self.settings.id)

    async def _step(self) -> None:
        exchange, fleet = self.exchange, self.fleet
        if self._keys.current is not self._used:
            self._used = self._keys.current
            fleet.seal = self._seal()
        fleet.epoch_ms = time.time() * 1000 - self._now_ms()
        if exchange.partitions and not self._connected:
            self._connected = True
            fleet.connected(exchange.partitions)
        await self._read()
        steps = self.shares.steps(self._now_ms())
        try:
            while True:
                next(steps)
                await trio.lowlevel.checkpoint()
        except StopIteration as end:
            for partition, data in end.value:
                exchange.publish(partition, data)
        exchange.wanted = fleet.wanted
        self._report()

    async def _read(self) -> None:
        fleet, slice_ends = self.fleet, self._now_ms() + SLICE_MS
        for partition, data in self.exchange.take():
            now = self._now_ms()
            if now > slice_ends:
                await trio.lowlevel.checkpoint()
                now = self._now_ms()
                slice_ends = now + SLICE_MS
            fleet.read(partition, data, now)

    def _report(self) -> None:
        fleet = self.fleet
        if fleet.lost != self._lost:
            self._lost = fleet.lost
            if self._lost:
                log.warning(
                    "no contact with the fleet: this instance cannot read its own records back, so each fleet limit is "
                    "divided by the number of known instances",
                    instances=fleet.known,
                    error=self.exchange.state.error,
                )
            else:
                log.info("contact with the fleet is restored", instances=fleet.known)
        if fleet.renumbered != self._renumbered:
            self._renumbered = fleet.renumbered
            log.warning("another instance uses this one's number in the fleet: switched to a new number")
        ignored = fleet.ignored
        found = (ignored.bad_mac, ignored.outdated, ignored.other_version)
        if found != self._warned and self._now_ms() >= self._warned_ms + WARN_INTERVAL_MS:
            bad_mac, outdated, other_version = (now - was for now, was in zip(found, self._warned, strict=True))
            self._warned, self._warned_ms = found, self._now_ms()
            log.warning(
                "records on the fleet's topic are ignored",
                topic=self.settings.topic,
                bad_mac=bad_mac,
                outdated=outdated,
                other_version=other_version,
            )

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
    settings, keys = config.fleet, security.fleet_keys
    if settings is None or keys is None:
        return None
    bootstrap = [f"{address.host}:{address.port}" for address in config.upstream.bootstrap]
    name = os.environ.get("KQUOTA_POD_NAME") or socket.gethostname()
    return Member(settings, ledger, Exchange(settings, bootstrap, security.producer_settings), keys, now_ms, name)
