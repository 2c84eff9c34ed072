"""How a counter stands: the numbers that `kquota explain` shows, and that looking changes nothing. And what is
remembered of its throttles: a few, why, and bounded whatever names clients invent."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.counter import QuotaCounter
from quota.decisions import MAX_COUNTERS, Why
from quota.entity import DEFAULT, CounterKey, Kind
from quota.ledger import Ledger
from quota.status import counter_status, free_ms
from quota.table import Entry, QuotaTable
from tests.support.examples import examples

LIMITS = Entry(
    client_id=DEFAULT, producer_byte_rate=500, consumer_byte_rate=500, request_percentage=10, controller_mutation_rate=5
)


def ledger(**settings: Any) -> Ledger:
    return Ledger(QuotaTable([LIMITS]), smooth=False, **settings)


def counter(kind: Kind, amount: float, **options: Any) -> QuotaCounter:
    of = ledger(**options)
    of.charge(of.account("u", "c"), kind, amount, 0)
    (group,) = of.groups()
    return group


def test_bytes_over_the_limit() -> None:
    found = counter_status(counter(Kind.PRODUCE, 6000), 0)
    # 600 B/s in a window of 10 s; (600 - 500) / 500 * 10 s = 2 s
    assert (found.amount, found.window_ms, found.share) == (6000, 10_000, 1.2)
    assert (found.wait_ms, found.muted_ms, found.owed_ms, found.paced) == (2000, 2000, 0, False)
    assert (found.tokens, found.burst) == (None, None)
    # The one sample stays 11 s in the window, but its divisor never exceeds 10.999 s: 545 B/s, until it expires.
    assert found.free_ms == 11_000
    half = counter_status(counter(Kind.PRODUCE, 6000), 500)
    assert (half.muted_ms, half.wait_ms) == (1500, 1500)  # 6000 / 10.5 s = 571.4 B/s: 0.143 * 10.5 s
    cut = counter_status(counter(Kind.PRODUCE, 55_000, max_throttle_ms=1000), 0)
    assert (cut.wait_ms, cut.muted_ms, cut.owed_ms, cut.free_ms) == (1000, 1000, 100_000, 100_000)


@pytest.mark.parametrize("algorithm", ["token_bucket", "windowed_burst"])
def test_mutations_show_tokens(algorithm: str) -> None:
    group = counter(Kind.MUTATION, 560, mutation_num_samples=100, mutation_algorithm=algorithm)
    found = counter_status(group, 0)
    # KIP-599's example: rate 5, burst 500, 560 partitions: -60 tokens, 12 s
    assert (found.tokens, found.burst, found.amount, found.window_ms) == (-60, 500, 560, None)
    assert found.share == pytest.approx(1.12)
    assert (found.wait_ms, found.free_ms) == (12_000, 12_000)
    huge = counter_status(counter(Kind.MUTATION, 1_000_055), 0)  # burst 55: -1 000 000 tokens at 5/s
    assert huge.free_ms == 200_000_000


@settings(max_examples=examples(150))
@given(
    kind=st.sampled_from(list(Kind)),
    charges=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 20_000)), min_size=1, max_size=25),
    smooth=st.booleans(),
    cap=st.sampled_from([None, 1000, 30_000]),
)
def test_free_is_free_after_looking(kind: Kind, charges: list[tuple[int, int]], smooth: bool, cap: int | None) -> None:
    ledger = Ledger(QuotaTable([LIMITS]), smooth=smooth, max_throttle_ms=cap)
    account = ledger.account("u", "c")
    now = 0
    for pause, amount in charges:
        now += pause
        ledger.charge(account, kind, amount, now)
    (group,) = ledger.groups()
    twin = copy.deepcopy(group)
    free = free_ms(group, now)
    assert counter_status(group, now).free_ms == free
    assert group.due(now + free) == group.line(now + free).newcomer_ms == 0
    if free:
        assert group.due(now + free - 1) > 0 or group.line(now + free - 1).newcomer_ms > 0
    assert (group.due(now), group.observed(now)) == (twin.due(now), twin.observed(now))
    assert group.charge(100, now + 5) == twin.charge(100, now + 5)


def throttle(of: Ledger, client_id: str, amount: float, now_ms: float) -> int:
    account = of.account("u", client_id)
    delay_ms = of.charge(account, Kind.PRODUCE, amount, now_ms)
    if delay_ms:
        of.note_throttle(account, Kind.PRODUCE, delay_ms, at_ms=now_ms, api_key=0, amount=amount)
    return delay_ms


def test_decision_names_the_rest_of_a_capped_delay() -> None:
    books = ledger(max_throttle_ms=1000)
    # 55 000 B: 5500 B/s, (5500 - 500) / 500 * 10 s = 100 s; 1 s is imposed, the rest is owed
    assert throttle(books, "c", 55_000, 0) == 1000
    assert throttle(books, "c", 0, 99_500) == 500  # the window is empty by now
    assert [one.why for one in books.decisions.of(Kind.PRODUCE, CounterKey(None, "c"))] == [Why.OWED, Why.OVER]


def test_decision_names_pacing_below_the_limit() -> None:
    books = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=1000)]))
    now = 0.0
    for _ in range(35):  # a burst, Kafka's delays, and then the rate while the window has room again
        now += throttle(books, "c", 500, now) + 1
    newest = books.decisions.of(Kind.PRODUCE, CounterKey(None, "c"))[0]
    assert newest.why is Why.PACED
    assert newest.observed < 1000


def test_invented_names_push_out_only_the_oldest() -> None:
    books = ledger()
    for number in range(MAX_COUNTERS + 50):
        throttle(books, f"c{number}", 60_000, float(number))
    assert books.decisions.of(Kind.PRODUCE, CounterKey(None, "c49")) == []
    assert len(books.decisions.of(Kind.PRODUCE, CounterKey(None, "c50"))) == 1
    assert len(books.decisions.latest(2 * MAX_COUNTERS)) == MAX_COUNTERS
