"""Bad and strange quotas, in the file and in the table: refused or accepted as Kafka's AlterClientQuotas does.

Where the file is stricter than Kafka it says so here: a file that repeats an entity is a mistake, while alterations
come one after the other.
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
from quota.table import CandidateLimits, Entry, QuotaTable

BYTES = ("producer_byte_rate", "consumer_byte_rate")
DOUBLES = ("request_percentage", "controller_mutation_rate")
INFINITY, NAN = float("inf"), float("nan")


def from_file(*quotas: dict[str, object]) -> list[Entry]:
    return entries(load_bytes("q.yaml", written(*quotas)))


def written(*quotas: dict[str, object]) -> bytes:
    """A configuration file with these quotas."""
    return yaml.safe_dump({"upstream": {"bootstrap": ["kafka:9092"]}, "quotas": list(quotas)}).encode()


def refusal(*quotas: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        from_file(*quotas)
    (problem,) = caught.value.problems
    return f"{problem.place}: got {problem.value}, {problem.expected}"


# Values. LONG for bytes, DOUBLE for the other two, above 0 (ClientQuotaControlManager.validateQuotaKeyValue).


@pytest.mark.parametrize("name", [*BYTES, *DOUBLES])
@pytest.mark.parametrize("value", [0, -1, -(2**63)])
def test_zero_and_negative_limits_are_refused(name: str, value: int) -> None:
    assert refusal({"user": "u", name: value}).startswith(f"quotas[0].{name}: got {value}, expected ")
    on_trial = refusal({"user": "u", name: 1, "candidate": {name: value}})
    assert on_trial.startswith(f"quotas[0].candidate.{name}: got {value}, expected ")
    for make in (lambda: Entry("u", None, **{name: value}), lambda: CandidateLimits(**{name: value})):
        with pytest.raises(ValueError, match=f"{name} is {value}, a quota is a finite number above 0"):
            make()


@pytest.mark.parametrize("name", BYTES)
def test_byte_rates_are_kafkas_longs(name: str) -> None:
    (entry,) = from_file({"user": "u", name: 2**63 - 1})
    assert getattr(entry, name) == 2.0**63  # the nearest double
    for value in (2**63, 10**30, 10_000.5, 0.5, 1e300):
        assert f"quotas[0].{name}: got " in refusal({"user": "u", name: value})
    assert from_file({"user": "u", name: 5.0})[0] == Entry("u", None, **{name: 5.0})


@pytest.mark.parametrize("name", DOUBLES)
def test_the_other_limits_are_kafkas_doubles(name: str) -> None:
    for value in (5e-324, 0.5, 250.5, 2**63, 1.7e308):
        (entry,) = from_file({"user": "u", name: value})
        assert getattr(entry, name) == value


@pytest.mark.parametrize("name", [*BYTES, *DOUBLES])
@pytest.mark.parametrize("value", [INFINITY, -INFINITY, NAN])
def test_refuses_non_numbers(name: str, value: float) -> None:
    # Kafka's check (value <= 0) would let NaN and infinity through; a limit that nothing compares with is none.
    assert f"quotas[0].{name}: got " in refusal({"user": "u", name: value})
    with pytest.raises(ValueError, match=f"{name} is .*, a quota is a finite number above 0"):
        Entry("u", None, **{name: value})
    with pytest.raises(ValueError, match="a quota is a finite number above 0"):
        Entry("u", None, 1.0, 1.0, 1.0, 1.0)._replace(**{name: value})


# Names.


@pytest.mark.parametrize("side", ["user", "client-id"])
def test_empty_names_are_refused(side: str) -> None:
    assert f'quotas[0].{side}: got "", expected' in refusal({side: "", "producer_byte_rate": 1})
    with pytest.raises(ValueError, match="never empty"):
        Entry(**{side.replace("-", "_"): ""}, producer_byte_rate=1)  # type: ignore[arg-type]


def test_no_names_at_all_are_refused() -> None:
    assert "expected user, client-id or both" in refusal({"producer_byte_rate": 1})
    with pytest.raises(ValueError, match="names a user, a client-id, or both"):
        Entry(producer_byte_rate=1)


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
    table = QuotaTable(
        from_file({"user": composed, "producer_byte_rate": 1}, {"user": decomposed, "producer_byte_rate": 2})
    )
    assert table.resolve(Kind.PRODUCE, composed, "").limit == 1
    assert table.resolve(Kind.PRODUCE, decomposed, "").limit == 2
    assert table.resolve(Kind.PRODUCE, "CAF\u00c9", "").limit is None


def test_a_client_really_called_default_is_not_the_default() -> None:
    table = QuotaTable(from_file({"client-id": "<default>", "producer_byte_rate": 5}))
    assert table.entries[0].client_id is DEFAULT
    named = table.with_entry(Entry(client_id="<default>", producer_byte_rate=7))
    assert named.resolve(Kind.PRODUCE, "u", "<default>").limit == 7
    assert named.resolve(Kind.PRODUCE, "u", "other").limit == 5


# Overlaps and repeats.


def test_an_entity_stands_once_in_a_file_and_in_a_table() -> None:
    once = {"user": "u", "producer_byte_rate": 1}
    for again in (once, {"user": "u", "client-id": None, "consumer_byte_rate": 1}):
        assert "expected each user and client-id once" in refusal(once, again)
    with pytest.raises(ValueError, match="two quota entries"):
        QuotaTable([Entry("u", None, 1), Entry("u", None, None, 1)])
