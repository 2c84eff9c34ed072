"""Who shares which counter and which limit applies: the eight levels, Kafka's tag rules, empty client-ids (cases B)."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.load import load_bytes
from config.table import entries
from quota.entity import DEFAULT, CounterKey, Kind, Level, Name
from quota.ledger import Ledger
from quota.table import RATE_FIELD, CandidateLimits, Entry, QuotaTable

PRODUCE = Kind.PRODUCE
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=300).filter("<default>".__ne__)


def rate(user: Name, client_id: Name, limit: float) -> Entry:
    return Entry(user=user, client_id=client_id, producer_byte_rate=limit)


ALL_LEVELS = {
    Level.USER_CLIENT: rate("u", "c", 1),
    Level.USER_DEFAULT_CLIENT: rate("u", DEFAULT, 2),
    Level.USER: rate("u", None, 3),
    Level.DEFAULT_USER_CLIENT: rate(DEFAULT, "c", 4),
    Level.DEFAULT_USER_DEFAULT_CLIENT: rate(DEFAULT, DEFAULT, 5),
    Level.DEFAULT_USER: rate(DEFAULT, None, 6),
    Level.CLIENT: rate(None, "c", 7),
    Level.DEFAULT_CLIENT: rate(None, DEFAULT, 8),
}


def test_every_level_wins_over_the_ones_below() -> None:
    # All 256 sets of levels, by Kafka's rule, which walks them to find the tags and then looks the limit up by tags.
    for present in product((False, True), repeat=8):
        levels = [level for level, there in zip(Level, present, strict=True) if there]
        table = QuotaTable(ALL_LEVELS[level] for level in levels)
        found = table.resolve(PRODUCE, "u", "c")
        assert table.records(PRODUCE) == bool(levels)
        assert (found.level, found.entry) == ((levels[0], ALL_LEVELS[levels[0]]) if levels else (None, None))
        configured = {level: float(level) if level in levels else None for level in Level}
        assert list(table.levels(PRODUCE, "u", "c").items()) == list(configured.items())
    assert Level.USER_DEFAULT_CLIENT.label == "user+<default client-id>"


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], CounterKey(None, "c")),
        ([Level.CLIENT], CounterKey(None, "c")),
        ([Level.DEFAULT_CLIENT], CounterKey(None, "c")),
        ([Level.USER], CounterKey("u", None)),
        ([Level.DEFAULT_USER], CounterKey("u", None)),
        ([Level.USER_CLIENT], CounterKey("u", "c")),
        ([Level.DEFAULT_USER_DEFAULT_CLIENT], CounterKey("u", "c")),
        ([Level.USER, Level.DEFAULT_CLIENT], CounterKey("u", None)),
        ([Level.DEFAULT_USER, Level.USER_DEFAULT_CLIENT], CounterKey("u", "c")),
        ([Level.DEFAULT_USER, Level.CLIENT], CounterKey("u", None)),
        # of client "d" of user "v", which no quota is about; the last is a mixture: Kafka's last resort
        ([Level.USER], CounterKey("v", None)),
        ([Level.USER_CLIENT], CounterKey("v", "d")),
        ([Level.USER_CLIENT, Level.USER, Level.CLIENT], CounterKey(None, "d")),
    ],
)
def test_counter_tags_follow_levels(levels: list[Level], expected: CounterKey) -> None:
    other = "v" in expected or "d" in expected
    found = QuotaTable(ALL_LEVELS[level] for level in levels).resolve(PRODUCE, *("vd" if other else "uc"))
    assert (found.key, found.limit is None) == (expected, other or not levels)


def test_an_empty_client_id_is_a_name() -> None:
    # B26: at a broker it escapes even the default client-id quota
    ledger = Ledger(QuotaTable([rate(None, DEFAULT, 500)]), max_throttle_ms=None, smooth=False)
    assert ledger.charge(ledger.account("u", ""), PRODUCE, 6000, 0) == 2000
    # and all such clients share one counter: 12 000 / 10 s = 1200; 700 / 500 * 10 000 = 14 000
    assert ledger.charge(ledger.account("v", ""), PRODUCE, 6000, 0) == 14_000
    # Equal tags ("u", ""), two counters: the name "" and no name
    named = QuotaTable([rate("u", DEFAULT, 100)]).resolve(PRODUCE, "u", "")
    unnamed = QuotaTable([rate("u", None, 300)]).resolve(PRODUCE, "u", "")
    assert named.key.tags == unnamed.key.tags == ("u", "")
    assert named.key != unnamed.key


def from_file(**quota: object) -> Entry:
    text = yaml.safe_dump({"upstream": {"bootstrap": ["kafka:9092"]}, "quotas": [quota]})
    (entry,) = entries(load_bytes("q.yaml", text.encode()))
    return entry


@given(user=NAMES, client_id=NAMES)
def test_any_unicode_is_a_name(user: str, client_id: str) -> None:
    entry = from_file(user=user, **{"client-id": client_id}, producer_byte_rate=500)
    assert (entry.user, entry.client_id) == (user, client_id)
    ledger = Ledger(QuotaTable([entry]), smooth=False)
    assert ledger.charge(ledger.account(user, client_id), PRODUCE, 6000, 0) == 2000
    for other in ((user + "x", client_id), (user, client_id + " ")):
        assert ledger.charge(ledger.account(*other), PRODUCE, 6000, 0) == 0


def test_names_are_not_normalised() -> None:
    # one letter with its accent, and the letter followed by the accent: two names, as in Kafka
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    table = QuotaTable([rate(composed, None, 1), rate(decomposed, None, 2)])
    limits = [table.resolve(PRODUCE, name, "").limit for name in (composed, decomposed, "CAF\u00c9")]
    assert limits == [1, 2, None]


@pytest.mark.parametrize("value", [0, -1, -(2**63), float("inf"), float("-inf"), float("nan")])
def test_limits_are_finite_and_above_zero(value: float) -> None:
    # ClientQuotaControlManager.validateQuotaKeyValue; its check (value <= 0) would let NaN and infinity through.
    for name, make in product(
        RATE_FIELD.values(), (partial(replace, Entry("u", None, 1.0, 1.0, 1.0, 1.0)), CandidateLimits)
    ):
        with pytest.raises(ValueError, match=f"{name} is .*, a quota is a finite number above 0"):
            make(**{name: value})


def test_entries_have_names_and_stand_once() -> None:
    for names, said in (
        ((None, None), "names a user, a client-id"),
        (("", None), "never"),
        ((None, ""), "never empty"),
    ):
        with pytest.raises(ValueError, match=said):
            rate(*names, 1)
    with pytest.raises(ValueError, match="two quota entries"):
        QuotaTable([rate("u", None, 1), Entry("u", None, None, 1)])
