"""What is in a world and what happens to it, drawn from a seed. Each part draws for itself, so parts can be left out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.world.client import Habits

FREE = "free"
"""The group without a limit."""
STORMS = ((0.15, 0.35), (0.55, 0.7))
"""Faults happen in these parts of the time."""
PATH_FAULTS = ("stall", "reset", "slow")
BROKER_FAULTS = ("restart", "slow broker", "lies", "own throttle", "move")
INSTANCE_FAULTS = ("crash", "drain", "reload")


@dataclass(frozen=True)
class Group:
    """Clients that share a limit, in bytes per second; 0: none."""

    name: str
    produce: int = 0
    fetch: int = 0


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
    """One world."""

    seed: int
    seconds: float
    instances: int = 1
    brokers: int = 1
    fleet: bool = False
    """Limits are the whole fleet's; else each instance has its own."""
    gateway: bool = False
    """Clients connect to any instance; else each has its own."""
    delay_s: float = 0.002
    cuts: float = 0.0
    window: int = 262_144
    groups: tuple[Group, ...] = ()
    clients: dict[int, Habits] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)

    def only(self, clients: set[int], faults: set[int]) -> Script:
        """The same with these parts alone."""
        return replace(
            self,
            clients={number: one for number, one in self.clients.items() if number in clients},
            faults={number: one for number, one in self.faults.items() if number in faults},
        )


def _log_uniform(chance: Random, least: float, most: float) -> float:
    return float(least * (most / least) ** chance.random())


def _producer(chance: Random, group: Group) -> Habits:
    """Mostly as librdkafka's and Java's do, some as nobody should."""
    cost_s = _log_uniform(chance, 0.3, 8.0)
    leave: Any = chance.choice(("", "", "", "close", "half", "reset", "vanish", "inside"))
    idempotent = chance.random() < 0.4
    acks = -1 if idempotent else chance.choice((1, -1, 0))
    return Habits(
        "producer",
        group.name,
        size_bytes=max(int(cost_s * group.produce), 200),
        in_flight=1 if not idempotent else chance.choice((1, 2, 5)),
        obeys=chance.random() < 0.5,
        timeout_s=chance.choice((5.0, 10.0, 30.0, 30.0)),
        acks=acks,
        idempotent=idempotent,
        leave=leave,
        requests=chance.randint(1, 8),
        starts_s=chance.random() * 3.0,
    )


def draw(seed: int, seconds: float) -> Script:
    """The world of a seed."""
    chance = Random(f"world {seed}")
    group = Group("g0", produce=int(_log_uniform(chance, 3_000, 30_000)))
    script = Script(
        seed,
        seconds,
        delay_s=_log_uniform(chance, 0.0005, 0.04),
        cuts=chance.choice((0.0, 0.05, 0.3)),
        window=chance.choice((32_768, 131_072, 524_288)),
        groups=(group,),
    )
    for number in range(chance.randint(1, 6)):
        script.clients[number] = _producer(Random(f"client {seed} {number}"), group)
    for number in range(chance.randint(0, int(seconds / 15))):
        script.faults[number] = _fault(Random(f"fault {seed} {number}"), seconds)
    return script


def _fault(chance: Random, seconds: float) -> Fault:
    begin, end = chance.choice(STORMS)
    return Fault(
        chance.choice(PATH_FAULTS),
        seconds * chance.uniform(begin, end),
        chance.randrange(1 << 20),
        _log_uniform(chance, 0.1, 20.0),
        chance.random(),
    )
