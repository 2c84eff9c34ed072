"""Quota administration compared with a real broker, and done with Kafka's own tools through the sidecar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.raw_client import RawClient
from tests.sidecars import sidecar

if TYPE_CHECKING:
    from deploy.kafka import KafkaCluster

pytestmark = pytest.mark.broker

Pairs = Sequence[tuple[str, str | None]]
Ops = Sequence[tuple[str, float | None]]
PRODUCE, FETCH, TIME, MUTATIONS, RATE = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
CONFIGS = "kafka.admin.ConfigCommand"


def applying(directory: Path, entries: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`quotas` of a sidecar that applies alterations."""
    return {
        "entries": list(entries),
        "alter": "apply",
        "alter_principals": ["ANONYMOUS"],
        "overlay": str(directory / "overlay.yaml"),
    }


def alter(
    client: RawClient, entries: Sequence[tuple[Pairs, Ops]], *, version: int = 1, validate_only: bool = False
) -> list[tuple[int, str | None, dict[str, str | None]]]:
    from kafka.protocol.admin import AlterClientQuotasRequest as Request

    parts = [
        Request.EntryData(
            entity=[Request.EntryData.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[Request.EntryData.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
        )
        for entity, ops in entries
    ]
    answer = client.ask(Request(version=version, entries=parts, validate_only=validate_only)).message
    return [
        (entry.error_code, entry.error_message, {part.entity_type: part.entity_name for part in entry.entity})
        for entry in answer.entries
    ]


def describe(
    client: RawClient, components: Sequence[tuple[str, int, str | None]] = (), *, strict: bool = False, version: int = 1
) -> tuple[int, dict[frozenset[tuple[str, str | None]], dict[str, float]] | None]:
    from kafka.protocol.admin import DescribeClientQuotasRequest as Request

    parts = [Request.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    answer = client.ask(Request(version=version, components=parts, strict=strict)).message
    if answer.entries is None:
        return answer.error_code, None
    return answer.error_code, {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@contextmanager
def quotas_removed_afterwards(bootstrap: str) -> Iterator[RawClient]:
    """A client of the broker itself; the cluster is shared, and whatever quotas it has at the end are removed."""
    with RawClient(bootstrap) as client:
        try:
            yield client
        finally:
            _, left = describe(client)
            for entity, limits in (left or {}).items():
                alter(client, [(list(entity), [(key, None) for key in limits])])


U: Pairs = [("user", "u")]
ALTERATIONS: dict[str, Sequence[tuple[Pairs, Ops]]] = {
    "set": [(U, [(PRODUCE, 1e6), (FETCH, 2e6)])],
    "change one": [(U, [(PRODUCE, 1.5e6)])],
    "remove one, and one that is not there": [(U, [(PRODUCE, None), (TIME, None)])],
    "mixed": [(U, [(PRODUCE, 2e6), (FETCH, None), (TIME, 12.3)])],
    "every key": [([("client-id", "c")], [(PRODUCE, 1e6), (FETCH, 1e6), (TIME, 250.5), (MUTATIONS, 0.5)])],
    "user and client-id": [([("user", "u"), ("client-id", "c")], [(PRODUCE, 1e6)])],
    "defaults": [
        ([("user", None)], [(PRODUCE, 9e8)]),
        ([("client-id", None)], [(PRODUCE, 9e8)]),
        ([("user", None), ("client-id", None)], [(PRODUCE, 9e8)]),
        ([("user", "u"), ("client-id", None)], [(PRODUCE, 9e8)]),
    ],
    "a user really called <default>": [([("user", "<default>")], [(PRODUCE, 7e6)])],
    "user with spaces": [([("user", "user with spaces")], [(PRODUCE, 20000.0)])],
    "any Unicode": [([("user", "Ü ☃ \U0001f600 \x00 \n")], [(PRODUCE, 20000.0)])],
    "the longest name": [([("user", "x" * 32_767)], [(PRODUCE, 20000.0)])],
    "zero": [(U, [(PRODUCE, 0.0)])],
    "negative": [(U, [(PRODUCE, -1.0)])],
    "minus infinity": [(U, [(TIME, -math.inf)])],
    "a billionth": [(U, [(PRODUCE, 1e-9)])],
    "within the tolerance": [(U, [(PRODUCE, 1000.0000005)])],
    "beyond it": [(U, [(PRODUCE, 2e-6)])],
    "a little less than whole": [(U, [(PRODUCE, 999.9999999)])],
    "a half": [(U, [(PRODUCE, 10000.5)])],
    "2^63": [(U, [(PRODUCE, 2.0**63)])],
    "2^64": [(U, [(PRODUCE, 2.0**64)])],
    "infinite bytes": [(U, [(PRODUCE, math.inf)])],
    "huge percentage": [(U, [(TIME, 1e308)])],
    "tiny percentage": [(U, [(TIME, 1e-300)])],
    "bad key": [(U, [("bad", 1.0)])],
    "empty key": [(U, [("", 1.0)])],
    "bad key beside a good one": [(U, [(MUTATIONS, 77.0), ("bad", 1.0)])],
    "bad key removed": [(U, [("bad", None)])],
    "a key of addresses": [(U, [(RATE, 1.0)])],
    "no keys": [(U, [])],
    "nobody": [([], [(PRODUCE, 1.0)])],
    "empty user": [([("user", "")], [(PRODUCE, 1.0)])],
    "empty client-id": [([("client-id", "")], [(PRODUCE, 1.0)])],
    "empty type": [([("", "x")], [(PRODUCE, 1.0)])],
    "other type": [([("other", "x")], [(PRODUCE, 1.0)])],
    "type in capitals": [([("User", "x")], [(PRODUCE, 1.0)])],
    "user and address": [([("user", "u"), ("ip", "1.2.3.4")], [(PRODUCE, 1.0)])],
    "client-id and address": [([("client-id", "c"), ("ip", "1.2.3.4")], [(RATE, 1.0)])],
    "type twice": [([("user", "x"), ("user", "y")], [(PRODUCE, 7e6)])],
    "key twice": [(U, [(PRODUCE, 1.0), (PRODUCE, 2.0)])],
    "key set and removed": [(U, [(PRODUCE, 1.0), (PRODUCE, None)])],
    "entity twice": [([("user", "twice")], [(PRODUCE, 5e6)]), ([("user", "twice")], [(FETCH, 6e6)])],
    "entity again after a mistake": [([("user", "again")], [("bad", 1.0)]), ([("user", "again")], [(FETCH, 6e6)])],
    "entity twice, types in another order": [
        ([("user", "a"), ("client-id", "b")], [(PRODUCE, 5e6)]),
        ([("client-id", "b"), ("user", "a")], [(FETCH, 6e6)]),
    ],
    "one good, one bad": [([("user", "m1")], [("bad", 1.0)]), ([("user", "m2")], [(PRODUCE, 7e6)])],
    "nothing at all": [],
    "address": [([("ip", "1.2.3.4")], [(RATE, 100.0)])],
    "address changed": [([("ip", "1.2.3.4")], [(RATE, 150.0)])],
    "IPv6 address": [([("ip", "::1")], [(RATE, 2.0**31 - 1)])],
    "default address": [([("ip", None)], [(RATE, 2e6)])],
    "address, too many": [([("ip", "1.2.3.4")], [(RATE, 2.0**31)])],
    "address, a half": [([("ip", "1.2.3.4")], [(RATE, 1.5)])],
    "address, a key of users": [([("ip", "1.2.3.4")], [(PRODUCE, 1.0)])],
    "empty address": [([("ip", "")], [(RATE, 1.0)])],
    "no host because of spaces": [([("ip", "not a valid host because it has spaces")], [(RATE, 1.0)])],
    "no host of that name": [([("ip", "RFC2606.invalid")], [(RATE, 1.0)])],
    "addresses removed": [([("ip", "1.2.3.4")], [(RATE, None)]), ([("ip", None)], [(RATE, None)])],
}
FILTERS: dict[str, tuple[Sequence[tuple[str, int, str | None]], bool]] = {
    "everything": ([], False),
    "nothing": ([], True),
    "a user, open": ([("user", 0, "u")], False),
    "a user, strict": ([("user", 0, "u")], True),
    "nobody of that name": ([("user", 0, "nobody")], False),
    "empty name": ([("user", 0, "")], False),
    "default user": ([("user", 1, None)], False),
    "default user, strict": ([("user", 1, None)], True),
    "any user": ([("user", 2, None)], False),
    "any user, strict": ([("user", 2, None)], True),
    "any client-id of a user": ([("user", 0, "u"), ("client-id", 2, None)], True),
    "any address": ([("ip", 2, None)], False),
    "exactly nothing": ([("user", 0, None)], False),
    "default with a name": ([("user", 1, "u")], False),
    "any with a name": ([("user", 2, "u")], False),
    "unknown way to match": ([("user", 3, None)], False),
    "empty type": ([("", 0, "u")], False),
    "other type": ([("other", 0, "u")], False),
    "type twice": ([("user", 0, "u"), ("user", 2, None)], False),
    "other type twice": ([("other", 0, "u"), ("other", 2, None)], False),
    "address and user": ([("ip", 2, None), ("user", 2, None)], False),
    "address and other type": ([("ip", 2, None), ("other", 2, None)], False),
}


@pytest.mark.parametrize("version", [0, 1])
def test_answers_are_a_brokers(kafka: KafkaCluster, tmp_path: Path, version: int) -> None:
    """G1 to G12: the same requests, one after the other; error codes and the quotas afterwards are the same."""
    with (
        quotas_removed_afterwards(kafka.bootstrap[0]) as broker,
        sidecar(kafka.bootstrap, quotas=applying(tmp_path)) as proxy,
        RawClient(proxy.bootstrap) as ours,
    ):
        assert describe(broker) == describe(ours) == (0, {})
        for what, entries in ALTERATIONS.items():
            for validate_only in (True, False):
                theirs, mine = (
                    [
                        (code, bool(message), sorted(entity.items()))
                        for code, message, entity in alter(
                            client, entries, version=version, validate_only=validate_only
                        )
                    ]
                    for client in (broker, ours)
                )
                key: Callable[[Any], str] = repr
                assert sorted(mine, key=key) == sorted(theirs, key=key), what
                assert describe(ours, version=version) == _eventually(broker, ours, version), what
        for what, (components, strict) in FILTERS.items():
            theirs_found = describe(broker, components, strict=strict, version=version)
            assert describe(ours, components, strict=strict, version=version) == theirs_found, what


def _eventually(broker: RawClient, ours: RawClient, version: int) -> Any:
    """What the broker shows once it has learnt of the change from the controller, as it does a little later."""
    import time

    deadline, wanted = time.monotonic() + 10, describe(ours, version=version)
    while (found := describe(broker, version=version)) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
