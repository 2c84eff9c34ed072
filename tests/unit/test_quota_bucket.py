"""The token bucket and the mutation quota against Kafka's numbers (TokenBucketTest, ControllerMutationQuotaTest: E)."""

import pytest

from quota.bucket import Mutation, TokenBucket, bucket_throttle_ms
from quota.entity import Kind
from quota.ledger import Account, Ledger
from quota.table import Entry, QuotaTable


def test_taking_tokens() -> None:
    # E1: rate 5, burst 10 samples x 2 s x 5 = 100
    bucket = TokenBucket(burst_s=20)
    assert bucket.measure(5, 0) == 100
    assert bucket.take(60, 5, 0) == 40
    assert bucket.take(5, 5, 2000) == 45  # 40 + 2 * 5 - 5
    assert bucket.take(60, 5, 4000) == -5  # 45 + 10 - 60


def test_giving_tokens_back() -> None:
    # E2: never above the burst of 100
    bucket = TokenBucket(burst_s=20)
    assert bucket.take(-60, 5, 0) == 100
    assert bucket.take(60, 5, 2000) == 40
    assert bucket.take(-60, 5, 4000) == 100  # 40 + 10 + 60 = 110, capped


@pytest.mark.parametrize(("tokens", "throttle"), [(0, 0), (-5, 500), (-10, 1000), (3, 0), (-1e300, 2**31 - 1)])
def test_throttle_time(tokens: float, throttle: int) -> None:
    assert bucket_throttle_ms(tokens, 10) == throttle  # E3: rate 10


class Mutations:
    """One client under a mutation quota, with windows as the case says."""

    def __init__(self, rate: float, num_samples: int = 10) -> None:
        table = QuotaTable([Entry(user="u", controller_mutation_rate=rate)])
        self.ledger = Ledger(table, num_samples=num_samples, window_ms=1000, max_throttle_ms=None)
        self.account: Account = self.ledger.account("u", "c")

    def strict(self, amount: float, now: int) -> Mutation:
        return self.ledger.charge_mutation(self.account, amount, True, now)

    def permissive(self, amount: float, now: int) -> Mutation:
        return self.ledger.charge_mutation(self.account, amount, False, now)

    def tokens(self, now: int) -> float:
        return self.ledger.observed(self.account, Kind.MUTATION, now)


def test_strict_bucket_refuses() -> None:
    # E4: rate 10, burst 100
    client = Mutations(10)
    assert client.strict(90, 0) == (True, 0)
    assert client.strict(90, 0) == (True, 0)  # 10 >= 0, so accepted; no delay for the request that overdraws
    assert client.tokens(0) == -80
    assert client.strict(90, 0) == (False, 8000)  # 80 / 10
    assert client.tokens(0) == -80  # refused: not charged
    assert client.ledger.check(client.account, Kind.MUTATION, 5000) == 3000  # -80 + 50 = -30


def test_permissive_bucket_charges() -> None:
    # E5: always accepted, delayed as soon as the tokens are below zero
    client = Mutations(10)
    assert client.permissive(90, 0) == (True, 0)
    assert client.permissive(90, 0) == (True, 8000)
    assert client.permissive(90, 0) == (True, 17_000)  # -170
    assert client.ledger.check(client.account, Kind.MUTATION, 5000) == 12_000


def test_bucket_violation_and_recovery() -> None:
    # E6: ten times 10, one second apart: refilled each time
    client = Mutations(10)
    assert [client.strict(10, t) for t in range(0, 10_000, 1000)] == [(True, 0)] * 10
    assert client.strict(110, 10_000) == (True, 0)  # 100 tokens -> -10
    assert client.strict(110, 10_000) == (False, 1000)
    assert client.strict(110, 11_000) == (True, 0)  # exactly 0 is fine


def test_floating_residue() -> None:
    # E24: rate 2, burst 22. 30 at 0 -> -8; at 3900: -8 + 7.8 = -0.2 -> 100 ms; at 4000: -0.2 + 0.2, which is
    # -1.7e-16 in doubles: refused with a delay of 0, as a broker does
    client = Mutations(2, num_samples=11)
    assert client.strict(30, 0) == (True, 0)
    assert client.strict(1, 3900) == (False, 100)
    assert client.strict(1, 4000) == (False, 0)
    assert client.strict(1, 4001) == (True, 0)


def test_a_changed_rate_keeps_the_tokens_and_caps_them() -> None:
    client = Mutations(10)  # burst 100
    client.strict(50, 0)
    client.ledger.swap(client.ledger.table.with_entry(Entry(user="u", controller_mutation_rate=2)))
    assert client.tokens(0) == 20  # 50 tokens, burst now 20
    client.ledger.swap(client.ledger.table.with_entry(Entry(user="u", controller_mutation_rate=100)))
    assert client.tokens(0) == 50  # nothing touched the bucket in between


def test_use_without_a_limit_fills_the_bucket() -> None:
    client = Mutations(10)
    client.strict(190, 0)  # -90
    other_only = QuotaTable([Entry(user="v", controller_mutation_rate=1)])
    limited = client.ledger.table
    client.ledger.swap(other_only)
    assert client.strict(1, 0) == (True, 0)
    client.ledger.swap(limited)
    assert client.tokens(0) == 100


def test_a_refund_brings_tokens_back() -> None:
    client = Mutations(10)
    client.strict(90, 0)
    client.ledger.refund(client.account, Kind.MUTATION, 30, 0)
    assert client.tokens(0) == 40
    assert client.account.meters[Kind.MUTATION].amount == 60
    client.ledger.refund(client.account, Kind.MUTATION, 500, 0)
    assert client.tokens(0) == 100
