"""Entries of the ordinary kind are what the model of an entry makes of them, and refused with the same words."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.limit_sets import _MAX_SETS, LimitSetCache
from config.load import load_bytes, warnings_of
from config.model import QuotaEntry
from config.problems import ConfigError
from config.table import to_table
from quota.entity import DEFAULT
from quota.table import Entry
from tests.support.examples import examples

HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'


def outcome(written: str) -> object:
    """Entries, connection limits and warnings of a file, or what is wrong with it."""
    try:
        config = load_bytes("q.yaml", written.encode())
        table = to_table(config)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return table.entries, table.connections.entries, [str(warning) for warning in warnings_of(config)]


def by_the_model(written: str) -> object:
    """The same with each entry looked at whole."""
    with patch.object(LimitSetCache, "entry", lambda *_: None):
        return outcome(written)


def kinds(written: str) -> list[type]:
    """What each entry of a file has been made into."""
    return [type(entry) for entry in load_bytes("q.yaml", (HEAD + "quotas:\n" + written).encode()).quotas]


NAMES = ["a", "b", '"a"', "<default>", "'<default>'", "12", '"12"', "yes", "''", "2024-01-02", "n" * 1001, "1e3"]
LIMITS = ["1M", "4MiB", "0", "-1", "5", "1.5", '"5"', "50%", "x", ".inf", "shadow", "enforce", "~", "10.0.0.1"]
KEYS = [
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
    "max_connections",
    "mode",
    "ip",
    "candidate",
    "producer-byte-rate",
]
NAMED = st.lists(st.tuples(st.sampled_from(["client-id", "user"]), st.sampled_from(NAMES)), min_size=1, max_size=2)
LIKELY = st.lists(st.tuples(st.sampled_from(KEYS[:2]), st.sampled_from(LIMITS[:2])), min_size=1, max_size=1)
LIMITED = LIKELY | st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(LIMITS)), max_size=3)
ROW = st.one_of(
    st.tuples(NAMED, LIMITED).map(lambda parts: [*parts[0], *parts[1]]),
    st.tuples(NAMED, LIKELY).map(lambda parts: [*parts[0], *parts[1]]),
    st.tuples(NAMED, LIMITED).flatmap(lambda parts: st.permutations([*parts[0], *parts[1]])),
)


def alike(row: list[tuple[str, str]], names: list[str]) -> list[list[tuple[str, str]]]:
    """Rows that differ in their first one or two values alone."""
    others = [[(key, name) for key, _ in row[:2]] + row[2:] for name in names]
    return [row, *([(row[0][0], name), *row[1:]] for name in names), *others]


ALIKE = st.builds(alike, ROW, st.lists(st.sampled_from(NAMES), max_size=3))


@given(st.lists(ALIKE, min_size=1, max_size=4).map(lambda groups: [row for group in groups for row in group]))
@settings(max_examples=examples(300))
def test_an_entry_is_what_the_model_makes_of_it(rows: list[list[tuple[str, str]]]) -> None:
    lines = ["  - " + "\n    ".join(f"{key}: {value}" for key, value in row) + "\n" for row in rows]
    written = HEAD + "quotas:\n" + "".join(lines)
    assert outcome(written) == by_the_model(written)


ORDINARY = {
    "client": "  - client-id: a\n    producer_byte_rate: 4M\n",
    "user": "  - user: a\n    request_percentage: 50%\n    mode: shadow\n",
    "both": "  - user: <default>\n    client-id: a\n    controller_mutation_rate: 0.5\n",
    "in braces": '  - {client-id: "a b", user: c, consumer_byte_rate: 1.0e+6}\n',
}
LAST = "  - client-id: last\n    producer_byte_rate: 1\n"
"""The last of several rows is the parser's (`config.rows`)."""


@pytest.mark.parametrize("row", ORDINARY.values(), ids=ORDINARY)
def test_what_is_ordinary(row: str) -> None:
    last = "  - {client-id: last, producer_byte_rate: 1}\n" if "{" in row else LAST
    assert kinds(row + last) == [Entry, QuotaEntry]


WHOLE = {
    "connections": "  - user: a\n    max_connections: 4\n",
    "connections beside": "  - user: a\n    producer_byte_rate: 4M\n    max_connections: 4\n",
    "an address": "  - ip: 10.0.0.1\n    max_connections: 4\n",
    "limits first": "  - producer_byte_rate: 4M\n    client-id: a\n",
    "a name behind the limits": "  - client-id: a\n    producer_byte_rate: 4M\n    user: u\n",
    "a name between the limits": "  - user: u\n    mode: shadow\n    client-id: a\n    producer_byte_rate: 4M\n",
    "a very long name": f"  - client-id: {'n' * 1001}\n    producer_byte_rate: 4M\n",
}


@pytest.mark.parametrize("row", WHOLE.values(), ids=WHOLE)
def test_what_is_looked_at_whole(row: str) -> None:
    assert kinds(row + LAST) == [QuotaEntry, QuotaEntry]
    others = [row.replace(": a\n", f": {name}\n").replace(".1\n", f".{name}\n") for name in "12"]
    written = HEAD + "quotas:\n" + row + "".join(others) + LAST
    assert outcome(written) == by_the_model(written)


def test_an_ordinary_entry_is_told_as_it_is_written() -> None:
    row = "  - {client-id: <default>, user: u, producer_byte_rate: 4M}\n"
    with pytest.raises(ConfigError) as refused:
        load_bytes("q.yaml", (HEAD + "quotas:\n" + row + row + LAST).encode())
    assert [str(problem) for problem in refused.value.problems] == [
        "q.yaml:4:5: quotas[1]: expected each user and client-id once; "
        "user u, client-id <default> has an entry already, quotas[0] at line 3"
    ]


def test_a_duplicate_beside_kafkas_static_names_is_found() -> None:
    row = "  - {client-id: <default>, producer_byte_rate: 4M}\n"
    written = HEAD + "quota.producer.default: 5M\nquotas:\n" + row + LAST
    assert "sets a limit of a client-id that has an entry already" in str(outcome(written))
    assert outcome(written) == by_the_model(written)


def test_sets_of_limits_are_checked_once_and_not_remembered_without_end() -> None:
    known = LimitSetCache()

    def value_of(written: str) -> object:
        return int(written) if written.isdigit() else written

    checked: list[object] = []
    check = QuotaEntry.model_validate
    with patch.object(QuotaEntry, "model_validate", lambda values: checked.append(values) or check(values)):
        made = [known.entry(("client-id", f"c{n}", "producer_byte_rate", "4000"), value_of) for n in range(100)]
        assert made == [Entry(None, f"c{n}", 4000.0) for n in range(100)]
        assert len(checked) == 1
        for limit in range(1, _MAX_SETS + 10):
            assert known.entry(("user", "<default>", "producer_byte_rate", str(limit)), value_of) == Entry(
                DEFAULT, None, float(limit)
            )
    assert len(known._known) == _MAX_SETS
