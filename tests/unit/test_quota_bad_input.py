"""Bad and strange quotas, in the file and in the table: refused or accepted as Kafka's AlterClientQuotas does.

A file is stricter in one thing: it names an entity once, while alterations come one after the other.
"""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.load import load_bytes
from config.problems import ConfigError
from config.table import entries
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import RATE_FIELD, CandidateLimits, Entry, QuotaTable

BYTES, DOUBLES = tuple(RATE_FIELD.values())[:2], tuple(RATE_FIELD.values())[2:]


def from_file(*quotas: dict[str, object]) -> list[Entry]:
    text = yaml.safe_dump({"upstream": {"bootstrap": ["kafka:9092"]}, "quotas": list(quotas)})
    return entries(load_bytes("q.yaml", text.encode()))


def refusal(*quotas: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        from_file(*quotas)
    (problem,) = caught.value.problems
    return f"{problem.place}: got {problem.value}, {problem.expected}"


@pytest.mark.parametrize("name", [*BYTES, *DOUBLES])
@pytest.mark.parametrize("value", [0, -1, -(2**63), float("inf"), float("-inf"), float("nan")])
def test_limits_are_finite_and_above_zero(name: str, value: float) -> None:
    # ClientQuotaControlManager.validateQuotaKeyValue; its check (value <= 0) would let NaN and infinity through.
    assert f"quotas[0].{name}: got " in refusal({"user": "u", name: value})
    assert f"quotas[0].candidate.{name}: got " in refusal({"user": "u", name: 1, "candidate": {name: value}})
    for make in (Entry("u", None, 1.0, 1.0, 1.0, 1.0)._replace, CandidateLimits):
        with pytest.raises(ValueError, match=f"{name} is .*, a quota is a finite number above 0"):
            make(**{name: value})


@pytest.mark.parametrize(
    ("names", "values"),
    [(BYTES, [5.0, 2**63 - 1]), (DOUBLES, [5e-324, 0.5, 250.5, 2**63, 1.7e308])],
    ids=["LONG", "DOUBLE"],
)
def test_accepts_kafkas_longs_and_doubles(names: tuple[str, ...], values: list[float]) -> None:
    for name in names:
        for value in values:
            (entry,) = from_file({"user": "u", name: value})
            assert getattr(entry, name) == float(value)


@pytest.mark.parametrize("value", [2**63, 10**30, 10_000.5, 0.5, 1e300])
def test_refuses_byte_rates_that_are_no_longs(value: float) -> None:
    for name in BYTES:
        assert f"quotas[0].{name}: got " in refusal({"user": "u", name: value})


@pytest.mark.parametrize(
    ("names", "in_file", "in_table"),
    [
        ({"user": ""}, 'quotas[0].user: got "", expected', "never empty"),
        ({"client-id": ""}, 'quotas[0].client-id: got "", expected', "never empty"),
        ({}, "expected user, client-id or both", "names a user, a client-id, or both"),
    ],
    ids=["user", "client-id", "none"],
)
def test_refuses_an_entity_without_a_name(names: dict[str, str], in_file: str, in_table: str) -> None:
    assert in_file in refusal({**names, "producer_byte_rate": 1})
    with pytest.raises(ValueError, match=in_table):
        Entry(**dict.fromkeys(("user", "client_id") if names else (), ""), producer_byte_rate=1)  # type: ignore[arg-type]


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=300).filter(
    lambda name: name != "<default>"
)


@given(user=names, client_id=names)
def test_any_unicode_is_a_name(user: str, client_id: str) -> None:
    (entry,) = from_file({"user": user, "client-id": client_id, "producer_byte_rate": 500})
    assert (entry.user, entry.client_id) == (user, client_id)
    ledger = Ledger(QuotaTable([entry]), smooth=False)
    assert ledger.charge(ledger.account(user, client_id), Kind.PRODUCE, 6000, 0) == 2000
    for other in ((user + "x", client_id), (user, client_id + " ")):
        assert ledger.charge(ledger.account(*other), Kind.PRODUCE, 6000, 0) == 0


def test_names_are_not_normalised() -> None:
    # one letter with its accent, and the letter followed by the accent: two names, as in Kafka
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    table = QuotaTable([Entry(composed, None, 1), Entry(decomposed, None, 2)])
    limits = [table.resolve(Kind.PRODUCE, name, "").limit for name in (composed, decomposed, "CAF\u00c9")]
    assert limits == [1, 2, None]


def test_a_client_really_called_default_is_not_the_default() -> None:
    table = QuotaTable(from_file({"client-id": "<default>", "producer_byte_rate": 5}))
    assert table.entries[0].client_id is DEFAULT
    named = table.with_entry(Entry(client_id="<default>", producer_byte_rate=7))
    assert named.resolve(Kind.PRODUCE, "u", "<default>").limit == 7
    assert named.resolve(Kind.PRODUCE, "u", "other").limit == 5


def test_an_entity_stands_once_in_a_file_and_in_a_table() -> None:
    once = {"user": "u", "producer_byte_rate": 1}
    for again in (once, {"user": "u", "client-id": None, "consumer_byte_rate": 1}):
        assert "expected each user and client-id once" in refusal(once, again)
    with pytest.raises(ValueError, match="two quota entries"):
        QuotaTable([Entry("u", None, 1), Entry("u", None, None, 1)])
