"""The replay of `whatif`: to the millisecond what `kquota simulate` says of the same seconds."""

import json
import random
from typing import Any

import numpy as np
import pytest

from analysis.replay import Rule, ordered, replay
from config.load import load_bytes
from proxy.app.cli.simulate import run as simulate

Spread = list[tuple[int, int, float, float]]
"""Group, start in ms, duration in s, amount."""


def traffic(dice: random.Random, shape: str, groups: int, count: int) -> Spread:
    """Intervals as sidecars write them, of one `shape`, with bursts, idle stretches and pauses."""
    rows: Spread = []
    for group in range(groups):
        at_ms = 1_760_918_400_000 + dice.randrange(5000)
        for number in range(count):
            mixed = dice.choice((1.0, 3.0, 10.0, 45.0))
            length = {"ten": 10.0, "minutes": 300.0, "seconds": 1.0, "mixed": mixed}[shape]
            duration_s = length if dice.random() < 0.3 else max(length + dice.choice((-0.6, -0.004, 0.003, 0.4)), 0.2)
            rate = dice.choice((0, 0, 400, 900, 1000, 1200, 5000 if dice.random() < 0.3 else 300))
            amount = rate * duration_s if dice.random() < 0.5 else float(round(rate * duration_s))
            rows.append((group, at_ms, duration_s, amount))
            at_ms += round(duration_s * 1000)
            if dice.random() < 0.08:
                at_ms += dice.choice((200, 1000, 11_500, 40_000))
            if shape == "mixed" and number == count // 2 and group == 0:
                at_ms -= 7300  # a clock that is set back
    return rows


def simulated(config: str, kind: str, rows: Spread) -> dict[int, tuple[int, int, float]]:
    """By group: how many seconds were over, the longest delay, and the worst rate or fewest tokens."""
    lines = []
    seconds: list[tuple[int, int, int, float]] = []
    for group, start_ms, duration_s, amount in rows:
        steps = max(int(duration_s + 0.5), 1)
        seconds += [(start_ms + step * 1000, step, group, amount / steps) for step in range(steps)]
    for t_ms, _, group, amount in sorted(seconds):
        event = {"t_ms": t_ms, "kind": kind, "client_id": f"g{group}", "amount": amount}
        lines.append(json.dumps(event | ({"strict": False} if kind == "mutation" else {})).encode())
    answer: dict[int, tuple[int, int, float]] = {}
    extreme = min if kind == "mutation" else max
    for good, result in simulate(load_bytes("q.yaml", config.encode()), lines):
        assert good, result
        if result["throttle_ms"] > 0:
            group = int(result["client_id"][1:])
            number, longest, worst = answer.get(group, (0, 0, result["observed"]))
            answer[group] = (number + 1, max(longest, result["throttle_ms"]), extreme(worst, result["observed"]))
    return answer


WINDOWS = [(11, 1), (5, 1), (4, 2), (3, 7), (2, 1), (1, 1)]


def same(rule: Rule, rows: Spread, limits: Any, setting: str, kind: str, **windows: int | str) -> int:
    """The replay finds what `simulate` says, under each group's limits in turn; how many seconds were over."""
    groups, starts, lengths, amounts = map(np.array, zip(*random.Random(1).sample(rows, len(rows)), strict=True))
    outcome = [
        replay(rule, ordered(starts[mine], lengths[mine].astype(float), amounts[mine].astype(float)), limits[group])
        for group, mine in ((group, groups == group) for group in range(3))
    ]
    held = 0
    for place in range(len(limits[0])):
        entries = ", ".join(f"{{client-id: g{g}, {setting}: {limits[g][place]}}}" for g in range(3))
        head = "".join(f"{name}: {value}\n" for name, value in windows.items())
        expected = simulated(f'{head}upstream: {{bootstrap: ["k:9092"]}}\nquotas: [{entries}]\n', kind, rows)
        for group in range(3):
            number, longest, extreme = expected.get(group, (0, 0, 0.0))
            found = outcome[group][place]
            assert found.seconds == number, (group, place)
            assert found.longest_ms == longest, (group, place)
            assert found.extreme == pytest.approx(extreme, rel=1e-12)
            held += number
    return held


@pytest.mark.parametrize(("num_samples", "window_s"), WINDOWS)
@pytest.mark.parametrize("shape", ["ten", "minutes", "seconds", "mixed"])
def test_replays_intervals_as_simulates_seconds(shape: str, num_samples: int, window_s: int) -> None:
    """Pruned, with the middles of long intervals left out; the delays are the same to the millisecond."""
    dice = random.Random(f"{shape} {num_samples} {window_s}")
    rows = traffic(dice, shape, 3, {"ten": 60, "minutes": 9, "seconds": 200, "mixed": 60}[shape])
    limits = [[dice.choice((300, 777)), 950, 1400] for _ in range(3)]
    window = {"quota.window.num": num_samples, "quota.window.size.seconds": window_s}
    rule = Rule(num_samples, window_s * 1000)
    assert same(rule, rows, limits, "producer_byte_rate", "produce", **window) > 100


@pytest.mark.parametrize("algorithm", ["token_bucket", "windowed_burst"])
@pytest.mark.parametrize("shape", ["ten", "minutes", "mixed"])
def test_replays_partitions_as_simulate(shape: str, algorithm: str) -> None:
    dice = random.Random(f"{shape} {algorithm}")
    rows = [
        (g, t, d, float(dice.randrange(60 if d < 100 else 2000)) if dice.random() < 0.2 else 0.0)
        for g, t, d, _ in traffic(dice, shape, 3, 20 if shape == "minutes" else 40)
    ]
    rule = Rule(5, 1000, tokens=algorithm)  # type: ignore[arg-type]
    more: dict[str, int | str] = {"controller.quota.window.num": 5, "controller_mutation_algorithm": algorithm}
    limits = [[0.3, 1.25], [0.7, 16.0], [1e6, 1e7]]
    assert same(rule, rows, limits, "controller_mutation_rate", "mutation", **more) >= 1
