"""Promises that hold for any traffic, and under limits as absurd as an administrator may set them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import MAX_LIMIT, MIN_LIMIT, CandidateLimits, Entry, QuotaTable

PRODUCE, FETCH = Kind.PRODUCE, Kind.FETCH
AMOUNTS = (0, 1, 10**6, 2**31)
STEPS_MS = (0, 1, 7, 100, 1000, 11_000)
# Gaps around the sample length and the window length are where the corner cases are.
AROUND = st.sampled_from([99, 100, 101, 999, 1000, 1001, 1099, 1100, 1101])
gaps = st.integers(0, 30) | AROUND | st.integers(0, 3000)
amounts = st.lists(st.tuples(gaps, st.integers(0, 4000)), min_size=1, max_size=150)


@given(traffic=amounts, limit=st.integers(1, 2000))
def test_pacing_never_shortens_a_delay(traffic: list[tuple[int, int]], limit: int) -> None:
    table = QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=limit)])
    smooth, kafka = (Ledger(table, max_throttle_ms=None, smooth=smooth) for smooth in (True, False))
    now, violated = 0, False
    for gap, amount in traffic:
        now += gap
        ours = smooth.charge(smooth.account("", "c"), PRODUCE, amount, now)
        theirs = kafka.charge(kafka.account("", "c"), PRODUCE, amount, now)
        assert ours >= theirs
        if not violated:
            assert ours == theirs  # nothing is added before the first violation, nor to it
        violated = violated or kafka.observed(kafka.account("", "c"), PRODUCE, now) > limit


@given(traffic=amounts, limit=st.integers(1, 2000), cap=st.integers(100, 60_000), smooth=st.booleans())
def test_no_delay_exceeds_the_cap(traffic: list[tuple[int, int]], limit: int, cap: int, smooth: bool) -> None:
    table = QuotaTable([Entry(user="u", producer_byte_rate=limit, consumer_byte_rate=limit)])
    ledger, now = Ledger(table, max_throttle_ms=cap, smooth=smooth), 0
    account = ledger.account("u", "c")
    for gap, amount in traffic:
        now += gap
        assert 0 <= ledger.charge(account, PRODUCE, amount, now) <= cap
        grant = ledger.admit(account, FETCH, 5000, now)
        assert 0 <= grant.throttle_ms <= cap
        assert (grant.max_bytes or 0) >= 0
        if not grant.throttle_ms:
            ledger.settle(account, FETCH, grant, amount, now)
        assert 0 <= ledger.check(account, FETCH, now) <= cap


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1e-9, 5e-7, 1000.0000005, 2.0**63 - 1024, 2.0**63, 1e300, 1.7e308])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("cap_ms", [30_000, None])
@pytest.mark.parametrize("algorithm", ["token_bucket", "windowed_burst"])
def test_counters_work_under_any_limit(limit: float, smooth: bool, cap_ms: int | None, algorithm: str) -> None:
    candidate = CandidateLimits(limit, limit, limit, limit)
    table = QuotaTable([Entry("u", None, limit, limit, limit, limit, candidate=candidate)])
    ledger = Ledger(table, smooth=smooth, max_throttle_ms=cap_ms, mutation_algorithm=algorithm)
    account, now = ledger.account("u", "c"), 0
    for step in range(12):
        now += STEPS_MS[step % len(STEPS_MS)]
        for kind in Kind:
            for amount in AMOUNTS:
                assert ledger.charge(account, kind, amount, now) >= 0
                ledger.charge_no_throttle(account, kind, amount, now)
                assert ledger.check(account, kind, now) >= 0
                assert not math.isnan(ledger.observed(account, kind, now))
                grant = ledger.admit(account, kind, amount, now)
                assert (grant.max_bytes or 0) >= 0
                if not grant.throttle_ms:
                    ledger.settle(account, kind, grant, amount, now)
                if amount:
                    ledger.refund(account, kind, amount / 2, now)
        ledger.charge_mutation(account, 10**6, step % 2 == 0, now)
        for kind in Kind:
            group = ledger.counter(kind, "u", "c")
            assert group is not None
            assert group is account.meter(kind).group
            assert (group.utilisation(now) or 0) >= 0
            assert group.due(now) >= 0


def test_bounds_limits_for_counting_and_keeps_written() -> None:
    entry = Entry("u", None, 2.0**63, 1.0, 1e308, 1e-300, candidate=CandidateLimits(request_percentage=1e308))
    assert [entry.limit(kind) for kind in Kind] == [MAX_LIMIT, 1.0, MAX_LIMIT, MIN_LIMIT]
    assert entry.candidate_limit(Kind.REQUEST) == MAX_LIMIT
    assert (entry.request_percentage, entry.controller_mutation_rate) == (1e308, 1e-300)
