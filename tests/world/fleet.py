"""The fleet's topic, and an instance's part in it: the real split, with records that are late, lost or repeated."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quota.fleet.core import Fleet
from quota.fleet.record import Seal
from quota.fleet.shares import Shares
from quota.fleet.timing import Timing
from quota.steps import whole

if TYPE_CHECKING:
    from tests.world.clock import Clock
    from tests.world.instance import Instance

PARTITIONS = 2
SEAL = Seal([b"k" * 32], "kquota-fleet", "world")
STEP_S = 0.5


class Topic:
    """Partitions, whose records all readers find in one order."""

    def __init__(self, clock: Clock, chance: Random) -> None:
        self.clock = clock
        self.chance = chance
        self.away_until_s = 0.0  # nobody reads or writes
        self.lossy_until_s = 0.0  # some records are lost, or written twice, or late
        self.partitions: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def publish(self, partition: int, data: bytes) -> None:
        now_s, chance = self.clock.now_s, self.chance
        lossy = now_s < self.lossy_until_s
        if now_s < self.away_until_s or (lossy and chance.random() < 0.3):
            return
        for _ in range(1 + (lossy and chance.random() < 0.2)):
            self.clock.after(chance.random() * (2.0 if lossy else 0.2), self.partitions[partition].append, data)


class Member:
    def __init__(self, instance: Instance, topic: Topic, at_least: int, number: int) -> None:
        self.instance = instance
        self.topic = topic
        now = topic.clock.now_s * 1000.0
        self.fleet = Fleet(SEAL, number, instance.name, now, timing=Timing(), at_least=at_least)
        self.fleet.epoch_ms = 1e6
        self.shares = Shares(instance.ledger, self.fleet, now)
        self.fleet.connected(PARTITIONS)
        self._read = [len(records) for records in topic.partitions]
        self.working = True
        topic.clock.after(topic.chance.random() * STEP_S, self._step)

    def _step(self) -> None:
        if self.instance.dead or not self.working:
            return
        topic, fleet = self.topic, self.fleet
        now = topic.clock.now_s * 1000.0
        if topic.clock.now_s >= topic.away_until_s:
            for partition, records in enumerate(topic.partitions):
                if partition in fleet.wanted:
                    for data in records[self._read[partition] :]:
                        fleet.read(partition, data, now)
                self._read[partition] = len(records)
        for partition, data in whole(self.shares.steps(now)):
            topic.publish(partition, data)
        topic.clock.after(STEP_S, self._step)

    def leave(self) -> None:
        self.working = False
        for partition, data in self.shares.leave(self.topic.clock.now_s * 1000.0):
            self.topic.publish(partition, data)
