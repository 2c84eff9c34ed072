"""Instances of a fleet around one topic, to which others may write as well; on a clock that tests set."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from quota.fleet.core import Fleet
from quota.fleet.record import Seal
from quota.fleet.split import floor_share
from quota.steps import whole

TOPIC, ID, GROUP = "kquota-fleet", "shop", 12_344  # of partition 0 of 4
SEAL = Seal([b"old" * 12], TOPIC, ID)
TICK_MS = 250.0
HUNGRY = 2.0
"""Times the limit."""


class Site:
    """Instances whose clients want parts of one group's limit."""

    def __init__(self, count: int = 2, *, seals: Sequence[Seal] = (), wants: float = HUNGRY) -> None:
        self.now = 0.0
        self.log: list[tuple[int, bytes]] = []
        self.fleets: list[Fleet] = []
        self.want: dict[Fleet, float] = {}
        self.silent: set[Fleet] = set()
        """What these publish is lost."""
        self.read: dict[Fleet, int] = {}
        self.ends: list[int] = []
        self.lag = 0
        """Ticks by which the first instance reads later."""
        self._numbers = itertools.count(1000)
        for seal in seals or [SEAL] * count:
            self.start(seal, wants)

    def start(self, seal: Seal = SEAL, wants: float = HUNGRY) -> Fleet:
        """An instance that has read nothing of what was written before."""
        fleet = Fleet(seal, next(self._numbers), "i", self.now)
        fleet.connected(4)
        fleet.join(GROUP, self.now)
        self.fleets.append(fleet)
        self.want[fleet], self.read[fleet] = wants, len(self.log)
        return fleet

    def wants(self, *parts: float) -> None:
        self.want = dict(zip(self.fleets, parts, strict=True))

    def run(self, seconds: float, most: float = 1e9) -> None:
        """So much time passes; together the instances never hold more than `most`."""
        for _ in range(int(seconds * 4)):
            self.now += TICK_MS
            self.ends.append(len(self.log))
            for at, fleet in enumerate(self.fleets):
                end = self.ends[-1 - self.lag] if self.lag and at == 0 else len(self.log)
                for partition, data in self.log[self.read[fleet] : end]:
                    fleet.read(partition, data, self.now)
                self.read[fleet] = max(end, self.read[fleet])
                share, want = fleet.share(GROUP), self.want[fleet]
                used = min(share, want)
                fleet.sample(GROUP, used * 1e6, used, used, want > share, self.now)
                written = whole(fleet.steps(self.now))
                self.log += [] if fleet in self.silent else written
                assert self.held() <= most

    def shares(self) -> list[float]:
        return [fleet.share(GROUP) for fleet in self.fleets]

    def held(self) -> float:
        """All that they may use besides their floors."""
        return sum(fleet.share(GROUP) - floor_share(fleet.known) for fleet in self.fleets)
