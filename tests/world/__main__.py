"""`python -m tests.world`: worlds of many seeds, until one of them shows a property that does not hold."""

import argparse
import gc
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.report.stored import text
from tests.world import mutations, search
from tests.world.properties import Violation
from tests.world.script import Script, draw, shrink
from tests.world.world import World


@dataclass
class Tally:
    """What was simulated."""

    seeds: int = 0
    hours: float = 0.0  # of traffic
    calls: int = 0
    acknowledged: int = 0
    worst: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, world: World) -> None:
        self.seeds += 1
        self.hours += world.script.seconds / 3600
        self.calls += world.clock.calls
        self.acknowledged += world.judge.acknowledged_batches
        self.worst = max([self.worst, *(meter.worst for meter in world.judge.meters.values())])
        self.faults += world.faults

    def stored(self, took_s: float) -> dict[str, Any]:
        """For `benchmarks/results`."""
        speed = {"seconds": round(took_s), "hours_per_second": self.hours / took_s, "load": os.getloadavg()[0]}
        return asdict(self) | {"hours": round(self.hours, 1), "faults": dict(sorted(self.faults.items()))} | speed

    def text(self, took_s: float) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.seeds} seeds held, {self.hours:.1f} simulated hours, {self.hours / took_s:.2f} hours per second, "
            f"{self.acknowledged} batches acknowledged, highest rate {self.worst:.3f} of a limit; faults: {faults}"
        )


def play(script: Script, tally: Tally | None = None) -> Violation | None:
    """The property that does not hold in a world, if any."""
    world = World(script)
    try:
        world.run()
    except Violation as violation:
        return violation
    except Exception as error:
        return Violation("internal", f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    if tally is not None:
        tally.add(world)
    return None


def fails(name: str, script: Script) -> bool:
    found = play(script)
    return found is not None and found.name == name


def command(script: Script, minutes: float) -> str:
    parts = [f"--seed {script.seed} --seeds 1 --minutes {minutes:g} --end {script.seconds:g}"]
    for name in ("clients", "faults"):
        kept: dict[int, Any] = getattr(script, name)
        parts.append(f"--{name} {','.join(map(str, kept)) or 'none'}")
    return "make world WORLD_ARGS='" + " ".join(parts) + "'"


def _numbers(text: str) -> set[int]:
    return set() if text == "none" else {int(one) for one in text.split(",")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0, help="simulated, of each world's traffic")
    parser.add_argument("--end", type=float, help="stop the traffic after so many seconds")
    parser.add_argument("--clients", type=_numbers, help="these alone")
    parser.add_argument("--faults", type=_numbers, help="these alone")
    parser.add_argument("--no-shrink", action="store_true", help="report a failure as it is")
    parser.add_argument("--hours", type=float, default=inf, help="simulated; end once so many have held")
    parser.add_argument("--store", type=Path, metavar="FILE", help="write what was simulated, from time to time")
    parser.add_argument("--search", action="store_true", help="all orders of a fleet's actions, within bounds")
    parser.add_argument("--mutations", action="store_true", help="plant bugs, one after the other, and find them")
    options = parser.parse_args()
    if options.mutations:
        missed = False
        for name, seconds, found in mutations.play():
            missed = missed or not found
            print(f"{seconds:6.1f} s  {name}: {found or 'NOT FOUND'}", flush=True)
        return int(missed)
    if options.search:
        for name, bounds in search.SEARCHES.items():
            began_s = time.monotonic()
            print(f"{name}: {search.search(bounds)} states, {time.monotonic() - began_s:.0f} s", flush=True)
        return 0
    gc.set_threshold(50_000, 20, 20)  # a world ends within seconds: a tenth less time
    tally, began_s = Tally(), time.monotonic()
    for seed in range(options.seed, options.seed + options.seeds):
        script = draw(seed, options.minutes * 60).only(options.clients, options.faults)
        if options.end:
            script = replace(script, seconds=options.end)
        violation = play(script, tally)
        if violation is not None:
            tally.failures.append(f"seed {seed}: {violation}")
            print(f"seed {seed}: {violation}\n  {command(script, options.minutes)}", flush=True)
            if not options.no_shrink:
                smallest = shrink(script, partial(fails, violation.name))
                print(f"  shrunk: {play(smallest)}\n  {command(smallest, options.minutes)}", flush=True)
            break
        if options.store and seed % 10 == 9:
            options.store.write_text(text(tally.stored(time.monotonic() - began_s)))
        if tally.hours >= options.hours:
            break
    if options.store:
        options.store.write_text(text(tally.stored(time.monotonic() - began_s)))
    print(tally.text(time.monotonic() - began_s))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
