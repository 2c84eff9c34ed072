"""What is remembered of throttles: a few per counter, why, and bounded whatever names clients invent."""

from __future__ import annotations

from typing import Any

from proxy.core.telemetry.observer import Counters
from quota.decisions import MAX_COUNTERS, MAX_EACH, Decision, Why
from quota.entity import DEFAULT, CounterKey, Identity, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import Driven, from_broker, from_client, produce, produce_response

PRODUCE = Kind.PRODUCE


def ledger(rate: float = 500, **settings: Any) -> Ledger:
    return Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=rate)]), smooth=False, **settings)


def throttle(of: Ledger, client_id: str, amount: float, now_ms: float) -> int:
    account = of.account("u", client_id)
    delay_ms = of.charge(account, PRODUCE, amount, now_ms)
    if delay_ms:
        of.note_throttle(account, PRODUCE, delay_ms, at_ms=now_ms, api_key=0, amount=amount)
    return delay_ms


def test_a_throttle_is_remembered_with_its_cause() -> None:
    books = ledger()
    assert throttle(books, "quiet", 100, 0) == 0
    assert books.decisions.latest(10) == []
    assert throttle(books, "c", 6000, 10.0) == 2000  # 600 B/s against 500: 0.2 * 10 s
    (decision,) = books.decisions.of(PRODUCE, CounterKey(None, "c"))
    assert decision == Decision(10.0, PRODUCE, Identity("u", "c"), 0, 6000, 2000, 500, 600.0, Why.OVER)


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


def test_each_counter_keeps_its_newest_decisions_in_order() -> None:
    books = ledger()
    for turn in range(MAX_EACH + 4):
        throttle(books, "loud", 60_000, 10.0 * turn)
    throttle(books, "quiet", 60_000, 55.0)
    loud = books.decisions.of(PRODUCE, CounterKey(None, "loud"))
    assert [one.at_ms for one in loud] == [110.0 - 10.0 * turn for turn in range(MAX_EACH)]
    assert [one.at_ms for one in books.decisions.latest(8)] == [110.0, 100.0, 90.0, 80.0, 70.0, 60.0, 55.0, 50.0]


def test_invented_names_push_out_only_the_oldest() -> None:
    books = ledger()
    for number in range(MAX_COUNTERS + 50):
        throttle(books, f"c{number}", 60_000, float(number))
    assert books.decisions.of(PRODUCE, CounterKey(None, "c49")) == []
    assert len(books.decisions.of(PRODUCE, CounterKey(None, "c50"))) == 1
    assert len(books.decisions.latest(2 * MAX_COUNTERS)) == MAX_COUNTERS


def test_remembers_api_and_amount_of_each_throttle() -> None:
    books = ledger()
    session = Driven(books, Counters(), user="web", translate=None)
    from_client(session, produce(1, 6000), 100.0)
    assert books.decisions.latest(1) == []  # counted when the response goes out
    from_broker(session, produce_response(1), 150.0)
    (decision,) = books.decisions.latest(9)
    assert (decision.at_ms, decision.api_key, decision.amount, decision.delay_ms) == (100.0, 0, 6000, 2000)
    assert decision.identity == Identity("web", "c")
    unanswered = Driven(books, Counters(), user="web", translate=None)
    from_client(unanswered, produce(1, 600, acks=0), 200.0)
    assert books.decisions.latest(1)[0].amount == 600
