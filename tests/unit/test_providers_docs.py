"""The files in docs/providers.md are good configurations, without a mistake and without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.load import load_bytes, warnings_of
from config.table import to_table
from quota.entity import Kind

TEXT = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
FILES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```yaml\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL))


def test_each_provider_of_the_table_has_its_file() -> None:
    rows = re.findall(r"^\| ([A-Z][^|]+?) \|", TEXT, re.MULTILINE)
    assert [row.partition(" (")[0] for row in rows] == list(FILES)


@pytest.mark.parametrize("provider", FILES)
def test_the_file_is_accepted(provider: str) -> None:
    config = load_bytes(f"{provider}.yaml", FILES[provider].encode())
    assert warnings_of(config) == []
    table = to_table(config)
    assert any(table.records(kind) for kind in Kind)
