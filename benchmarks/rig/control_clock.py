"""`kquota run` with a clock in its event loop: a task that wants to be woken each millisecond and notes when it was.

`python -m benchmarks.rig.control_clock CONFIG NOTES`: the moments go to the file NOTES when the sidecar ends, one
double after the other, in seconds of the monotonic clock. Some milliseconds between two of them are a pause that
everything in the event loop has had.
"""

from __future__ import annotations

import sys
import time
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

import proxy.app.run as run

EVERY_S = 0.001


def main(config: Path, notes: Path) -> int:
    """Run the sidecar until it is told to end."""
    woken = array("d")
    original = run.run_sidecar

    async def clock() -> None:
        while True:
            woken.append(time.monotonic())
            await trio.sleep(EVERY_S)

    async def clocked(*arguments: Any, **named: Any) -> run.Sidecar:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock)
            sidecar = await original(*arguments, **named)
            nursery.cancel_scope.cancel()
        return sidecar

    run.run_sidecar = clocked
    try:
        return run.main(config)
    finally:
        notes.write_bytes(woken.tobytes())


def pauses_ms(notes: Path) -> list[tuple[float, float]]:
    """(when it ended, how long it was beyond what was asked for) for all that was noted."""
    woken = array("d")
    woken.frombytes(notes.read_bytes())
    return [(after, (after - before - EVERY_S) * 1000) for before, after in pairwise(woken)]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
