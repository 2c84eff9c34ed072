"""Where there is no atheris: the same inputs and invariants, mutated without knowing what is reached. Says so."""

from __future__ import annotations

import random
import sys
import time
import traceback
from pathlib import Path

INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF)


def main(name: str, arguments: list[str]) -> None:
    """Run a target; understands those of libFuzzer's arguments that the driver gives, and speaks as it does."""
    from tests.fuzz.targets import TARGETS

    flags = dict(each[1:].split("=", 1) for each in arguments if each.startswith("-"))
    directories = [Path(each) for each in arguments if not each.startswith("-")]
    inputs = [path.read_bytes() for directory in directories for path in sorted(directory.iterdir())] or [b""]
    print("INFO: no atheris on this platform, mutating blindly", file=sys.stderr)
    rng = random.Random()
    ends = time.monotonic() + float(flags["max_total_time"])
    limit, runs, done = int(flags["max_len"]), int(flags["atheris_runs"]), 0
    while done != runs and time.monotonic() < ends:
        data = mutated(rng, inputs)[:limit]
        try:
            TARGETS[name].run(data)
        except Exception:
            kept = Path(flags["artifact_prefix"] + f"crash-{done}")
            kept.write_bytes(data)
            print(f"=== Uncaught Python exception: ===\n{traceback.format_exc()}\nTest unit written to {kept}")
            sys.exit(77)
        done += 1
    print(f"#{done} DONE cov: 0 ft: 0 corp: {len(inputs)}\nDone {done}")


def mutated(rng: random.Random, inputs: list[bytes]) -> bytes:
    data = bytearray(rng.choice(inputs))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[at % len(data)] = rng.choice((*INTERESTING, rng.randrange(256)))
        elif kind == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            data[at : at + 4] = rng.choice((0, -1, 2**31 - 1, len(data), 1)).to_bytes(4, "big", signed=True)
        else:
            other = rng.choice(inputs)
            data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)
