"""Windows with spread bursts: KIP-599's earlier plan, its example, and a slow model of it."""

from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.burst import WindowedBurst
from quota.ledger import Ledger
from quota.table import QuotaTable


@pytest.mark.parametrize("wrong", ["num_samples", "mutation_num_samples", "mutation_window_ms"])
def test_windows_are_at_least_one_of_at_least_a_millisecond(wrong: str) -> None:
    with pytest.raises(ValueError, match="at least 1 sample"):
        Ledger(QuotaTable(), **{wrong: 0})


class SlowModel:
    """Every window since the beginning and some before it by number, in exact arithmetic; the last S of them count."""

    def __init__(self, num_samples: int, window_ms: int) -> None:
        self.num_samples, self.window_ms = num_samples, window_ms
        self.amounts: dict[int, Fraction] = defaultdict(Fraction)
        self.origin_ms: int | None = None

    def latest(self, now: int) -> list[int]:
        if self.origin_ms is None:
            self.origin_ms = now
        number = (now - self.origin_ms) // self.window_ms
        return list(range(number - self.num_samples + 1, number + 1))

    def left(self, rate: Fraction, now: int) -> Fraction:
        used = sum((self.amounts[number] for number in self.latest(now)), Fraction(0))
        return rate * self.num_samples * self.window_ms / 1000 - used

    def record(self, amount: Fraction, rate: Fraction, now: int) -> None:
        *earlier, current = self.latest(now)
        for number in earlier:
            more = min(max(rate * self.window_ms / 1000 - self.amounts[number], Fraction(0)), amount)
            self.amounts[number] += more
            amount -= more
        self.amounts[current] += amount

    def give_back(self, amount: Fraction, now: int) -> None:
        for number in reversed(self.latest(now)):
            less = min(self.amounts[number], amount)
            self.amounts[number] -= less
            amount -= less


EVENTS = st.tuples(st.integers(0, 5000), st.integers(-30, 200), st.sampled_from([1, 2, 5, 0.5, 7.25]))


@given(st.integers(1, 12), st.sampled_from([1, 250, 1000, 3000]), st.lists(EVENTS, max_size=40))
def test_burst_agrees_with_slow_model(num_samples: int, window_ms: int, events: list[tuple[int, int, float]]) -> None:
    windows, model = WindowedBurst(num_samples, window_ms), SlowModel(num_samples, window_ms)
    now = 0
    for pause_ms, amount, rate in events:
        now += pause_ms
        exact = Fraction(rate)
        before = model.left(exact, now)
        assert windows.peek(rate, now) == pytest.approx(float(before), abs=1e-6)
        left = windows.take(amount, rate, now)
        if amount >= 0:
            model.record(Fraction(amount), exact, now)
        else:
            model.give_back(Fraction(-amount), now)
        assert left == pytest.approx(float(model.left(exact, now)), abs=1e-6)
        assert left <= windows.burst(rate) + 1e-6
