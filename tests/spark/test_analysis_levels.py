"""Limits of clients by Kafka's eight levels, in Spark: whatever the sidecar's own table says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis.errors import WrongUseError
from analysis.levels import load_candidate, resolved
from config.load import load_bytes
from config.table import to_table
from proxy.app.cli.check import summary_json
from quota.entity import Kind

pytestmark = pytest.mark.long

QUOTAS = {
    "clients only": "[{client-id: a, producer_byte_rate: 900, request_percentage: 30}, {client-id: <default>, "
    "producer_byte_rate: 2000}]",
    "users only": "[{user: u1, producer_byte_rate: 1500}, {user: <default>, producer_byte_rate: 700, "
    "request_percentage: 45}]",
    "pairs only": "[{user: <default>, client-id: <default>, producer_byte_rate: 500, controller_mutation_rate: 2}]",
    "all eight levels": """
- {user: u1, client-id: a, producer_byte_rate: 400, request_percentage: 10}
- {user: u1, client-id: <default>, producer_byte_rate: 600}
- {user: u2, producer_byte_rate: 800, controller_mutation_rate: 3}
- {user: <default>, client-id: a, producer_byte_rate: 1000}
- {user: <default>, client-id: <default>, request_percentage: 20}
- {user: <default>, request_percentage: 25, controller_mutation_rate: 1}
- {client-id: b, producer_byte_rate: 1300}
- {client-id: <default>, producer_byte_rate: 1700}""",
    "limits of a fleet next to others": """
- {user: u1, producer_byte_rate: 400, scope: instance}
- {user: u2, client-id: a, producer_byte_rate: 800, request_percentage: 10}
- {user: <default>, producer_byte_rate: 900, controller_mutation_rate: 1, scope: instance}
- {user: <default>, client-id: b, producer_byte_rate: 1000}
fleet: {id: f, default_scope: fleet, key_file: /key}""",
}
WINDOWS = {
    "num": 11, "size_seconds": 1, "controller_num": 11, "controller_size_seconds": 1,
    "controller_algorithm": "token_bucket",
}  # fmt: skip
CLIENTS = list(itertools.product(("u1", "u2", "u3"), ("a", "b", "", "d")))


@pytest.mark.parametrize("name", QUOTAS)
def test_limits_and_counters_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    config = load_bytes("q.yaml", f'upstream: {{bootstrap: ["k:9092"]}}\nquotas: {QUOTAS[name]}\n'.encode())
    table = to_table(config)
    path = tmp_path / "candidate.json"
    path.write_text(json.dumps(summary_json("q.yaml", config, table)))
    candidate = load_candidate(path)
    users, clients = (list(names) for names in zip(*CLIENTS, strict=True))
    batch = pa.RecordBatch.from_pydict({"user": users, "client_id": clients})
    for kind in (Kind.PRODUCE, Kind.REQUEST, Kind.MUTATION):
        if not candidate.entries(kind):
            continue
        (rows,) = resolved(kind, [candidate, candidate.scaled(2)])(iter([batch]))
        found = {(row["user"], row["client_id"]): row for row in rows.to_pylist()}
        for one, other in itertools.combinations_with_replacement(CLIENTS, 2):
            mine, right = found[one], table.resolve(kind, *one)
            limits = [right.limit, None if right.limit is None else right.limit * 2]
            assert (mine["limits"], mine["of_fleet"]) == (limits, table.of_fleet(right.entry)), (kind, one)
            same = table.resolve(kind, *other).key.tags == right.key.tags
            names = ("group_user", "group_client")
            if right.limit is not None:
                assert all(mine[key] == found[other][key] for key in names) == same, (kind, one, other)


@pytest.mark.parametrize(
    ("values", "printed"),
    [
        ({"windows": {}}, "expected what `kquota check --json` prints for a valid configuration; it has no 'quotas'"),
        ({"windows": {}, "quotas": []}, "prints for a valid configuration, with 'num'"),
        ({"windows": WINDOWS | {"num": "11"}, "quotas": []}, 'quota.window.num: got "11", expected samples, a whole'),
        ({"windows": WINDOWS, "quotas": [{"user": "a", "producer_byte_rate": "x"}]}, 'producer_byte_rate: got "x"'),
        ({"windows": WINDOWS, "quotas": [{"user": 5, "producer_byte_rate": 1}]}, "quotas[0].user: got 5, expected a"),
        ({"windows": WINDOWS, "quotas": 3}, "prints for a valid configuration: 'int' object is not iterable"),
    ],
)
def test_a_candidate_that_check_did_not_print_is_refused(values: dict[str, Any], printed: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("[" * 200_000)
    with pytest.raises(WrongUseError, match="prints for a valid configuration: maximum recursion depth exceeded"):
        load_candidate(path)
    path.write_text(json.dumps({"ok": True} | values))
    with pytest.raises(WrongUseError) as caught:
        load_candidate(path)
    assert str(caught.value).startswith(f"--candidate {path}: ")
    assert printed in str(caught.value)
