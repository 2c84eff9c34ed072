"""Limits on trial - candidates next to live limits, and shadow entries - are measured, never applied."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.entity import DEFAULT, Kind
from quota.ledger import Account, Ledger
from quota.mutation import BucketCounter
from quota.table import RATE_FIELD, CandidateLimits, Entry, QuotaTable
from tests.support.session_tools import acted

PRODUCE, FETCH, REQUEST, MUTATION = Kind
ACTIONS = st.sampled_from(["charge", "fetch", "strict", "refund"])
STEPS = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 4000), ACTIONS), min_size=1, max_size=80)


def with_candidate(kind: Kind, candidate: float | None, live: float = 1e9) -> QuotaTable:
    field = RATE_FIELD[kind]
    limits = None if candidate is None else CandidateLimits(**{field: candidate})
    return QuotaTable([Entry(user="u", **{field: live}, candidate=limits)])


def as_shadow(kind: Kind, limit: float) -> QuotaTable:
    return QuotaTable([Entry(user="u", **{RATE_FIELD[kind]: limit}, mode="shadow")])


Make = Callable[[Kind, float], QuotaTable]
MAKES = pytest.mark.parametrize("make", [with_candidate, as_shadow])


def of_u(ledger: Ledger) -> tuple[Ledger, Account]:
    return ledger, ledger.account("u", "c")


class TrialSnapshot(NamedTuple):
    limit: float | None  # None: no longer on trial
    utilisation: float | None
    throttled: int
    throttle_ms: int


def trial_of(ledger: Ledger, now: int = 0) -> TrialSnapshot:
    (group,) = ledger.groups()
    trial = group.candidate or group.shadowed
    assert trial is not None
    return TrialSnapshot(trial.limit, group.trial_utilisation(trial, now), trial.throttled, trial.throttle_ms)


@MAKES
@pytest.mark.parametrize("smooth", [True, False])
def test_bytes_meet_kafkas_formula(make: Make, smooth: bool) -> None:
    # A22 against 500 B/s: 1000 B each second, 0 x5, then delays of 2000, 4000, 6000 ms at 5000, 6000, 7000:
    # [5000, 7000) and [6000, 10 000) and [7000, 13 000) cover 8 s. A client without the quota never waits.
    ledger, account = of_u(Ledger(make(PRODUCE, 500), smooth=smooth))
    seen = []
    for now in range(0, 8000, 1000):
        assert ledger.charge(account, PRODUCE, 1000, now) == 0
        seen.append(trial_of(ledger, now)[2:])
    assert seen == [(0, 0)] * 5 + [(1, 2000), (2, 5000), (3, 8000)]
    assert trial_of(ledger, 7000) == TrialSnapshot(500, 1.6, 3, 8000)  # 8000 B in 10.0 s
    assert ledger.check(account, PRODUCE, 7000) == 0


def test_request_time_on_trial_is_bounded_by_one_window() -> None:
    # C6 against 1 %: 500 ms are 5 %; 40 s by the formula, one window of 1 s by Kafka's bound
    ledger, account = of_u(Ledger(with_candidate(REQUEST, 1)))
    assert ledger.charge(account, REQUEST, 500, 0) == 0
    assert trial_of(ledger) == TrialSnapshot(1, 5.0, 1, 1000)


@pytest.mark.parametrize(
    ("strict", "waited", "tokens"),
    [(True, [0, 0, 7000], 20), (False, [0, 7000, 16_000], -70)],
    ids=["strict", "permissive"],
)
def test_mutations_have_a_bucket_on_trial(strict: bool, waited: list[int], tokens: int) -> None:
    # E4, E5 against 10/s (burst 110): 90 leave 20 tokens; 90 more leave -70: 7 s. Strict requests are refused from the
    # next one on and not charged, permissive ones delayed at once: -160 tokens, [0, 16 000)
    ledger, account = of_u(Ledger(with_candidate(MUTATION, 10)))
    for so_far in waited:
        assert ledger.charge_mutation(account, 90, strict, 0) == (True, 0)
        assert trial_of(ledger).throttle_ms == so_far
    assert trial_of(ledger).throttled == (1 if strict else 2)
    ledger.refund(account, MUTATION, 90, 0)
    assert ledger.charge_mutation(account, 0, strict, 0) == (True, 0)
    assert trial_of(ledger).utilisation == pytest.approx((110 - tokens) / 110)


def test_trial_excludes_refused_requests() -> None:
    ledger, account = of_u(Ledger(with_candidate(MUTATION, 1, live=2), max_throttle_ms=None))
    assert ledger.charge_mutation(account, 30, True, 0) == (True, 0)  # live: -8, candidate: -19
    assert ledger.charge_mutation(account, 1, True, 0) == (False, 4000)
    assert trial_of(ledger).throttled == 0


@MAKES
@pytest.mark.parametrize("kind", [PRODUCE, MUTATION])
def test_recorded_without_a_question_counts_too(make: Make, kind: Kind) -> None:
    ledger = Ledger(make(kind, 500))
    ledger.charge_no_throttle(ledger.account("u", "c"), kind, 6000, 0)
    assert trial_of(ledger).throttled == 1


def test_candidate_above_limit_sees_admitted_traffic() -> None:
    ledger, account = of_u(Ledger(with_candidate(PRODUCE, 600, live=500), smooth=False, max_throttle_ms=None))
    assert ledger.charge(account, PRODUCE, 6000, 0) == 2000
    assert trial_of(ledger).throttled == 0  # 600 is not above 600
    assert ledger.charge(account, PRODUCE, 600, 0) == 3200
    assert trial_of(ledger).throttle_ms == 1000  # 660: 60 / 600 * 10 s


def test_reloads_begin_end_and_change_a_candidate() -> None:
    ledger, account = of_u(Ledger(with_candidate(PRODUCE, None)))
    ledger.charge(account, PRODUCE, 6000, 0)
    assert next(ledger.groups()).candidate is None
    ledger.swap(with_candidate(PRODUCE, 500))  # measured with the history that is there
    ledger.charge(account, PRODUCE, 0, 0)
    assert trial_of(ledger) == TrialSnapshot(500, 1.2, 1, 2000)
    ledger.swap(with_candidate(PRODUCE, None))  # nothing more is counted, and nothing is lost
    ledger.charge(account, PRODUCE, 6000, 0)
    assert trial_of(ledger) == TrialSnapshot(None, None, 1, 2000)
    ledger.swap(with_candidate(PRODUCE, 1000))  # another hypothesis: its delay counts from now, whatever 500 would do
    ledger.charge(account, PRODUCE, 0, 0)
    assert trial_of(ledger) == TrialSnapshot(1000, 1.2, 2, 4000)


def test_a_candidate_takes_no_part_in_precedence() -> None:
    # The entry has no fetch limit, so it says nothing about fetches, and its fetch candidate nothing either.
    entry = Entry(user="u", producer_byte_rate=5, candidate=CandidateLimits(consumer_byte_rate=1))
    table = QuotaTable([entry, Entry(user=DEFAULT, consumer_byte_rate=7)])
    assert table.resolve(FETCH, "u", "c").limit == 7
    assert entry.candidate_limit(FETCH) is None


@pytest.mark.parametrize("smooth", [True, False])
@given(story=STEPS, live=st.integers(1, 2000), candidate=st.integers(1, 3000))
def test_candidates_decide_nothing(smooth: bool, story: list[tuple[int, int, str]], live: int, candidate: int) -> None:
    names = RATE_FIELD.values()
    plain = Entry(user="u", **dict.fromkeys(names, live))
    on_trial = replace(plain, candidate=CandidateLimits(**dict.fromkeys(names, candidate)))
    outcomes: list[list[object]] = []
    for entry in (plain, on_trial):
        ledger, now = Ledger(QuotaTable([entry]), smooth=smooth), 0
        outcomes.append([])
        for gap, amount, action in story:
            now += gap
            outcomes[-1].append(acted(ledger, action, amount, now, fetched=amount))
    assert outcomes[0] == outcomes[1]


def test_the_algorithm_on_trial_is_the_live_one() -> None:
    ledger = Ledger(with_candidate(MUTATION, 10), mutation_algorithm="windowed_burst")
    assert ledger.charge_mutation(ledger.account("u", "c"), 120, False, 0) == (True, 0)
    assert isinstance(next(ledger.groups()), BucketCounter)
    assert trial_of(ledger).throttle_ms == 1000  # 10 tokens below zero at 10/s
