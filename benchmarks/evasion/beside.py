"""Is an honest client of another group slower next to an attack? One attack after another, with rests between them.

All attacks at the same time would keep the two cores of a small machine busy with themselves, and every client
would be slow. The rests before and after all of them are what the client has alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.evasion.neighbour import WAYS
from benchmarks.evasion.rows import Row
from benchmarks.evasion.run import WINDOW_NUM, child, line_of, tell, work_of
from benchmarks.evasion.stage import NEIGHBOUR, Stage, sidecars
from benchmarks.report.stats import percentile

SLOWED = 1.5
"""The neighbour's p99 next to an attack is at most so many times that of alone."""
WARM_S, ALONE_S, BESIDE_S = 6.0, 6.0, 10.0
BEGIN_S = 1.0
"""The attackers have begun."""
ATTACKS = (
    "p4-reconnect", "p30-impatient", "p200-persistent", "p200-reconnect", "p4-acks-0-reconnect", "p4-tls",
    "b1-20mb-persistent", "s4-scram256", "f30-v17-persistent", "f30-v4-reconnect", "r4-reconnect", "m4-old",
)  # fmt: skip
"""Of each kind one; the many connections, which cost the sidecar most."""


@dataclass
class Beside:
    """The neighbour next to one attack."""

    row: Row
    beside: dict[str, list[float]] = field(default_factory=dict)
    """Sorted latencies in ms by way."""
    failures: list[str] = field(default_factory=list)


@dataclass
class Neighbour:
    """All of it."""

    alone: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    """Sorted latencies in ms by way, of all rests together."""
    attacks: list[Beside] = field(default_factory=list)

    def figures(self, one: Beside | None = None) -> dict[str, tuple[float, float, int]]:
        """(p50, p99, number) by way; alone without `one`."""
        kept = self.alone if one is None else one.beside
        return {way: (percentile(found, 50), percentile(found, 99), len(found)) for way, found in kept.items() if found}

    def times(self, one: Beside) -> tuple[float, float] | None:
        """The p99 next to it over that of alone, by way of the sidecar and straight to the broker."""
        alone, beside = self.figures(), self.figures(one)
        if len(alone) < len(WAYS) or len(beside) < len(WAYS):
            return None
        by_sidecar, straight = (beside[way][1] / alone[way][1] for way in WAYS)
        return by_sidecar, straight

    def slowed(self, one: Beside) -> bool:
        """Is p99 next to it more than `SLOWED` times that of alone, by more than the way without sidecar is?"""
        times = self.times(one)
        return bool(one.failures) or times is None or times[0] > SLOWED * max(times[1], 1.0)

    def in_words(self, one: Beside) -> str:
        """A line for the terminal."""
        alone, beside, times = self.figures(), self.figures(one), self.times(one)
        if times is None:
            return f"FAIL neighbour next to {one.row.name}: no figures; {one.failures[:2]}"
        said = "; ".join(
            f"{way}: p50 {alone[way][0]:.2f} -> {beside[way][0]:.2f} ms, p99 {alone[way][1]:.2f} -> "
            f"{beside[way][1]:.2f} ms ({ratio:.2f} times)"
            for way, ratio in zip(WAYS, times, strict=True)
        )
        failures = f"; {len(one.failures)} times it was not answered" if one.failures else ""
        return f"{'FAIL' if self.slowed(one) else 'PASS'} neighbour next to {one.row.name}: {said}{failures}"


def run(
    on: Stage,
    rows: Sequence[Row],
    say: Callable[[str], None],
    *,
    alone_s: float = ALONE_S,
    beside_s: float = BESIDE_S,
    settings: dict[str, Any] | None = None,
) -> Neighbour:
    """Attack after attack, through the same sidecars."""
    prefix = f"n{len(on.prepared)}-"
    ids = on.prepare(rows, prefix)
    found = Neighbour()
    say(f"a neighbour next to {len(rows)} attacks, one after another, {alone_s + beside_s:g} s each ...")
    with sidecars(on, {prefix: rows}, owners={}, window_num=WINDOW_NUM, settings=settings) as running:
        neighbour([("127.0.0.1", running["plain"].port), on.broker("plain")], WARM_S)  # a JVM begins slowly
        for row in rows:
            work = work_of(on, [row], beside_s + 2 * BEGIN_S, prefix, ids, {}, running)
            ways = [work["doors"]["plain"], on.broker("plain")]
            with child("attackers", work) as attackers:
                line_of(attackers)
                rest = neighbour(ways, alone_s)
                for way in WAYS:
                    found.alone[way] += rest[way]
                tell(attackers, "go")
                time.sleep(BEGIN_S)
                answer = neighbour(ways, beside_s)
                line_of(attackers)
            found.attacks.append(Beside(row, {way: sorted(answer[way]) for way in WAYS}, answer["failures"]))
    for kept in found.alone.values():
        kept.sort()
    for one in found.attacks:
        say(found.in_words(one))
    return found


def neighbour(ways: list[tuple[str, int]], seconds: float) -> dict[str, Any]:
    """Its latencies by way, and its failures."""
    with child("neighbour", {"addresses": ways, "topic": NEIGHBOUR, "seconds": seconds}) as process:
        return dict(json.loads(line_of(process)))
