"""The ledger's own promises: shared counters, reloads, forgetting, carried delays, shadow entries, totals."""

import gc
from typing import Any

import pytest

from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import identities, kafka_ledger

PRODUCE, FETCH = Kind.PRODUCE, Kind.FETCH
HOUR_MS = 3_600_000


def test_times_are_cut_to_whole_milliseconds() -> None:
    # 400 B each 999.9 ms from 0.9: the samples start at 0, 1000, ... as Kafka's clock would show them
    ledger = kafka_ledger(Entry(user="u", producer_byte_rate=500))
    account = ledger.account("u", "c")
    assert ledger.charge(account, PRODUCE, 6000, 0.99) == 2000
    # at 10.5 s: 6300 B / 10.5 s = 600 B/s; 100 / 500 * 10 500 = 2100
    assert ledger.charge(account, PRODUCE, 300, 10_500.99) == 2100


def test_check_and_admission_record_nothing() -> None:
    ledger = kafka_ledger(Entry(user="u", consumer_byte_rate=500))
    account = ledger.account("u", "c")

    def asked(now: int) -> tuple[int, int, int | None]:
        grant = ledger.admit(account, FETCH, 10_000, now)
        return ledger.check(account, FETCH, now), grant.throttle_ms, grant.max_bytes

    assert asked(0) == (0, 0, 5000)
    ledger.charge_no_throttle(account, FETCH, 4999, 0)
    assert asked(0) == (0, 0, 1)
    ledger.charge_no_throttle(account, FETCH, 1001, 0)
    for _ in range(3):
        assert asked(0) == (2000, 2000, 0)  # 600 against 500; never negative
    assert asked(11_000) == (0, 0, 5000)


def test_explaining_changes_nothing() -> None:
    ledger = Ledger(QuotaTable([Entry(user="u", consumer_byte_rate=500)]))
    ledger.charge_no_throttle(ledger.account("u", "c"), FETCH, 4990, 0)  # less than a grain is left
    fetched: Any = ledger.counter(FETCH, "u", "c")
    assert fetched.due(0) > 0
    assert not next(ledger.groups(FETCH)).paced


def test_debt_scales_with_the_limit() -> None:
    # 1000 B at 1 B/s: (100 - 1) / 1 * 10 s = 990 s, 30 of them at once. At 100 B/s the rest takes a hundredth.
    ledger = Ledger(QuotaTable([Entry(user="u", producer_byte_rate=1)]), smooth=False)
    account = ledger.account("u", "c")
    ledger.charge(account, PRODUCE, 1000, 0)
    assert next(ledger.groups(PRODUCE)).owed_ms(0) == 990_000
    ledger.swap(QuotaTable([Entry(user="u", producer_byte_rate=100)]))
    assert next(ledger.groups(PRODUCE)).owed_ms(0) == 9900


def test_delay_beyond_the_cap_is_carried() -> None:
    # 10 000 B at 100 B/s: (1000 - 100) / 100 * 10 s = 90 s, in steps of at most 30 s
    ledger = Ledger(QuotaTable([Entry(user="u", producer_byte_rate=100)]), smooth=False)
    account = ledger.account("u", "c")
    assert ledger.charge(account, PRODUCE, 10_000, 0) == 30_000
    assert ledger.charge(account, PRODUCE, 1, 30_000) == 30_000  # the window is empty, 60 s are still owed
    assert ledger.check(account, PRODUCE, 60_000) == 30_000
    assert ledger.charge(account, PRODUCE, 1, 65_000) == 25_000
    assert ledger.check(account, PRODUCE, 90_000) == 0
    assert ledger.charge(account, PRODUCE, 1, 90_000) == 0
    assert next(ledger.groups(PRODUCE)).capped == 2


def test_forgets_idle_groups_and_accounts_after_an_hour() -> None:
    ledger = Ledger(QuotaTable([Entry(user=DEFAULT, producer_byte_rate=500)]), smooth=False)
    held = ledger.account("held", "c")
    held.join()
    for user, now in (("u", 0), ("held", 0), ("v", 1)):
        ledger.charge(ledger.account(user, "c"), PRODUCE, 100, now)
    gc.collect()
    assert sum(ledger.sweep(HOUR_MS - 1)) == 0
    assert sum(ledger.sweep(HOUR_MS)) == 3  # u's group and account, and the group alone of the account in use
    assert [group.key.user for group in ledger.groups()] == ["v"]
    assert identities(ledger) == {("held", "c"), ("v", "c")}
    assert ledger.account("held", "c") is held
    # two accounts of the user still share one counter, although one of them knew the forgotten one
    assert ledger.charge(held, PRODUCE, 3000, HOUR_MS) == 0
    assert ledger.charge(ledger.account("held", "d"), PRODUCE, 3000, HOUR_MS) == 2000


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("cap", [None, 30_000])
def test_a_debt_is_never_forgotten(smooth: bool, cap: int | None) -> None:
    # 40 000 B at 1 B/s: (4000 - 1) / 1 * 10 s = 39 990 s, far more than an hour
    ledger = Ledger(QuotaTable([Entry(user="u", producer_byte_rate=1)]), smooth=smooth, max_throttle_ms=cap)
    ledger.charge(ledger.account("u", "c"), PRODUCE, 40_000, 0)
    for t in range(HOUR_MS, 39_990_000, HOUR_MS):
        sum(ledger.sweep(t))
        assert len(list(ledger.groups())) == 1
    if cap is not None:
        assert next(ledger.groups(PRODUCE)).owed_ms(39_989_000 - 1) == 1001
        assert next(ledger.groups(PRODUCE)).owes(39_989_000)
    assert sum(ledger.sweep(2 * 39_990_000)) >= 1
    assert list(ledger.groups()) == []
