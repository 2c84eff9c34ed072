"""The token bucket and the mutation quota against Kafka's numbers (TokenBucketTest, ControllerMutationQuotaTest: E)."""

from __future__ import annotations

import pytest

from quota.bucket import Mutation, TokenBucket, bucket_throttle_ms
from quota.counter import MutationAlgorithm
from quota.entity import Kind
from quota.ledger import Account, Ledger
from quota.table import Entry, QuotaTable


@pytest.mark.parametrize(
    "takes",
    [
        [(60, 0, 40), (5, 2000, 45), (60, 4000, -5)],  # E1
        [(-60, 0, 100), (60, 2000, 40), (-60, 4000, 100)],  # E2: never above the burst
    ],
    ids=["E1", "E2"],
)
def test_taking_and_giving_back_tokens(takes: list[tuple[int, int, int]]) -> None:
    bucket = TokenBucket(burst_s=20)  # rate 5, burst 10 samples x 2 s x 5 = 100
    assert bucket.measure(5, 0) == 100
    for amount, now, left in takes:
        assert bucket.take(amount, 5, now) == left


@pytest.mark.parametrize(("tokens", "throttle"), [(0, 0), (-5, 500), (-10, 1000), (3, 0), (-1e300, 2**31 - 1)])
def test_throttle_time(tokens: float, throttle: int) -> None:
    assert bucket_throttle_ms(tokens, 10) == throttle  # E3: rate 10


class Mutations:
    """One client under a mutation quota, with windows as the case says."""

    def __init__(self, rate: float, num_samples: int = 10, algorithm: MutationAlgorithm = "token_bucket") -> None:
        table = QuotaTable([Entry(user="u", controller_mutation_rate=rate)])
        self.ledger = Ledger(table, num_samples=num_samples, max_throttle_ms=None, mutation_algorithm=algorithm)
        self.account: Account = self.ledger.account("u", "c")

    def charge(self, amount: float, now: int, *, strict: bool = True) -> Mutation:
        return self.ledger.charge_mutation(self.account, amount, strict, now)

    def tokens(self, now: int) -> float:
        return self.ledger.observed(self.account, Kind.MUTATION, now)


@pytest.mark.parametrize(
    ("strict", "second", "third", "tokens", "later"),
    [
        # E4: 10 tokens are >= 0, so accepted, and no delay for the request that overdraws; the next is not charged
        (True, (True, 0), (False, 8000), -80, 3000),
        # E5: always accepted, delayed as soon as the tokens are below zero
        (False, (True, 8000), (True, 17_000), -170, 12_000),
    ],
    ids=["strict-E4", "permissive-E5"],
)
def test_strict_refuses_and_permissive_delays(
    strict: bool, second: Mutation, third: Mutation, tokens: int, later: int
) -> None:
    client = Mutations(10)  # burst 100
    assert [client.charge(90, 0, strict=strict) for _ in range(3)] == [(True, 0), second, third]
    assert client.tokens(0) == tokens
    assert client.ledger.check(client.account, Kind.MUTATION, 5000) == later


def test_bucket_violation_and_recovery() -> None:
    # E6: ten times 10, one second apart: refilled each time
    client = Mutations(10)
    assert [client.charge(10, t) for t in range(0, 10_000, 1000)] == [(True, 0)] * 10
    assert client.charge(110, 10_000) == (True, 0)  # 100 tokens -> -10
    assert client.charge(110, 10_000) == (False, 1000)
    assert client.charge(110, 11_000) == (True, 0)  # exactly 0 is fine


def test_floating_residue() -> None:
    # E24: rate 2, burst 22. 30 at 0 -> -8; at 3900: -8 + 7.8 = -0.2 -> 100 ms; at 4000: -0.2 + 0.2, which is
    # -1.7e-16 in doubles: refused with a delay of 0, as a broker does
    client = Mutations(2, num_samples=11)
    assert client.charge(30, 0) == (True, 0)
    assert [client.charge(1, now) for now in (3900, 4000, 4001)] == [(False, 100), (False, 0), (True, 0)]


def test_a_changed_rate_keeps_the_tokens_and_caps_them() -> None:
    client = Mutations(10)  # burst 100
    client.charge(50, 0)
    client.ledger.swap(client.ledger.table.with_entry(Entry(user="u", controller_mutation_rate=2)))
    assert client.tokens(0) == 20  # 50 tokens, burst now 20
    client.ledger.swap(client.ledger.table.with_entry(Entry(user="u", controller_mutation_rate=100)))
    assert client.tokens(0) == 50  # nothing touched the bucket in between


@pytest.mark.parametrize("algorithm", ["token_bucket", "windowed_burst"])
def test_use_without_a_limit_fills_the_bucket(algorithm: MutationAlgorithm) -> None:
    client = Mutations(10, algorithm=algorithm)
    client.charge(190, 0)
    limited = client.ledger.table
    client.ledger.swap(QuotaTable([Entry(user="v", controller_mutation_rate=1)]))
    assert client.charge(1, 500) == (True, 0)
    client.ledger.swap(limited)
    assert client.tokens(500) == 100
