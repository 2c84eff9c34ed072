"""Limits as absurd as an administrator may set them: every question about every counter has an answer."""

from __future__ import annotations

import math

import pytest

from quota.entity import Kind
from quota.ledger import Ledger
from quota.table import MAX_LIMIT, MIN_LIMIT, CandidateLimits, Entry, QuotaTable
from tests.support.counters import snapshots

AMOUNTS = (0, 1, 10**6, 2**31)
STEPS_MS = (0, 1, 7, 100, 1000, 11_000)


@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1e-9, 5e-7, 1000.0000005, 2.0**63 - 1024, 2.0**63, 1e300, 1.7e308])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("cap_ms", [30_000, None])
@pytest.mark.parametrize("algorithm", ["token_bucket", "windowed_burst"])
def test_counters_work_under_any_limit(limit: float, smooth: bool, cap_ms: int | None, algorithm: str) -> None:
    candidate = CandidateLimits(limit, limit, limit, limit)
    entry = Entry("u", None, limit, limit, limit, limit, candidate=candidate)
    ledger = Ledger(
        QuotaTable([entry]),
        smooth=smooth,
        max_throttle_ms=cap_ms,
        mutation_algorithm=algorithm,  # type: ignore[arg-type]
    )
    account, now = ledger.account("u", "c"), 0
    for step in range(12):
        now += STEPS_MS[step % len(STEPS_MS)]
        for kind in Kind:
            for amount in AMOUNTS:
                assert ledger.charge(account, kind, amount, now) >= 0
                ledger.charge_no_throttle(account, kind, amount, now)
                assert ledger.check(account, kind, now) >= 0
                assert (ledger.allowance(account, kind, now) or 0) >= 0
                assert not math.isnan(ledger.observed(account, kind, now))
                grant = ledger.admit(account, kind, amount, now)
                if not grant.throttle_ms:
                    ledger.settle(account, kind, grant, amount, now)
                if amount:
                    ledger.refund(account, kind, amount / 2, now)
        ledger.charge_mutation(account, 10**6, step % 2 == 0, now)
        assert all(group.utilisation is None or group.utilisation >= 0 for group in snapshots(ledger, now))
        ledger.explain("u", "c", now)


def test_bounds_limits_for_counting_and_keeps_written() -> None:
    entry = Entry("u", None, 2.0**63, 1.0, 1e308, 1e-300, candidate=CandidateLimits(request_percentage=1e308))
    assert [entry.limit(kind) for kind in Kind] == [MAX_LIMIT, 1.0, MAX_LIMIT, MIN_LIMIT]
    assert entry.candidate_limit(Kind.REQUEST) == MAX_LIMIT
    assert (entry.request_percentage, entry.controller_mutation_rate) == (1e308, 1e-300)
