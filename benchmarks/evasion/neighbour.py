"""An honest client of another group: small requests at a steady rate, by way of the sidecar and straight to the broker.

In a process of its own, `python -m benchmarks.evasion.neighbour`: work on stdin as JSON, latencies on stdout. The two
ways take turns, so that what the machine and the broker do to both can be told from what the sidecar does.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.report.stats import percentile
from benchmarks.rig.rawclient import BenchmarkRequestError, side_by_side

PER_S = 100.0
SLICE_S = 5.0


def measure(addresses: list[tuple[str, int]], topic: str, seconds: float) -> dict[str, list[float]]:
    """p50 and p99 in ms and the number of requests by each way; slices, so that one bad moment does not end it all."""
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
            kept += one.latencies_s
    result: dict[str, list[float]] = {"failures": failures}  # type: ignore[dict-item]
    for name, kept in zip(("sidecar", "broker"), latencies, strict=True):
        kept.sort()
        result[name] = [1000 * percentile(kept, share) for share in (50, 99)] + [len(kept)] if kept else []
    return result


def main() -> int:
    """The command."""
    work = json.loads(sys.stdin.readline())
    addresses = [tuple(address) for address in work["addresses"]]
    print(json.dumps(measure(addresses, work["topic"], work["seconds"])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
