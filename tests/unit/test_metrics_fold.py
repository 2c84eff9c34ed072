"""Bounded labels: a client can invent names for ever, the exposition stays small, exact and monotonic."""

from __future__ import annotations

import random

from proxy.app.common.top_k import IDLE_MS, OTHER, Labels, TopKSeries, Totals, label

REST = (OTHER, OTHER)


def weight(gain: Totals) -> tuple[float, ...]:
    return (gain[0],)


class Clients:
    """A ledger of one total per client, and the fold of it."""

    def __init__(self, most: int) -> None:
        self.totals: dict[str, float] = {}
        self.fold: TopKSeries[str] = TopKSeries(most, 1, weight)

    def add(self, name: str, amount: float) -> None:
        self.totals[name] = self.totals.get(name, 0) + amount

    def forget(self, name: str) -> None:
        """The ledger forgets a client, and says so."""
        self.fold.forget(name, (name, "c"), (self.totals.pop(name),))

    def look(self, now_ms: float = 0) -> dict[Labels, float]:
        items = [(name, (name, "c"), (total,)) for name, total in self.totals.items()]
        for _ in self.fold.look(items, now_ms):
            pass
        return self.series()

    def series(self) -> dict[Labels, float]:
        return {labels: values[0] for labels, values in self.fold.series()}


def test_idle_series_give_way_after_15_minutes() -> None:
    clients = Clients(1)
    clients.add("old", 1)
    clients.look(0)
    clients.look(IDLE_MS * 10)
    assert clients.series() == {("old", "c"): 1}  # no client is waiting
    clients.add("new", 5)
    assert clients.look(IDLE_MS * 10) == {("new", "c"): 5, REST: 0}
    clients.add("old", 2)
    assert clients.look(IDLE_MS * 10 + 1) == {("new", "c"): 5, REST: 2}  # what it did before is not counted again
    clients.add("new", 1)
    assert clients.look(IDLE_MS * 10 + 2) == {("new", "c"): 6, REST: 2}


def test_counts_random_histories_once_and_monotonic() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        clients = Clients(4)
        ended = 0.0
        added = 0
        before: dict[Labels, float] = {}
        now_ms = 0.0
        for _ in range(60):
            for _ in range(rng.randrange(6)):
                amount = rng.randrange(1, 100)
                clients.add(f"u{rng.randrange(12)}", amount)
                added += amount
            now_ms += rng.choice((1000, 60_000, IDLE_MS))
            if rng.random() < 0.1 and clients.totals:  # the ledger forgets a client
                clients.forget(rng.choice(list(clients.totals)))
                before = clients.series()
            after = clients.look(now_ms)
            ended += sum(value for labels, value in before.items() if labels not in after)
            # One that ended and began within a single look shows as a smaller value: a counter reset, as Prometheus
            # knows it. Only ended series may do that, never `other`.
            assert after.get(REST, 0) >= before.get(REST, 0)
            for labels, value in before.items():
                if labels in after and after[labels] < value:
                    ended += value
            assert len(after) <= 5
            before = after
        assert sum(before.values()) + ended == added


def test_labels_are_short_and_valid() -> None:
    assert label("plain") == "plain"
    assert label("\ud800x") == "\\ud800x"
    long = label("a" * 32_000)
    assert len(long) == 120
    assert label("a" * 32_000 + "b") != long
    assert label("a" * 120) == "a" * 120
