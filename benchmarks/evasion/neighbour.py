"""An honest client of another group: small requests at a steady rate, by way of the sidecar and straight to the broker.

In a process of its own, `python -m benchmarks.evasion.neighbour`: work on stdin as JSON, latencies on stdout. The two
ways take turns, so that what the machine and the broker do to both can be separated from what the sidecar does.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.rig.rawclient import BenchmarkRequestError, side_by_side

PER_S = 100.0
SLICE_S = 5.0
WAYS = ("sidecar", "broker")


def measure(addresses: list[tuple[str, int]], topic: str, seconds: float) -> dict[str, Any]:
    """Latencies in ms by each way; slices, so that one bad moment does not end it all."""
    latencies: list[list[float]] = [[] for _ in addresses]
    failures: list[str] = []
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 1.0:
        try:
            found = side_by_side(addresses, topic, rate_per_s=PER_S, seconds=min(left, SLICE_S), connections=1)
        except (BenchmarkRequestError, OSError) as error:
            failures.append(repr(error))
            continue
        for kept, one in zip(latencies, found, strict=True):
            kept += [round(1000 * latency, 3) for latency in one.latencies_s]
    return {"failures": failures, **dict(zip(WAYS, latencies, strict=True))}


def main() -> int:
    """The command."""
    work = json.loads(sys.stdin.readline())
    addresses = [tuple(address) for address in work["addresses"]]
    print(json.dumps(measure(addresses, work["topic"], work["seconds"])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
