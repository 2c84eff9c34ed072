"""What is remembered of throttles: a few per counter, why, and bounded whatever names clients invent."""

from typing import Any

from quota.decisions import MAX_COUNTERS, Why
from quota.entity import DEFAULT, CounterKey, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

PRODUCE = Kind.PRODUCE


def ledger(**settings: Any) -> Ledger:
    return Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=500)]), smooth=False, **settings)


def throttle(of: Ledger, client_id: str, amount: float, now_ms: float) -> int:
    account = of.account("u", client_id)
    delay_ms = of.charge(account, PRODUCE, amount, now_ms)
    if delay_ms:
        of.note_throttle(account, PRODUCE, delay_ms, at_ms=now_ms, api_key=0, amount=amount)
    return delay_ms


def test_decision_names_the_rest_of_a_capped_delay() -> None:
    books = ledger(max_throttle_ms=1000)
    # 55 000 B: 5500 B/s, (5500 - 500) / 500 * 10 s = 100 s; 1 s is imposed, the rest is owed
    assert throttle(books, "c", 55_000, 0) == 1000
    assert throttle(books, "c", 0, 99_500) == 500  # the window is empty by now
    assert [one.why for one in books.decisions.of(PRODUCE, CounterKey(None, "c"))] == [Why.OWED, Why.OVER]


def test_decision_names_pacing_below_the_limit() -> None:
    books = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=1000)]))
    now = 0.0
    for _ in range(35):  # a burst, Kafka's delays, and then the rate while the window has room again
        now += throttle(books, "c", 500, now) + 1
    newest = books.decisions.of(PRODUCE, CounterKey(None, "c"))[0]
    assert newest.why is Why.PACED
    assert newest.observed < 1000


def test_invented_names_push_out_only_the_oldest() -> None:
    books = ledger()
    for number in range(MAX_COUNTERS + 50):
        throttle(books, f"c{number}", 60_000, float(number))
    assert books.decisions.of(PRODUCE, CounterKey(None, "c49")) == []
    assert len(books.decisions.of(PRODUCE, CounterKey(None, "c50"))) == 1
    assert len(books.decisions.latest(2 * MAX_COUNTERS)) == MAX_COUNTERS
