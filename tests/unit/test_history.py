"""The last 15 minutes: what the page on the admin port draws."""

from proxy.app.admin.explain import Moment
from proxy.app.admin.history import INTERVAL_S, MAX_COUNTERS, SAMPLES, USED_WITHIN_MS, History
from proxy.core.telemetry.observer import Counters
from quota.counter import QuotaCounter
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

STEP_MS = INTERVAL_S * 1000


def begun() -> tuple[Ledger, Counters, History]:
    ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=1000)]), smooth=False)
    counters = Counters()
    return ledger, counters, History(ledger, counters)


def test_use_and_held_time_of_each_counter() -> None:
    ledger, counters, history = begun()
    list(history.look(0))
    etl = ledger.account("u", "etl")
    ledger.charge(etl, Kind.PRODUCE, 5000, STEP_MS - 1)  # 5 000 B in 10 s: half of 1 000 B/s
    counters.connections.open, counters.connections.muted, counters.connections.waiting = 3, 1, 2
    list(history.look(STEP_MS))
    ledger.note_throttle(etl, Kind.PRODUCE, 2500)  # 2.5 s of delay in 5 s: 0.5
    ledger.charge(etl, Kind.PRODUCE, 0, 2 * STEP_MS)
    list(history.look(2 * STEP_MS))
    seen = history.as_json(2 * STEP_MS + 500)
    assert seen["age_s"] == [10.5, 5.5, 0.5]
    assert seen["connections"] == {"open": [0, 3, 3], "muted": [0, 1, 1], "waiting": [0, 2, 2]}
    (one,) = seen["counters"]
    assert (one["kind"], one["user"], one["client_id"]) == ("produce", None, "etl")
    assert one["use"] == [None, 0.5, 0.5]
    assert one["limit"] == [None, 1000, 1000]
    assert one["held"] == [None, 0.0, 0.5]


def delayed(history: History, group: QuotaCounter, now_ms: float) -> tuple[str, float, bool] | None:
    found = history.delayed_json(group, Moment(now_ms, now_ms / 1000))
    return None if found is None else (found["since"][14:], found["last_minute"], found["earlier"])


def test_memory_of_delays() -> None:
    """Delays of each interval from the third on, but for the last: begun then, and in so much of a minute."""
    ledger, _, history = begun()
    etl = ledger.account("u", "etl")
    ledger.charge(etl, Kind.PRODUCE, 5000, 0)
    (group,) = ledger.groups()
    for number in range(15):
        if number >= 2:
            ledger.note_throttle(etl, Kind.PRODUCE, 40)
        ledger.charge(etl, Kind.PRODUCE, 1000, number * STEP_MS)
        list(history.look(number * STEP_MS))
        found = delayed(history, group, number * STEP_MS)
        assert (found is not None) == (number >= 2)
    # The samples of the last minute: 3 to 14.
    assert delayed(history, group, 14 * STEP_MS) == ("00:10.000Z", 1.0, False)
    ledger.charge(etl, Kind.PRODUCE, 1, 15 * STEP_MS)
    list(history.look(15 * STEP_MS))
    assert delayed(history, group, 15 * STEP_MS) is None
    ledger.note_throttle(etl, Kind.PRODUCE, 40)
    list(history.look(16 * STEP_MS))
    assert delayed(history, group, 16 * STEP_MS) == ("01:20.000Z", 11 / 12, False)


def test_long_delays_count_until_they_end() -> None:
    """Muted from 1 s on, by a delay of 30 s and then another one: since the first sample after that, in all of them."""
    ledger, _, history = begun()
    etl = ledger.account("u", "etl")
    list(history.look(0))
    for second in range(1, 66):
        now_ms = 1000.0 * second
        if second in (1, 31):
            delay_ms = ledger.charge(etl, Kind.PRODUCE, 40_000, now_ms)
            ledger.note_throttle(etl, Kind.PRODUCE, delay_ms)
            (group,) = ledger.groups()
            ledger.decisions.note(group, etl.identity, delay_ms, now_ms, 0, 40_000)
        if second % 5 == 0:
            list(history.look(now_ms))
            assert delayed(history, group, now_ms) == ("00:05.000Z", min(second / 60, 1.0), False)
    (one,) = history.as_json(65_000)["counters"]
    assert all(0.9 < held < 1.1 for held in one["held"][1:-1]), "each second of it counts when it passes"


def test_only_so_many_counters_are_remembered_the_most_used_ones() -> None:
    ledger, _, history = begun()
    for number in range(3 * MAX_COUNTERS):
        ledger.charge(ledger.account("u", f"c{number:03}"), Kind.PRODUCE, 10 * (number + 1), 0)
    list(history.look(1))
    names = {one["client_id"] for one in history.as_json(1)["counters"]}
    assert names == {f"c{number:03}" for number in range(2 * MAX_COUNTERS, 3 * MAX_COUNTERS)}
    ledger.charge(ledger.account("u", "late"), Kind.PRODUCE, 9000, STEP_MS)
    list(history.look(STEP_MS))
    counters = history.as_json(STEP_MS)["counters"]
    assert len(counters) == MAX_COUNTERS
    assert next(one["use"] for one in counters if one["client_id"] == "late") == [None, 0.9]
    # None of them is used any more: all stay for what they did, with nothing since.
    list(history.look(STEP_MS + USED_WITHIN_MS))
    assert {one["use"][-1] for one in history.as_json(STEP_MS + USED_WITHIN_MS)["counters"]} == {0.0}


def test_keeps_15_minutes_and_drops_idle_counters() -> None:
    ledger, _, history = begun()
    ledger.charge(ledger.account("u", "once"), Kind.PRODUCE, 5000, 0)
    for number in range(SAMPLES + 10):
        list(history.look(number * STEP_MS))
        if number == 0:
            assert history.as_json(0)["counters"][0]["use"] == [0.5]
    seen = history.as_json((SAMPLES + 10) * STEP_MS)
    assert len(seen["age_s"]) == SAMPLES
    assert seen["counters"] == []
