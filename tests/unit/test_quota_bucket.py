"""The mutation quota: the token bucket against Kafka's numbers (TokenBucketTest, ControllerMutationQuotaTest: E), and
windows with spread bursts, KIP-599's earlier plan, against a slow model."""

from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.bucket import Mutation
from quota.burst import WindowedBurst
from quota.counter import MutationAlgorithm
from quota.entity import Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import kafka_ledger

OK = Mutation(True, 0)
VIOLATION = [(110, 10_000, OK), (110, 10_000, (False, 1000)), (110, 11_000, OK)]


@pytest.mark.parametrize(
    ("rate", "strict", "charges"),
    [
        # 10 tokens are >= 0, so accepted, and no delay for the request that overdraws; the next is not charged
        pytest.param(10, True, [(90, 0, OK), (90, 0, OK), (90, 0, (False, 8000)), (1, 5000, (False, 3000))], id="E4"),
        # always accepted, delayed as soon as the tokens are below zero
        pytest.param(10, False, [(90, 0, OK), (90, 0, (True, 8000)), (90, 0, (True, 17_000))], id="E5"),
        # ten times 10, one second apart: refilled each time; then 100 tokens -> -10, and exactly 0 is fine
        pytest.param(10, True, [(10, 1000 * second, OK) for second in range(10)] + VIOLATION, id="E6"),
        # -8; at 3900: -8 + 7.8 = -0.2 -> 100 ms; at 4000: -0.2 + 0.2, which is -1.7e-16 in doubles: refused with a
        # delay of 0, as a broker does
        pytest.param(2, True, [(28, 0, OK), (1, 3900, (False, 100)), (1, 4000, (False, 0)), (1, 4001, OK)], id="E24"),
        pytest.param(10, False, [(1e300, 0, (True, 2**31 - 1))], id="int32"),
    ],
)
def test_bucket_delays_are_kafkas(rate: float, strict: bool, charges: list[tuple[float, int, Mutation]]) -> None:
    ledger = kafka_ledger(Entry(user="u", controller_mutation_rate=rate), num_samples=10)  # burst 10 times that
    account = ledger.account("u", "c")
    for amount, now, answer in charges:
        assert ledger.charge_mutation(account, amount, strict, now) == answer


@pytest.mark.parametrize("algorithm", ["token_bucket", "windowed_burst"])
def test_use_without_a_limit_fills_the_bucket(algorithm: MutationAlgorithm) -> None:
    limited, other = (QuotaTable([Entry(user=user, controller_mutation_rate=10)]) for user in "uv")
    ledger = Ledger(limited, mutation_num_samples=10, mutation_algorithm=algorithm)
    account = ledger.account("u", "c")
    ledger.charge_mutation(account, 190, True, 0)
    ledger.swap(other)
    assert ledger.charge_mutation(account, 1, True, 500) == (True, 0)
    ledger.swap(limited)
    assert ledger.observed(account, Kind.MUTATION, 500) == 100


@pytest.mark.parametrize("wrong", ["num_samples", "mutation_num_samples", "mutation_window_ms"])
def test_windows_are_at_least_one_of_at_least_a_millisecond(wrong: str) -> None:
    with pytest.raises(ValueError, match="at least 1 sample"):
        Ledger(QuotaTable(), **{wrong: 0})  # type: ignore[arg-type]


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
