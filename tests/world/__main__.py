"""`python -m tests.world`: worlds of many seeds, until one of them shows a property that does not hold."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.world.properties import Violation
from tests.world.script import Script, draw
from tests.world.world import World


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0, help="simulated, of each world's traffic")
    parser.add_argument("--direct", action="store_true", help="the same worlds without kquota")
    options = parser.parse_args()
    began_s = time.monotonic()
    faults: Counter[str] = Counter()
    hours = 0.0
    for seed in range(options.seed, options.seed + options.seeds):
        script = draw(seed, options.minutes * 60)
        world = World(script, direct=options.direct)
        try:
            world.run()
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return 1
        faults += world.faults
        hours += script.seconds / 3600
    took_s = time.monotonic() - began_s
    print(f"{options.seeds} seeds, {hours:.1f} simulated hours, {hours / took_s:.2f} hours per second, faults {dict(faults)}")
    return 0


_ = Script
sys.exit(main())
