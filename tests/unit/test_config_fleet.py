"""Limits of a fleet in the configuration file."""

import pytest

from config.load import load_bytes, warnings_of
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
def test_entry_scope_is_instance_or_fleet(fleet: str, shared: list[bool]) -> None:
    text = f"""\
fleet: {fleet}
quotas:
  - {{user: a, producer_byte_rate: 1M, scope: fleet}}
  - {{user: b, producer_byte_rate: 1M, scope: instance}}
  - {{user: c, producer_byte_rate: 1M}}
  - {{ip: <default>, connection_creation_rate: 5}}
"""
    assert _shared(text) == shared


def test_a_fleet_without_limits_is_warned_of() -> None:
    text = f"{START}fleet: {{{KEY}}}\nquotas:\n  - {{user: <default>, producer_byte_rate: 1M}}\n"
    assert "no limit has scope: fleet" in str(warnings_of(load_bytes("kquota.yaml", text.encode()))[-1])
