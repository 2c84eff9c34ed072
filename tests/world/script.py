"""What is in a world and what happens to it, drawn from a seed. Each part draws for itself, so any can be left out."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.world.client import Habits

FREE = "free"  # the group without a limit
STORMS = ((0.15, 0.35), (0.55, 0.7))  # faults happen in these parts of the time
PATH_FAULTS = ("stall", "reset", "slow")
BROKER_FAULTS = ("restart", "slow broker", "lies", "own throttle", "move", "topic away", "topic lossy")
INSTANCE_FAULTS = ("crash", "drain", "reload")


@dataclass(frozen=True)
class Group:
    """Clients that share a limit, in bytes per second; 0: none."""

    name: str
    produce: int = 0
    fetch: int = 0
    by_user: bool = False  # the limit is a user's, whatever its client-ids are; else a client-id's


@dataclass(frozen=True)
class Fault:
    """What happens, when, to what (a number that is taken modulo their count), how long, how much."""

    kind: str
    at_s: float
    target: int
    lasts_s: float
    value: float


@dataclass(frozen=True)
class Script:
    seed: int
    seconds: float
    instances: int = 1
    brokers: int = 1
    fleet: bool = False  # limits are the whole fleet's; else each instance has its own
    gateway: bool = False  # clients connect to any instance; else each has its own
    delay_s: float = 0.002
    cuts: float = 0.0
    window: int = 262_144
    groups: tuple[Group, ...] = ()
    clients: dict[int, Habits] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)

    def only(self, clients: Container[int] | None, faults: Container[int] | None) -> Script:
        """With these clients and faults alone; None: all."""
        kept = {number: one for number, one in self.clients.items() if clients is None or number in clients}
        left = {number: one for number, one in self.faults.items() if faults is None or number in faults}
        return replace(self, clients=kept, faults=left)


def _log_uniform(chance: Random, least: float, most: float) -> float:
    return float(least * (most / least) ** chance.random())


def _leaves(chance: Random) -> Any:
    return chance.choice(("", "", "", "close", "half", "reset", "vanish", "inside"))


def _producer(chance: Random, group: Group) -> Habits:
    """Mostly as librdkafka's and Java's do, some as nobody should."""
    idempotent = chance.random() < 0.4
    return Habits(
        "producer",
        group.name,
        size_bytes=max(int(_log_uniform(chance, 0.3, 8.0) * group.produce), 200),
        in_flight=1 if not idempotent else chance.choice((1, 2, 5)),
        obeys=chance.random() < 0.5,
        timeout_s=chance.choice((5.0, 10.0, 30.0, 30.0)),
        acks=-1 if idempotent else chance.choice((1, -1, 0)),
        idempotent=idempotent,
        leave=_leaves(chance),
        requests=chance.randint(1, 8),
        starts_s=chance.random() * 3.0,
    )


def _fetcher(chance: Random, group: Group) -> Habits:
    habits = Habits(
        "fetcher",
        group.name,
        size_bytes=max(int(_log_uniform(chance, 0.1, 4.0) * group.fetch), 3000),
        obeys=chance.random() < 0.6,
        leave=_leaves(chance),
        requests=chance.randint(2, 20),
        slow_bytes_per_s=int(group.fetch * 0.3) + 1000 if chance.random() < 0.15 else 0,
        sessions=chance.random() < 0.5,
        starts_s=chance.random() * 3.0,
    )
    if habits.leave or habits.slow_bytes_per_s or chance.random() < 0.5:
        return habits
    return replace(habits, heartbeats=True, size_bytes=habits.size_bytes * chance.choice((1, 10)))


def _client(chance: Random, groups: tuple[Group, ...]) -> Habits:
    group = chance.choice(groups)
    drawn = chance.random()
    if drawn < 0.08:
        return Habits("member", group.name)
    if drawn < 0.2:
        free = Habits(
            "producer", FREE, chance.randint(500, 4000), acks=chance.choice((1, -1)), pause_s=chance.uniform(1, 5)
        )
        return free if chance.random() < 0.7 else replace(free, kind="fetcher")
    if drawn < 0.3 and group.produce:
        size = max(int(_log_uniform(chance, 0.3, 2.0) * group.produce), 200)
        return Habits("transactional", group.name, size, obeys=chance.random() < 0.5, idempotent=True)
    return _producer(chance, group) if group.produce else _fetcher(chance, group)


def _fault(chance: Random, seconds: float) -> Fault:
    begin, end = chance.choice(STORMS)
    kinds = chance.choice((PATH_FAULTS, PATH_FAULTS, BROKER_FAULTS, INSTANCE_FAULTS))
    at_s = seconds * chance.uniform(begin, end)
    return Fault(
        chance.choice(kinds), at_s, chance.randrange(1 << 20), _log_uniform(chance, 0.1, 20.0), chance.random()
    )


def crowd(seed: int) -> Script:
    """Producers of one group, whose round at the limit takes 0.3 to 6 times as long as they wait for an answer."""
    chance = Random(f"crowd {seed}")
    group = Group("g0", produce=int(_log_uniform(chance, 3_000, 30_000)))
    number, under_way, timeout_s = chance.choice((4, 9, 16)), chance.choice((1, 2, 5)), chance.choice((5.0, 10.0, 30.0))
    round_s = timeout_s * _log_uniform(chance, 0.3, 6.0)
    one = Habits(
        "producer",
        group.name,
        size_bytes=int(round_s * group.produce / number / under_way),
        in_flight=under_way,
        obeys=chance.random() < 0.5,
        timeout_s=timeout_s,
        idempotent=True,
        sends_timeout=True,
    )
    clients = {place: replace(one, starts_s=chance.random() * 3.0) for place in range(number)}
    delay_s = _log_uniform(chance, 0.0005, 0.02)
    return Script(seed, 3 * round_s + 60.0, delay_s=delay_s, groups=(group,), clients=clients)


def members(seed: int) -> Script:
    """Members of a group that heartbeat on the connection they fetch on, whose batches take 2 to 30 s of the limit."""
    chance = Random(f"members {seed}")
    group = Group("g0", fetch=int(_log_uniform(chance, 3_000, 30_000)))
    number, batch_s = chance.choice((1, 3, 8)), _log_uniform(chance, 2.0, 30.0)
    one = Habits("fetcher", group.name, int(3 * batch_s * group.fetch), heartbeats=True)
    clients = {
        place: replace(one, obeys=chance.random() < 0.5, sessions=chance.random() < 0.5, starts_s=chance.random() * 3.0)
        for place in range(number)
    }
    delay_s = _log_uniform(chance, 0.0005, 0.02)
    return Script(seed, 600.0, delay_s=delay_s, groups=(group,), clients=clients)


def draw(seed: int, seconds: float) -> Script:
    chance = Random(f"world {seed}")
    groups = []
    for number in range(chance.choice((1, 1, 2, 3))):
        limit = int(_log_uniform(chance, 3_000, 30_000))
        group = Group(f"g{number}", by_user=chance.random() < 0.3)
        groups.append(replace(group, produce=limit) if chance.random() < 0.7 else replace(group, fetch=limit))
    instances = chance.choice((1, 1, 2, 3))
    script = Script(
        seed,
        seconds,
        instances=instances,
        brokers=chance.choice((1, 2, 3)),
        fleet=instances > 1 and chance.random() < 0.7,
        gateway=chance.random() < 0.3,
        delay_s=_log_uniform(chance, 0.0005, 0.04),
        cuts=chance.choice((0.0, 0.05, 0.3)),
        window=chance.choice((32_768, 131_072, 524_288)),
        groups=tuple(groups),
    )
    for number in range(chance.randint(1, 8)):
        script.clients[number] = _client(Random(f"client {seed} {number}"), script.groups)
    for number in range(chance.choice((0, 1, int(seconds / 60), int(seconds / 20)))):
        script.faults[number] = _fault(Random(f"fault {seed} {number}"), seconds)
    return script


def shrink(script: Script, fails: Callable[[Script], bool]) -> Script:
    """The smallest found that still fails, with fewer clients and faults, in less time."""
    for seconds in (30.0, 60.0, 120.0, 300.0):
        if seconds < script.seconds and fails(shorter := replace(script, seconds=seconds)):
            script = shorter
            break
    smaller = True
    while smaller:
        smaller = False
        for part in ("faults", "clients"):
            size = max(len(getattr(script, part)) // 2, 1)
            while size:
                keys = list(getattr(script, part))
                for start in range(0, len(keys), size):
                    here = getattr(script, part)
                    left: Any = {key: one for key, one in here.items() if key not in keys[start : start + size]}
                    if len(left) < len(here) and fails(one := replace(script, **{part: left})):
                        script, smaller = one, True
                size //= 2
    return script
