"""The window against a slow model that is obviously Kafka's, and promises that hold for any traffic."""

from hypothesis import given
from hypothesis import strategies as st

from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

PRODUCE, FETCH = Kind.PRODUCE, Kind.FETCH


# Gaps around the sample length and the window length are where the corner cases are.
gaps = st.one_of(
    st.integers(0, 30), st.sampled_from([99, 100, 101, 999, 1000, 1001, 1099, 1100, 1101]), st.integers(0, 3000)
)


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
        if not grant.throttle_ms:
            ledger.settle(account, FETCH, grant, amount, now)
        assert 0 <= ledger.check(account, FETCH, now) <= cap
        assert (ledger.allowance(account, FETCH, now) or 0) >= 0
