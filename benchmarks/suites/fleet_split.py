"""The split of fleet limits on a simulated clock: the sidecar's own arithmetic, thousands of instances, no broker.

    python -m benchmarks.suites.fleet_split [--out FILE] [SCENARIO...]

Each instance is a `quota.fleet.core.Fleet`; the topic is a list per partition that instances read with a delay. What
clients do is fluid: an instance uses what it wants or its share, whichever is less. Instances with the same delay share
one `View`, which changes no result and lets 10 000 of them fit into one process.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.report.stats import jain
from quota.fleet.core import Fleet
from quota.fleet.record import Record, Seal, decode
from quota.fleet.split import CAPACITY
from quota.fleet.timing import Timing
from quota.fleet.view import View
from quota.steps import whole

TICK_MS: Final = 250
SEAL: Final = Seal([b"benchmark"], "kquota-fleet", "f")
OVERHEAD_BYTES: Final = 80
"""Of a record in a batch of its own, next to its value: 61 bytes of the batch, some 10 of the record, lengths."""
LAGS: Final = (0, 1, 2, 4)
"""In ticks: instances read what is at least so old."""


@dataclass(frozen=True)
class Scenario:
    """A fleet, and what happens to it: at `shift_s` others become hungry, at `churn_s` a tenth is killed and as many
    are started, at `crowd_s` every instance wants all."""

    name: str
    instances: int
    groups: int
    groups_each: int
    partitions: int
    seconds: int
    shift_s: int
    churn_s: int
    crowd_s: int


SCENARIOS: Final = (
    Scenario("10 instances, 1 group", 10, 1, 1, 1, 100, 20, 45, 75),
    Scenario("1 000 instances, 100 groups", 1000, 100, 1, 16, 100, 20, 45, 75),
    Scenario("1 000 instances, 1 group", 1000, 1, 1, 1, 120, 40, 70, 90),
    Scenario("10 000 instances, 1 000 groups", 10_000, 1000, 2, 200, 46, 16, 26, 38),
)


@dataclass
class Result:
    """What came of it. Rates are means over all groups, as fractions of what could be used."""

    scenario: Scenario
    wall_s: float = 0.0
    per_second: list[float] = field(default_factory=list)
    most_held: float = 0.0
    """The largest sum of what was held of any group, over the limit; 0.99 is the capacity."""
    shift_s: float | None = None
    """Seconds from the shift until 95 % of what can be used is used."""
    crowd_s: float | None = None
    records_per_s: float = 0.0
    bytes_per_day: float = 0.0
    jain_crowd: float = 0.0
    """Of the shares in one group at the end, when all are hungry: the least over all groups."""


class Site:
    """One simulated fleet."""

    def __init__(self, scenario: Scenario, seed: int = 1) -> None:
        self.scenario = scenario
        self.chance = random.Random(seed)
        self.timing = Timing()
        self.views = [View(self.timing) for _ in LAGS]
        self.members: dict[int, tuple[Fleet, int]] = {}
        self.groups_of: dict[int, list[int]] = {}
        self.want: dict[tuple[int, int], float] = {}
        self.level: dict[tuple[int, int], float] = {}
        self.names = [self.chance.getrandbits(64) for _ in range(scenario.groups)]
        self.queue: list[tuple[int, int, Record]] = []
        self.place = [0] * len(LAGS)
        self.now = 0.0
        self.records = self.bytes = 0
        for number in range(scenario.instances):
            self.start(number)

    def start(self, number: int) -> int:
        """One more instance; its groups are drawn so that all groups have about as many."""
        scenario, chance = self.scenario, self.chance
        member = chance.getrandbits(64)
        lag = number % len(LAGS)
        fleet = Fleet(
            SEAL, member, f"i{number}", self.now + chance.random() * 1000, timing=self.timing, view=self.views[lag]
        )
        fleet.connected(scenario.partitions)
        first = number * scenario.groups_each
        mine = [self.names[(first + place) % scenario.groups] for place in range(scenario.groups_each)]
        for group in mine:
            fleet.join(group, self.now)
            self.want[member, group] = self.level[member, group] = 0.0
        self.members[member] = (fleet, lag)
        self.groups_of[member] = mine
        return member

    def hungry(self, part: float) -> None:
        """This part of all instances wants everything, the others a twentieth of what would be fair."""
        fair = self.scenario.groups / (self.scenario.instances * self.scenario.groups_each)
        for member, groups in self.groups_of.items():
            wants = 2.0 if self.chance.random() < part else fair / 20
            for group in groups:
                self.want[member, group] = wants

    def step(self, sample: bool) -> None:
        """A quarter of a second."""
        self.now += TICK_MS
        tick = int(self.now // TICK_MS)
        for lag, view in enumerate(self.views):
            end = self.place[lag]
            while end < len(self.queue) and self.queue[end][0] <= tick - LAGS[lag]:
                _, partition, record = self.queue[end]
                view.take(partition, record, self.now)
                owner = self.members.get(record.member)
                if owner is not None and owner[1] == lag:
                    owner[0].came_back(partition, record, self.now)
                end += 1
            self.place[lag] = end
        done = min(self.place)
        if done > 200_000:
            del self.queue[:done]
            self.place = [place - done for place in self.place]
        for member, (fleet, _) in self.members.items():
            if sample:
                for group in self.groups_of[member]:
                    share = fleet.share(group)
                    want = self.want[member, group]
                    usage = min(want, share)
                    level = self.level[member, group] = 0.95 * self.level[member, group] + 0.05 * usage
                    fleet.sample(group, usage * 1e6, usage, level, want > share, self.now)
            for partition, data in whole(fleet.steps(self.now)):
                self.queue.append((tick, partition, decode(SEAL, partition, data)))
                self.records += 1
                self.bytes += len(data) + OVERHEAD_BYTES

    def kill(self, part: float) -> None:
        """kill -9 of a part of them, and as many new ones."""
        gone = [member for member in self.members if self.chance.random() < part]
        for number, member in enumerate(gone):
            del self.members[member]
            for group in self.groups_of.pop(member):
                del self.want[member, group], self.level[member, group]
            self.start(number)

    def used(self) -> tuple[float, float]:
        """What is used over what could be, a mean over the groups; and the most that is held of a group."""
        used: dict[int, float] = {}
        could: dict[int, float] = {}
        held: dict[int, float] = {}
        for member, (fleet, _) in self.members.items():
            for group in self.groups_of[member]:
                share, want = fleet.share(group), self.want[member, group]
                used[group] = used.get(group, 0.0) + min(share, want)
                could[group] = could.get(group, 0.0) + want
                held[group] = held.get(group, 0.0) + share - fleet.floor
        parts = [min(used[group] / min(could[group], 1.0), 1.0) for group in used if could[group]]
        return sum(parts) / max(len(parts), 1), max(held.values())

    def jain(self) -> float:
        """Jain's index of the shares, of the group in which it is least."""
        shares: dict[int, list[float]] = {}
        for member, (fleet, _) in self.members.items():
            for group in self.groups_of[member]:
                shares.setdefault(group, []).append(fleet.share(group))
        return min(map(jain, shares.values()))


def simulate(scenario: Scenario) -> Result:
    """Run one scenario."""
    result, site = Result(scenario), Site(scenario)
    start = time.monotonic()
    site.hungry(0.3)
    for quarter in range(scenario.seconds * 4):
        second = quarter / 4
        if second == scenario.shift_s:
            site.hungry(0.3)
        if second == scenario.churn_s:
            site.kill(0.1)
            site.hungry(0.3)
        if second == scenario.crowd_s:
            site.hungry(1.0)
        if second == 10:
            site.records = site.bytes = 0
        site.step(sample=quarter % 2 == 0)
        used, held = site.used()
        result.most_held = max(result.most_held, held)
        if quarter % 4 == 3:
            result.per_second.append(round(used, 4))
        for name, began in (("shift_s", scenario.shift_s), ("crowd_s", scenario.crowd_s)):
            if second >= began + 0.5 and getattr(result, name) is None and used >= 0.95:
                setattr(result, name, second - began + 0.25)
    measured_s = scenario.seconds - 10
    result.wall_s = round(time.monotonic() - start, 1)
    result.records_per_s = round(site.records / measured_s, 1)
    result.bytes_per_day = round(site.bytes / measured_s * 86_400)
    result.jain_crowd = round(site.jain(), 4)
    return result


def main() -> None:
    """Run the scenarios that are named, or all."""
    parser = argparse.ArgumentParser(description="The split of fleet limits on a simulated clock.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("scenario", nargs="*", type=int, help="numbers, from 0 on")
    wanted = parser.parse_args()
    results: list[dict[str, Any]] = []
    if wanted.out is not None and wanted.out.exists():
        results = json.loads(wanted.out.read_text())
    for number in wanted.scenario or range(len(SCENARIOS)):
        result = simulate(SCENARIOS[number])
        assert result.most_held <= CAPACITY + 1e-9, result.most_held
        name = result.scenario.name
        results = [one for one in results if one["scenario"]["name"] != name] + [asdict(result)]
        print(json.dumps({name: value for name, value in asdict(result).items() if name != "per_second"}), flush=True)
        print(" ".join(f"{value:.2f}" for value in result.per_second), flush=True)
        if wanted.out is not None:
            wanted.out.write_text(stored.text(results))


if __name__ == "__main__":
    main()
