"""Bounded memory (ADR 0010): invented clients, forgetting that changes nothing, debts that stay, overflow counters."""

import gc
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.accounts import Account
from quota.counter_store import OVERFLOW
from quota.entity import DEFAULT, LONGEST_NAME, CounterKey, Kind, bounded_name
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.examples import examples
from tests.support.session_tools import acted

PRODUCE, FETCH, REQUEST, MUTATION = Kind
HOUR_MS = 3_600_000

DEFAULTS = QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=500, controller_mutation_rate=1)])
"""500 B/s and one partition a second for each client-id apart."""
GAPS = st.integers(0, 3000) | st.sampled_from([10_999, 11_000, 11_001, 21_999, 22_000, 33_000, 33_001, 60_000])
ACTIONS = st.sampled_from(["charge", "strict", "refund", "check", "fetch"])
STEPS = st.lists(st.tuples(GAPS, ACTIONS, st.integers(0, 900)), min_size=1, max_size=60)


def ledger_of(most: int, table: QuotaTable = DEFAULTS, *, smooth: bool = False) -> Ledger:
    return Ledger(table, max_throttle_ms=None, smooth=smooth, max_clients=most)


def invent(ledger: Ledger, count: int, now: int, name: str = "invented") -> None:
    for number in range(count):
        ledger.charge(ledger.account("u", f"{name}-{number}"), PRODUCE, 1, now)


def test_memory_is_bounded_for_invented_clients() -> None:
    # docs/performance.md has a million of them against the running sidecar's settings.
    most, sizes = 2000, []
    ledger, counted = ledger_of(most), list[float]()
    ledger.on_forget.append(lambda account: counted.append(account.meters[PRODUCE].amount))
    gc.collect()
    tracemalloc.start()
    try:
        for wave in range(8):  # 2.5 s apart, so that some counters may be forgotten, and some may not yet
            invent(ledger, 3000, 2500 * wave, f"wave-{wave}")
            assert max(ledger.clients, ledger.counters.count(PRODUCE)) <= most
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes) < most * 2600 + sys.getsizeof(counted)
    assert sizes[-1] < sizes[0] * 1.1 + sys.getsizeof(counted)
    assert ledger.counters.overflowed[PRODUCE] > 0
    assert sum(counted) + sum(account.meters[PRODUCE].amount for account in ledger.accounts()) == 8 * 3000


def test_honest_clients_are_counted_exactly_during_an_attack() -> None:
    # Three that stay connected, one of them over its limit; and one with an entry of its own that comes and goes.
    table = QuotaTable([*DEFAULTS.entries, Entry(client_id="named", producer_byte_rate=700)])
    attacked, calm = ledger_of(100, table, smooth=True), ledger_of(10_000, table, smooth=True)
    for ledger in (attacked, calm):
        for name in "abc":
            ledger.account("u", name).join()
    for now in range(0, 60_000, 250):
        for name, amount in (("a", 100), ("b", 125), ("c", 300), ("named", 200)):
            delays = {one.charge(one.account("u", name), PRODUCE, amount, now) for one in (attacked, calm)}
            assert len(delays) == 1
        invent(attacked, 150, now, f"at-{now}")
    assert attacked.counters.overflowed[PRODUCE] > 10_000
    assert attacked.observed(attacked.account("u", "c"), PRODUCE, now) > 500


def test_debts_survive_an_attack() -> None:
    # 60 000 B at 500 B/s: (6000 - 500) / 500 * 10 s = 110 s. -400 tokens at 1/s: 400 s. These accounts are not held.
    ledger = ledger_of(50)
    assert ledger.charge(ledger.account("u", "debtor"), PRODUCE, 60_000, 0) == 110_000
    assert ledger.charge_mutation(ledger.account("u", "builder"), 411, True, 0) == (True, 0)
    for now in range(0, 100_000, 5000):
        invent(ledger, 200, now, f"at-{now}")
        for name in range(100):
            ledger.charge_mutation(ledger.account("u", f"maker-{now}-{name}"), 1, True, now)
    assert ledger.known("u", "debtor") is None  # the account was forgotten
    keys = {(group.kind, group.key.client_id) for group in ledger.groups()}
    assert {(PRODUCE, "debtor"), (MUTATION, "builder")} <= keys  # the debts were not
    assert ledger.charge_mutation(ledger.account("u", "builder"), 1, True, 100_000) == (False, 300_000)
    debtor = next(group for group in ledger.groups(PRODUCE) if group.key.client_id == "debtor")
    assert debtor.throttled_until == 110_000


@pytest.mark.parametrize("smooth", [True, False])
@given(story=STEPS, limit=st.integers(1, 60), cap=st.sampled_from([None, 5000]))
@settings(max_examples=examples(150))
def test_forgetting_is_unseen(smooth: bool, story: list[tuple[int, str, int]], limit: int, cap: int | None) -> None:
    table = QuotaTable([Entry("u", None, limit, limit, limit, limit)])
    outcomes: list[list[object]] = []
    for forgetful in (True, False):
        ledger, now = Ledger(table, smooth=smooth, max_throttle_ms=cap), 0
        outcomes.append([])
        for gap, action, amount in story:
            now += gap
            if forgetful:  # at once whatever may be forgotten, as an attack would make it
                for group in list(ledger.groups()):
                    group.last_ms -= HOUR_MS if group.forgettable(now) else 0
                sum(ledger.sweep(now))
                assert all(not group.forgettable(now) for group in ledger.groups())
            # Pacing also learns sizes of batches (ADR 0010), so with it no fetch finds any.
            fetched, kinds = 0 if smooth else amount, (PRODUCE, REQUEST, MUTATION)
            outcomes[-1].append(acted(ledger, action, amount, now, fetched=fetched, kinds=kinds))
    assert outcomes[0] == outcomes[1]


def test_an_admitted_fetch_keeps_its_counter() -> None:
    ledger = ledger_of(100, QuotaTable([Entry(client_id=DEFAULT, consumer_byte_rate=500)]), smooth=True)
    account = ledger.account("u", "c")
    grant = ledger.admit(account, FETCH, 5000, 0)
    (group,) = ledger.groups(FETCH)
    assert not group.forgettable(60_000)
    ledger.settle(account, FETCH, grant, 0, 60_000)
    assert group.forgettable(60_000)


@pytest.fixture
def crowded() -> tuple[Ledger, list[Account]]:
    ledger = ledger_of(100)
    held = [ledger.account("u", f"first-{number}") for number in range(100)]
    for account in held:
        account.join()
        ledger.charge(account, PRODUCE, 100, 0)
    return ledger, held


def test_newcomers_share_one_counter_under_their_entrys_limit(crowded: tuple[Ledger, list[Account]]) -> None:
    ledger, held = crowded
    said: list[Kind] = []
    ledger.counters.on_overflow = said.append
    one, two = ledger.account("u", "late-1"), ledger.account("v", "late-2")
    assert ledger.charge(one, PRODUCE, 3000, 0) == 0
    assert ledger.charge(two, PRODUCE, 3000, 0) == 2000  # 6000 B / 10 s = 600 against 500
    assert ledger.charge(held[0], PRODUCE, 100, 0) == 0  # those that were there before keep their own
    assert (len(said), ledger.counters.overflowed[PRODUCE], ledger.counters.count(PRODUCE)) == (2, 2, 100)
    shared: Any = one.meters[PRODUCE].group
    assert shared is two.meters[PRODUCE].group
    assert (shared.key, shared.limit, shared.users) == (CounterKey(None, OVERFLOW), 500, 2)
    found: Any = ledger.counter(PRODUCE, "v", "late-2")
    assert (found.key.tags, found.due(0), found) == (("", OVERFLOW), 2000, shared)
    ledger.swap(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=1000)]))
    assert ledger.charge(one, PRODUCE, 0, 0) == 0  # 600 B/s against 1000, with the history
    assert ledger.charge(one, PRODUCE, 5000, 0) == 1000
    ledger.swap(QuotaTable([Entry(client_id="someone", producer_byte_rate=1000)]))
    assert ledger.charge(one, PRODUCE, 5000, 0) == 0


def test_each_entry_has_an_overflow_counter_of_its_own() -> None:
    entries = ((DEFAULT, None, 500), ("u", DEFAULT, 700), ("u", "named", 900), ("w", None, 300))
    ledger = ledger_of(100, QuotaTable(Entry(*one) for one in entries))
    held = [ledger.account(f"user-{number}", "c") for number in range(100)]
    for account in held:
        ledger.charge(account, PRODUCE, 1, 0)
    for names, key, limit in (
        (("a", "x"), (OVERFLOW, None), 500),
        (("b", "y"), (OVERFLOW, None), 500),
        (("u", "x"), ("u", OVERFLOW), 700),
        (("u", "named"), ("u", "named"), 900),  # entries that name all clients they are about always find room:
        (("w", "x"), ("w", None), 300),  # there are only as many of them as the file has
    ):
        account = ledger.account(*names)
        ledger.charge(account, PRODUCE, 1, 0)
        group: Any = account.meters[PRODUCE].group
        assert (group.key, group.limit) == (key, limit)


def test_clients_leave_the_overflow_counter_when_possible(crowded: tuple[Ledger, list[Account]]) -> None:
    ledger, held = crowded
    late = ledger.account("u", "late")

    def counter_of(now: int) -> str:
        sum(ledger.sweep(now))
        ledger.charge(late, PRODUCE, 1, now)
        group: Any = late.meters[PRODUCE].group
        return str(group.key.client_id)

    assert ledger.charge(late, PRODUCE, 6000, 0) == 2000
    assert counter_of(60_000) == OVERFLOW, "no client has left"
    for account in held[:20]:
        account.leave()
    invent(ledger, 100, 80_000, "others")  # their accounts go, and with them what they used
    assert counter_of(100_000) == "late"
    for _ in range(2):  # the last accounts on it go, and then the counter
        counter_of(200_000 + HOUR_MS)
    assert OVERFLOW not in {group.key.client_id for group in ledger.groups(PRODUCE)}


def test_very_long_names_are_kept_short_and_apart() -> None:
    longest = "x" * 32_767
    assert bounded_name("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    assert len(bounded_name(longest)) == LONGEST_NAME
    assert bounded_name(longest) != bounded_name(longest[:-1])
    assert bounded_name(bounded_name(longest)) == bounded_name(longest)
    bounded_name("\ud800" * 1000)  # what is no Unicode can come from the wire all the same
    ledger = ledger_of(100, QuotaTable([*DEFAULTS.entries, Entry(client_id=longest, producer_byte_rate=1000)]))
    one, two = ledger.account("u", longest), ledger.account("u", longest[:-1])
    assert ledger.charge(one, PRODUCE, 9000, 0) == 0  # its own entry, found by its whole name
    assert ledger.charge(two, PRODUCE, 9000, 0) == 8000
    found: Any = ledger.counter(PRODUCE, "u", longest)
    assert (found.limit, found.observed(0)) == (1000, 900)


def test_sweep_tolerates_concurrent_changes() -> None:
    ledger = ledger_of(3000)
    invent(ledger, 3000, 0)
    held = [ledger.account("u", f"invented-{number}") for number in range(100)]
    for step, _ in enumerate(ledger.sweep(2 * HOUR_MS)):
        invent(ledger, 20, 2 * HOUR_MS, f"step-{step}")
        for account in held:
            ledger.charge(account, PRODUCE, 1, 2 * HOUR_MS)
    for account in held:
        ledger.check(account, PRODUCE, 2 * HOUR_MS)
        counter = ledger.counters.get(PRODUCE, CounterKey(None, account.identity.client_id))
        assert account.meters[PRODUCE].group is counter is not None
