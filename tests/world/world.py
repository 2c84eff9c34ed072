"""One world: its parts, what happens to them, and how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from quota.table import Entry, QuotaTable
from tests.world.broker import Cluster, Log
from tests.world.client import KINDS, Client
from tests.world.clock import Clock
from tests.world.instance import Instance
from tests.world.network import Path, Socket
from tests.world.properties import MINUTE_S, Judge, Meter
from tests.world.script import Fault, Script

QUIET_S = 1500.0
"""After the clients have stopped: longer than any debt, and than connections may be idle."""


class World:
    """See the module. `direct`: without kquota."""

    def __init__(self, script: Script, *, direct: bool = False) -> None:
        self.script = script
        self.clock = Clock()
        self.faults: Counter[str] = Counter()
        self.brokers_throttle = False
        self._paths: dict[tuple[str, int, int], Path] = {}
        self._dialled = 0
        self._ended = False
        self.cluster = Cluster(self.clock, script.brokers)
        self.judge = Judge(self)
        self.factor = 1.0
        """Of all limits, as reloaded last."""
        self.instances: list[Instance] = []
        for number in range(0 if direct else script.instances):
            self.instances.append(self._instance(number))
        self.clients: dict[int, Client] = {}
        rates = {group.name: group.produce or group.fetch for group in script.groups}
        for number, habits in script.clients.items():
            if direct and rates.get(habits.group):
                habits = replace(habits, pause_s=habits.pause_s + habits.size_bytes / rates[habits.group])
            self.cluster.logs[number] = Log(number % script.brokers)
            chance = Random(f"habits {script.seed} {number}")
            self.clients[number] = KINDS[habits.kind](self, number, habits, chance)
        for fault in script.faults.values():
            self.clock.at(fault.at_s, self._befall, fault)
        self.clock.after(MINUTE_S, self._minute)

    def run(self) -> None:
        """Until some time after all clients have stopped. Raises Violation."""
        try:
            self.clock.run(self.script.seconds)
            self._ended = True
            for client in self.clients.values():
                client.stop()
            self.clock.run(self.script.seconds + QUIET_S)
            for instance in self.instances:
                if instance.faults:
                    raise instance.faults[0]
            self.judge.finish()
        finally:
            for instance in self.instances:
                if not instance.dead:
                    instance.loop.close()

    # ---- for clients ------------------------------------------------------------------------------------------------

    def open(self, client: Client, node: int, done: Callable[[Socket | None], None]) -> None:
        """Connect a client to a broker's address."""
        client.here = node
        where = self._home(client) if self.instances else node
        path = self._path("client", client.number, where)
        chance = Random(f"connection {self.script.seed} {client.number} {client.connections}")
        self.clock.at(
            max(self.clock.now_s, path.stalled_until_s) + 2 * path.delay_s, self._opened, client, where, path, chance, done
        )

    def _home(self, client: Client) -> int:
        return (client.connections if self.script.gateway else client.number) % len(self.instances)

    def _opened(
        self, client: Client, where: int, path: Path, chance: Random, done: Callable[[Socket | None], None]
    ) -> None:
        if not self.instances:
            broker = self.cluster.brokers[where]
            if broker.down_until_s > self.clock.now_s:
                done(None)
                return
            near, far = path.connect(chance)
            broker.accept(far, chance)
        else:
            instance = self.instances[where]
            if instance.dead:
                done(None)
                return
            near, far = path.connect(chance)
            group = client.habits.group
            produced, fetched = (self._meter(where, group, kind) for kind in ("produce", "fetch"))
            used = self.judge.used
            instance.accept(
                far, client.here, "u", lambda count: used(produced, count), lambda count: used(fetched, count)
            )
        done(near)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _instance(self, number: int) -> Instance:
        return Instance(
            self.clock,
            f"kquota-{number}",
            self._table(),
            lambda broker, done: self._dial(number, broker, done),
        )

    def _table(self) -> QuotaTable:
        entries = [
            Entry(
                client_id=group.name,
                producer_byte_rate=group.produce * self.factor or None,
                consumer_byte_rate=group.fetch * self.factor or None,
            )
            for group in self.script.groups
        ]
        return QuotaTable(entries, default_scope="fleet" if self.script.fleet else "instance")

    def _meter(self, where: int, group_name: str, kind: str) -> Meter | None:
        limit = next((getattr(group, kind) for group in self.script.groups if group.name == group_name), 0)
        if not limit:
            return None
        key = (-1 if self.script.fleet else where, group_name, kind)
        meter = self.judge.meters.get(key)
        if meter is None:
            meter = self.judge.meters[key] = Meter(self.judge, f"{kind} of {group_name}", limit * self.factor)
            for client in self.script.clients.values():
                if client.group == group_name and (client.kind == "fetcher") == (kind == "fetch"):
                    meter.largest_bytes = max(meter.largest_bytes, int(client.size_bytes * 1.1) + 100)
                    meter.hungry = meter.hungry or (not client.leave and not client.pause_s and client.acks != 0)
        return meter

    def _dial(self, instance: int, broker: int, done: Callable[[Socket | None], None]) -> None:
        self._dialled += 1
        path = self._path("broker", instance, broker)
        chance = Random(f"dial {self.script.seed} {self._dialled}")
        self.clock.at(
            max(self.clock.now_s, path.stalled_until_s) + 2 * path.delay_s, self._reached, broker, path, chance, done
        )

    def _reached(self, number: int, path: Path, chance: Random, done: Callable[[Socket | None], None]) -> None:
        broker = self.cluster.brokers[number]
        if broker.down_until_s > self.clock.now_s:
            done(None)
            return
        near, far = path.connect(chance)
        broker.accept(far, chance)
        done(near)

    def _path(self, kind: str, one: int, other: int) -> Path:
        path = self._paths.get((kind, one, other))
        if path is None:
            path = self._paths[kind, one, other] = Path(self.clock, self.script.delay_s)
            path.cuts, path.window = self.script.cuts, self.script.window
        return path

    def _minute(self) -> None:
        if not self._ended:
            self.judge.minute()
            self.clock.after(MINUTE_S, self._minute)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        now_s = self.clock.now_s
        self.faults[fault.kind] += 1
        self.judge.disturbed(now_s + fault.lasts_s)
        paths = list(self._paths.values())
        if fault.kind in ("stall", "reset", "slow") and paths:
            path = paths[fault.target % len(paths)]
            if fault.kind == "stall":
                path.stalled_until_s = max(path.stalled_until_s, now_s + fault.lasts_s)
            elif fault.kind == "reset":
                path.reset()
            else:
                path.bytes_per_s = 200.0 + 50_000.0 * fault.value
                self.clock.after(fault.lasts_s, self._quick, path)

    def _quick(self, path: Path) -> None:
        path.bytes_per_s = 0.0
