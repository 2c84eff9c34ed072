"""Limits of a fleet in the configuration file."""

import pytest

from config.load import load_bytes, warnings_of
from config.problems import ConfigError
from config.schema import json_schema
from config.table import to_table

START = 'upstream: {bootstrap: ["kafka:9092"]}\n'
KEY = "key_file: /etc/kquota-fleet/key"


def _shared(text: str) -> list[bool]:
    table = to_table(load_bytes("kquota.yaml", (START + text).encode()))
    return [table.of_fleet(entry) for entry in table.entries] + [
        table.of_fleet(entry) for entry in table.connections.entries
    ]


@pytest.mark.parametrize(
    ("fleet", "shared"),
    [
        ("{id: shop, key_file: /k}", [True, False, False, False]),
        ("{default_scope: fleet, key_file: /k}", [True, False, True, True]),
    ],
    ids=["instance", "fleet"],
)
def test_an_entry_says_what_its_limits_are_limits_of(fleet: str, shared: list[bool]) -> None:
    text = f"""\
fleet: {fleet}
quotas:
  - {{user: a, producer_byte_rate: 1M, scope: fleet}}
  - {{user: b, producer_byte_rate: 1M, scope: instance}}
  - {{user: c, producer_byte_rate: 1M}}
  - {{ip: <default>, connection_creation_rate: 5}}
"""
    assert _shared(text) == shared


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "quotas:\n  - {user: a, producer_byte_rate: 1M, scope: fleet}\n",
            'kquota.yaml:3:46: quotas[0].scope: got "fleet", expected a section fleet',
        ),
        (
            "fleet: {id: x}\nquotas:\n  - {user: a, max_connections: 5, scope: fleet}\n",
            "expected a limit that a fleet can share: max_connections is always one of each instance",
        ),
        ("fleet: {id: x}\nquotas:\n  - {user: a, producer_byte_rate: 1M, scope: world}\n", "expected a scope: one of"),
        ("fleet: {id: x}\n", "kquota.yaml:2:1: fleet: expected key_file in it: the file with the secret"),
        ("fleet: {key_file: key}\n", 'fleet.key_file: got "key", expected the absolute path of a file'),
        ("fleet: {topic: a b}\n", 'fleet.topic: got "a b", expected a topic name: letters, digits, . _ -'),
        ("fleet: {interval_s: 100ms}\n", "fleet.interval_s"),
        ("fleet: {default_scope: all}\n", "fleet.default_scope"),
        ("fleet: {name: x}\n", "fleet.name: unknown key"),
    ],
    ids=["no section", "cap", "scope", "no key", "path", "topic", "interval", "default", "key"],
)
def test_mistakes_name_place_value_and_expectation(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_bytes("kquota.yaml", (START + text).encode())
    assert complaint in str(caught.value)


def test_the_topic_needs_a_broker_to_begin_with() -> None:
    with pytest.raises(ConfigError, match=r"upstream\.bootstrap"):
        load_bytes("kquota.yaml", b"mode: transparent\nfleet: {default_scope: fleet}\n")


def test_a_fleet_without_limits_is_warned_of() -> None:
    text = f"{START}fleet: {{{KEY}}}\nquotas:\n  - {{user: <default>, producer_byte_rate: 1M}}\n"
    assert "no limit has scope: fleet" in str(warnings_of(load_bytes("kquota.yaml", text.encode()))[-1])


def test_the_schema_knows_both() -> None:
    schema = json_schema()
    assert "fleet" in schema["properties"]
    assert "scope" in schema["$defs"]["QuotaEntry"]["properties"]
