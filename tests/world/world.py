"""One world: its parts, what happens to them, and how long."""

from collections import Counter
from collections.abc import Callable
from random import Random

from quota.table import Entry, QuotaTable
from tests.world import properties
from tests.world.broker import Cluster, Log
from tests.world.client import KINDS, Client
from tests.world.clock import Clock
from tests.world.fleet import Member, Topic
from tests.world.instance import Instance, Tap
from tests.world.network import Path, Socket
from tests.world.properties import MINUTE_S, STRETCH_S, Judge, Meter
from tests.world.script import PATH_FAULTS, Fault, Group, Script

RELOAD_S = 2.0  # a changed file is everywhere after this time
QUIET_S = 1500.0  # after the clients have stopped: longer than any debt, and than connections may be idle
LOOK_S = 150.0  # how often it is looked whether that is over
FORWARDED_S = 15_000.0
"""And until what clients without answers (acks=0) had sent is forwarded: 3 MB of each, in windows and read ahead."""


class World:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.clock = Clock()
        self.faults: Counter[str] = Counter()
        self.brokers_throttle = False
        self._paths: dict[tuple[str, int, int], Path] = {}
        self._dialled = self._started = 0
        self._ended = False
        self.groups = {group.name: group for group in script.groups}
        self.cluster = Cluster(self.clock, script.brokers)
        self.judge = Judge(self)
        self._chance = Random(f"reloads {script.seed}")
        self.factor = 1.0  # of all limits, as reloaded last
        self._former = (1.0, 0.0)  # the factor before, and until when instances may not have the present one
        self.topic = Topic(self.clock, Random(f"topic {script.seed}")) if script.fleet else None
        self.members: list[Member] = []  # of the fleet, those that have ended included
        self.instances = [self._instance(number) for number in range(script.instances)]
        self.clients: dict[int, Client] = {}
        for number, habits in script.clients.items():
            log = self.cluster.logs[number] = Log(number % script.brokers)
            if habits.kind == "fetcher":
                log.endless_bytes = max(habits.size_bytes // 3, 100)
            chance = Random(f"habits {script.seed} {number}")
            self.clients[number] = KINDS[habits.kind](self, number, habits, chance)
        for fault in script.faults.values():
            self.clock.at(fault.at_s, self._befall, fault)
        self.clock.after(MINUTE_S, self._minute)
        self.clock.after(2.0, self._sweep)

    def run(self) -> None:
        """Until some time after all clients have stopped. Raises Violation."""
        try:
            self.clock.run(self.script.seconds)
            self._ended = True
            for client in self.clients.values():
                client.stop()
            clients = self.clients.values()
            self._run_until(lambda: not any(one.channel is not None or one.has_more() for one in clients), QUIET_S)
            for client in self.clients.values():
                self.judge.waits(client)
                client.dismiss()
            self._run_until(lambda: not any(instance.links for instance in self.instances), FORWARDED_S)
            for member in self.members:
                member.working = False  # so that idle time costs little
            self.clock.run(self.clock.now_s + QUIET_S)
            for instance in self.instances:
                if instance.faults:
                    raise instance.faults[0]
            self.judge.finish()
        finally:
            for instance in self.instances:
                if not instance.dead:
                    instance.loop.close()

    def _run_until(self, done: Callable[[], bool], most_s: float) -> None:
        end_s = self.clock.now_s + most_s
        while True:
            self.clock.run(min(self.clock.now_s + LOOK_S, end_s))
            for instance in self.instances:
                instance.quiet = True
            if done() or self.clock.now_s >= end_s:
                return

    # ---- for clients ------------------------------------------------------------------------------------------------

    def open(self, client: Client, node: int, done: Callable[[Socket | None], None]) -> None:
        client.here = node
        where = self._home(client.connections if self.script.gateway else client.number)
        path = self._path("client", client.number, where)
        chance = Random(f"connection {self.script.seed} {client.number} {client.connections}")
        self.clock.at(path.connected_s, self._opened, client, where, path, chance, done)

    def _home(self, number: int) -> int:
        return number % len(self.instances)

    def _opened(
        self, client: Client, where: int, path: Path, chance: Random, done: Callable[[Socket | None], None]
    ) -> None:
        instance = self.instances[where]
        if instance.dead:
            done(None)
            return
        near, far = path.connect(chance)
        group = self.groups.get(client.habits.group)
        user = client.habits.group if group is not None and group.by_user else "u"
        taps = [self._tap(instance, group, kind) for kind in ("produce", "fetch")]
        instance.accept(far, client.here, user, *taps)
        done(near)

    def asked_bytes(self, group: str, kind: str = "") -> float:
        """What clients of a group ask for at once, at most: for fetches, for all else, or ("") for both."""
        return sum(
            client.in_flight * client.size_bytes * 1.1 + 200
            for client in self.script.clients.values()
            if client.group == group and (not kind or client.uses(kind))
        )

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _instance(self, place: int) -> Instance:
        self._started += 1
        instance = Instance(
            self.clock, self._started, place, self._table(), lambda broker, done: self._dial(place, broker, done)
        )
        if self.topic is not None:
            number = Random(f"member {self.script.seed} {self._started}").getrandbits(64)
            instance.member = Member(instance, self.topic, self.script.instances, number)
            self.members.append(instance.member)
        return instance

    def _table(self) -> QuotaTable:
        entries = [
            Entry(
                user=group.name if group.by_user else None,
                client_id=None if group.by_user else group.name,
                producer_byte_rate=group.produce * self.factor or None,
                consumer_byte_rate=group.fetch * self.factor or None,
            )
            for group in self.script.groups
        ]
        return QuotaTable(entries, default_scope="fleet" if self.script.fleet else "instance")

    def _tap(self, instance: Instance, group: Group | None, kind: str) -> Tap:
        """Where the bytes are counted that one limit is for."""
        limit = 0 if group is None else getattr(group, kind)
        if group is None or not limit:
            return lambda _: None
        script, key = self.script, (0 if self.script.fleet else instance.number, group.name, kind)
        if key in self.judge.meters:
            return self.judge.meters[key].add
        now_s, (former, until_s) = self.clock.now_s, self._former
        factor = former if now_s < until_s else self.factor
        meter = self.judge.meters[key] = Meter(self.judge, f"{kind} of {group.name} at {key[0]}", limit, factor)
        meter.change(now_s, limit * self.factor)
        clients = {number: one for number, one in script.clients.items() if one.group == group.name and one.uses(kind)}
        meter.largest_bytes = max((int(one.size_bytes * 1.1) + 200 for one in clients.values()), default=0)
        meter.asked_bytes = self.asked_bytes(group.name, kind)
        # Four ways of `delay_s`, or longer ones, lie between two requests.
        able_bytes = 2.0 * limit * 4 * script.delay_s
        waits = [
            one.timeout_s
            for number, one in clients.items()
            if one.persistent
            and one.size_bytes * one.in_flight > able_bytes
            and (script.fleet or (not script.gateway and self._home(number) == instance.place))
        ]
        # Half a request of theirs waits to be charged until its connection ends.
        wastes = any(one.leave == "vanish" for one in clients.values())
        meter.hungry, meter.timeout_s = bool(waits) and not wastes, max(waits, default=0.0)
        if script.fleet:
            wander = script.gateway and any(one.leave for one in script.clients.values() if one.group == group.name)
            meter.most = properties.MOST_OF_FLEET
            meter.least = properties.LEAST_OF_WANDERERS if wander else properties.LEAST_OF_FLEET
            meter.requests = script.instances
        elif wastes:
            meter.most = properties.MOST_WASTED
        return meter.add

    def _dial(self, instance: int, broker: int, done: Callable[[Socket | None], None]) -> None:
        self._dialled += 1
        path = self._path("broker", instance, broker)
        chance = Random(f"dial {self.script.seed} {self._dialled}")
        self.clock.at(path.connected_s, self._reached, broker, path, chance, done)

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

    def _sweep(self) -> None:
        for expelled in self.cluster.sweep():
            self.judge.expelled(self.clients[expelled])
        self.judge.shares()
        if not self._ended:
            self.clock.after(2.0, self._sweep)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        clock, brokers, instances = self.clock, self.cluster.brokers, self.instances
        kind, target, now_s = fault.kind, fault.target, clock.now_s
        self.faults[kind] += 1
        self.judge.disturbed(now_s + fault.lasts_s)
        broker, place = brokers[target % len(brokers)], target % len(instances)
        if kind in PATH_FAULTS:
            if paths := list(self._paths.values()):
                self._path_fault(fault, paths[target % len(paths)])
        elif kind == "restart":
            broker.restart(fault.lasts_s)
        elif kind == "slow broker":
            broker.slow_s = 0.05 + fault.value
            clock.after(fault.lasts_s, setattr, broker, "slow_s", 0.0)
        elif kind == "lies":
            self.brokers_throttle = True
            broker.lies = "throttled" if fault.value < 0.7 else "number"
            clock.after(fault.lasts_s, setattr, broker, "lies", "")
        elif kind == "own throttle":
            self.brokers_throttle = True
            broker.rate = 5_000.0 + 20_000.0 * fault.value
            clock.after(fault.lasts_s, setattr, broker, "rate", 0.0)
        elif kind == "topic away" and self.topic is not None:
            self.topic.away_until_s = now_s + fault.lasts_s
            self.judge.apart_s = max(self.judge.apart_s, now_s + fault.lasts_s)
        elif kind == "topic lossy" and self.topic is not None:
            self.topic.lossy_until_s = now_s + fault.lasts_s
        elif kind == "move":
            self.cluster.move(sorted(self.cluster.logs)[target % len(self.cluster.logs)])
        elif kind == "reload":
            self._reload(0.5 + 1.5 * fault.value)
        elif kind == "crash" and not instances[place].dead:
            instances[place].crash()
            clock.after(fault.value * 5.0, self._start, place)
        elif kind == "drain" and not instances[place].dead:
            instances[place].drain()
            self._start(place)

    def _path_fault(self, fault: Fault, path: Path) -> None:
        if fault.kind != "reset":
            self.judge.late_until_s = max(self.judge.late_until_s, self.clock.now_s + fault.lasts_s + STRETCH_S)
        if fault.kind == "stall":
            path.stalled_until_s = max(path.stalled_until_s, self.clock.now_s + fault.lasts_s)
        elif fault.kind == "reset":
            path.reset()
        else:
            path.bytes_per_s = 200.0 + 50_000.0 * fault.value
            self.clock.after(fault.lasts_s, setattr, path, "bytes_per_s", 0.0)

    def _start(self, place: int) -> None:
        gone = self.instances[place]
        self.instances[place] = self._instance(place)
        for (number, _, _), meter in self.judge.meters.items():
            meter.hungry = meter.hungry and number != gone.number
            meter.forgot(self.clock.now_s)
        self.judge.disturbed(self.clock.now_s)

    def _reload(self, factor: float) -> None:
        """All limits change; each instance learns of it in its own time."""
        now_s = self.clock.now_s
        self._former, self.factor = (self.factor, now_s + RELOAD_S), factor
        for instance in self.instances:
            delay_s = self._chance.random() * RELOAD_S
            self.clock.after(delay_s, lambda instance=instance: instance.ledger.swap(self._table()))
        for meter in self.judge.meters.values():
            meter.change(now_s, meter.whole * factor)
        self.judge.disturbed(now_s + RELOAD_S)
