"""The ledger against models without any state but a list of what happened, recomputed from scratch for every answer.

The window's rules are those of Kafka's Rate, SampledStat and WindowedSum (3.8 and later), the bucket's those of
TokenBucket (KIP-599), each in exact fractions. One difference is meant: a broker's expired samples are reset whenever
it is read, so that reading a metric moves the window; ours are reset by charges alone.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.entity import Kind
from quota.ledger import Ledger
from quota.rate import MAX_THROTTLE_MS
from quota.table import RATE_FIELD, Entry, QuotaTable
from tests.support.examples import examples
from tests.support.session_tools import kafka_ledger

HALF = Fraction(1, 2)
SAMPLES, WINDOW_MS = 11, 1000
# Steps of 125 ms and whole rates: refills are whole eighths, exact in doubles, so that every decision must be equal.
EIGHTHS_MS = st.integers(0, 40).map(lambda eighths: eighths * 125)
ACTIONS = st.sampled_from(["strict", "strict", "permissive", "refund", "check", "limit"])
mutation_steps = st.lists(st.tuples(EIGHTHS_MS, ACTIONS, st.integers(0, 120)), min_size=1, max_size=80)
# Gaps of 0 (the clock did not move), around a sample, around the window, and backwards (which counts as not at all).
gaps = st.just(0) | st.integers(-20, 300) | st.sampled_from([999, 1000, 1001, 10_999, 11_000]) | st.integers(0, 4000)
actions = st.sampled_from(["charge", "charge", "charge", "record", "refund", "check", "limit"])
steps = st.lists(st.tuples(gaps, actions, st.integers(0, 6000)), min_size=1, max_size=80)


def half_up(value: Fraction) -> int:
    return floor(value + HALF)


@dataclass
class WindowModel:
    """Every event since the beginning: (ms, amount, whether the limit was checked after it)."""

    scale: Fraction = Fraction(1)
    bound_ms: int = MAX_THROTTLE_MS
    events: list[tuple[int, int, bool]] = field(default_factory=list)

    def samples(self, now: int) -> list[tuple[int, int, Fraction]]:
        """(start, last event, sum) of each sample that a broker's ring would hold; expired ones are reset."""
        ring: list[tuple[int, int, Fraction]] = []
        slot = -1
        for at, amount, checked in self.events:
            if slot < 0 or at - ring[slot][0] >= WINDOW_MS:
                slot = (slot + 1) % (SAMPLES + 1)
                ring[slot : slot + 1] = [(at, at, Fraction(0))]
            start, _, total = ring[slot]
            ring[slot] = (start, at, total + amount * self.scale)
            if checked:
                ring = [(at, at, Fraction(0)) if at - one[1] >= SAMPLES * WINDOW_MS else one for one in ring]
        return [(now, now, Fraction(0)) if now - one[1] >= SAMPLES * WINDOW_MS else one for one in ring]

    def throttle_ms(self, limit: int, now: int) -> int:
        samples = self.samples(now)
        elapsed = now - min((start for start, _, _ in samples), default=now)
        full = elapsed // WINDOW_MS
        if full < SAMPLES - 1:
            elapsed += (SAMPLES - 1 - full) * WINDOW_MS
        observed = sum((total for _, _, total in samples), Fraction(0)) * 1000 / elapsed
        if observed <= limit:
            return 0
        return min(half_up((observed - limit) / limit * elapsed), self.bound_ms)


@dataclass
class BucketModel:
    """Every event since the beginning: (ms, partitions taken, limit at that time)."""

    events: list[tuple[int, int, int]] = field(default_factory=list)

    def tokens(self, limit: int, now: int) -> Fraction:
        tokens, before = Fraction(1 << 62), 0  # full
        for at, taken, rate in [*self.events, (now, 0, limit)]:
            burst = Fraction(SAMPLES * WINDOW_MS, 1000) * rate
            tokens = min(burst, min(burst, tokens + Fraction(at - before, 1000) * rate) - taken)
            before = at
        return tokens

    def throttle_ms(self, limit: int, now: int) -> int:
        tokens = self.tokens(limit, now)
        return min(half_up(-tokens / limit * 1000), MAX_THROTTLE_MS) if tokens < 0 else 0


def entry_of(kind: Kind, limit: int) -> Entry:
    return Entry(user="u", **{RATE_FIELD[kind]: limit})


@pytest.mark.parametrize("kind", [Kind.PRODUCE, Kind.FETCH, Kind.REQUEST])
@given(story=steps, limit=st.integers(1, 2000))
@settings(max_examples=examples(300))
def test_windows_decide_as_the_model_does(kind: Kind, story: list[tuple[int, str, int]], limit: int) -> None:
    ledger = kafka_ledger(entry_of(kind, limit))
    account = ledger.account("u", "c")
    model = WindowModel(Fraction(1, 10), WINDOW_MS) if kind is Kind.REQUEST else WindowModel()
    clock = last = 0
    ledger.check(account, kind, 0)  # the counter exists from now on, so its time begins here
    for gap, action, amount in story:
        clock += gap
        now, ours = max(last, clock), None  # a charge is never earlier than the one before
        if action == "limit":
            limit = amount + 1
            ledger.swap(QuotaTable([entry_of(kind, limit)]))
        elif action == "check":
            ours = ledger.check(account, kind, clock)
        else:
            last = now
            model.events.append((now, -amount if action == "refund" else amount, action != "refund"))
            if action == "charge":
                ours = ledger.charge(account, kind, amount, clock)
            elif action == "record":
                ledger.charge_no_throttle(account, kind, amount, clock)
            else:
                ledger.refund(account, kind, amount, clock)
        # Kafka's doubles may round a delay the other way within a hair of a half; whether there is one is never in
        # doubt for bytes. Tenths (request time) are not exact in doubles: there a violation of nothing may come or go.
        if ours is not None:
            exact = model.throttle_ms(limit, now)
            assert abs(ours - exact) <= 1
            assert ours > 0 or exact <= 1 or kind is Kind.REQUEST


@given(story=mutation_steps, limit=st.integers(1, 20))
@settings(max_examples=examples(300))
def test_buckets_decide_as_the_model_does(story: list[tuple[int, str, int]], limit: int) -> None:
    kind = Kind.MUTATION
    ledger, model, now = kafka_ledger(entry_of(kind, limit)), BucketModel(), 0
    account = ledger.account("u", "c")
    for gap, action, amount in story:
        now += gap
        if action == "limit":
            limit = amount + 1
            ledger.swap(QuotaTable([entry_of(kind, limit)]))
        elif action == "check":
            assert ledger.observed(account, kind, now) == model.tokens(limit, now)
            assert abs(ledger.check(account, kind, now) - model.throttle_ms(limit, now)) <= 1
        elif action == "refund":
            ledger.refund(account, kind, amount, now)
            model.events.append((now, -amount, limit))
        else:
            strict = action == "strict"
            refused = strict and model.tokens(limit, now) < 0
            outcome = ledger.charge_mutation(account, amount, strict, now)
            assert outcome.accepted is not refused
            model.events.append((now, 0 if refused else amount, limit))
            delay = model.throttle_ms(limit, now) if refused or not strict else 0
            assert abs(outcome.throttle_ms - delay) <= 1


def test_million_tenths_of_ms_stay_exact() -> None:
    # Kafka's doubles hold whole bytes exactly up to 2^53, and a sample starts at zero, so nothing can build up. Here 1
    # ms busy each ms is 100 %: tenths are not exact, so each sample is off by some of its last digits, and no more than
    # that after any number of samples. docs/quota-arithmetic.md has the figures for ten times as many.
    ledger = Ledger(QuotaTable([Entry(user="u", request_percentage=200)]))
    account = ledger.account("u", "c")
    for now in range(1_000_000):
        ledger.charge(account, Kind.REQUEST, 1.0, now)
    total, window_ms = next(group.rate.peek(999_999) for group in ledger.groups() if hasattr(group, "rate"))
    assert abs(total - Fraction(window_ms + 1, 10)) < 1e-9
    assert account.meters[Kind.REQUEST].amount == 1_000_000
