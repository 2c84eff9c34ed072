"""What a fleet costs the data path: CPU per request with 100 groups of a fleet in use, next to sidecars without one.

    python -m benchmarks.suites.fleet_cost [--out FILE]

Four sidecars at the same requests at the same time: two without a fleet, whose ratio is the spread, and two of one
fleet, which share the limits of 100 client-ids. Each request goes by another sidecar than the one before.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.report import stored
from benchmarks.rig.procstat import cpu_s
from benchmarks.rig.rawclient import Wire, drive
from benchmarks.rig.topics import create_topics
from tests.lab.kafka import KafkaCluster
from tests.support.sidecars import Sidecar, sidecar

TOPIC: Final = "cost"

GROUPS: Final = 100
LOW_PER_S: Final = 400.0
HIGH_PER_S: Final = 2400.0
"""Requests of all sidecars together, at two rates: what a request costs is the slope between them, and what is spent
without any the line's beginning. At the lower one each of the groups is used once a second."""
ROUND_S: Final = 10.0
ROUNDS: Final = 5
NAMES: Final = ("plain", "plain too", "fleet", "fleet too")


class Line(NamedTuple):
    """What a sidecar's CPU is made of."""

    slope_us: float
    """Per request."""
    background_percent: float
    """Of a core, whatever there is to do."""


def run() -> dict[str, Any]:
    """CPU per request and without any, of each sidecar and round."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster.start(1, progress=print))
        create_topics(kafka.bootstrap, {TOPIC: {}})
        quotas = [{"client-id": "<default>", "producer_byte_rate": 100_000_000}]
        sidecars = sidecars_of_a_fleet(kafka.bootstrap, quotas, [name.startswith("fleet") for name in NAMES], stack)
        ways = [[wire_of(one, f"client-{group:03d}", stack) for group in range(GROUPS)] for one in sidecars]
        wires = [way[number] for number in range(GROUPS) for way in ways]
        drive(wires, LOW_PER_S, 8.0, 5.0)  # the topic is made, shares are found
        rounds = []
        for _ in range(ROUNDS):
            low, high = (percent(wires, rate, ROUND_S, sidecars) for rate in (LOW_PER_S, HIGH_PER_S))
            rounds.append([_line(one, other) for one, other in zip(low, high, strict=True)])
            print(rounds[-1], flush=True)
        groups = sum(one["fleet"] is not None for one in sidecars[2].get("/quotas")["groups"])
        slopes = [[one.slope_us for one in found] for found in rounds]
        backgrounds = [[one.background_percent for one in found] for found in rounds]
        return {
            "groups": groups,
            "microseconds_per_request": dict(zip(NAMES, zip(*slopes, strict=True), strict=True)),
            "spread": round(statistics.median(one[1] / one[0] for one in slopes), 3),
            "ratio": round(statistics.median((one[2] + one[3]) / (one[0] + one[1]) for one in slopes), 3),
            "background_cpu_percent": dict(zip(NAMES, zip(*backgrounds, strict=True), strict=True)),
            "background_of_the_fleet_percent": round(
                statistics.median((one[2] + one[3] - one[0] - one[1]) / 2 for one in backgrounds), 2
            ),
        }


def sidecars_of_a_fleet(
    bootstrap: Sequence[str],
    quotas: Sequence[Mapping[str, Any]],
    in_fleet: Sequence[bool],
    stack: ExitStack,
    **fleet: Any,
) -> list[Sidecar]:
    """A sidecar for each, some of which share their limits."""
    found = []
    for shares in in_fleet:
        more: dict[str, Any] = {"fleet": {"default_scope": "fleet", **fleet}} if shares else {}
        found.append(stack.enter_context(sidecar(bootstrap, quotas, before=(), log={"format": "json"}, **more)))
    return found


def wire_of(one: Sidecar, client_id: str, stack: ExitStack) -> Wire:
    """A connection of this client."""
    wire = Wire(("127.0.0.1", one.port), TOPIC, client_id=client_id)
    stack.callback(wire.close)
    return wire


def percent(wires: Sequence[Wire], rate_per_s: float, seconds: float, sidecars: Sequence[Sidecar]) -> list[float]:
    """CPU of each sidecar while there are so many requests per second, in percent of a core."""
    before = [cpu_s(one.pid) for one in sidecars]
    drive(wires, rate_per_s, seconds, 5.0)
    return [(cpu_s(one.pid) - was) / seconds * 100 for one, was in zip(sidecars, before, strict=True)]


def _line(low_percent: float, high_percent: float) -> Line:
    """The line through two rates: 1 % of a core is 10 000 µs per second, shared by the requests that one had more."""
    low, high = LOW_PER_S / len(NAMES), HIGH_PER_S / len(NAMES)
    slope_us = (high_percent - low_percent) * 10_000 / (high - low)
    return Line(round(slope_us, 2), round(low_percent - slope_us * low / 10_000, 3))


def main() -> None:
    """Run it and print it."""
    parser = argparse.ArgumentParser(description="CPU per request with a fleet's limits.")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    result = run()
    print(json.dumps(result))
    if wanted.out is not None:
        wanted.out.write_text(stored.text(result))


if __name__ == "__main__":
    main()
