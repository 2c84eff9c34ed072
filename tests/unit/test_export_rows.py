"""Usage records from the ledger's totals, on a clock that the test sets; expected numbers worked out by hand."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from proxy.app.export.rows import MAX_FOLDED_USERS, MAX_ROWS, Sampler
from quota import record
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import CandidateLimits, Entry, QuotaTable
from tests.support.usage_rows import NAMES, from_line

INVENTED = 3000
CONSTANTS = {"instance": "i", "kquota_version": "1", "pod": "p"}


class Watched:
    """A ledger and its sampler; ticks once a second, an interval is as many ticks as the test makes."""

    def __init__(self, *entries: Entry, max_clients: int = 20_000) -> None:
        self.ledger = Ledger(QuotaTable(entries), smooth=False, max_throttle_ms=None, max_clients=max_clients)
        self.sampler = Sampler(self.ledger, CONSTANTS, 0.0)
        self.now_ms = self.start_ms = 0.0

    def charge(self, client_id: str, kind: Kind, amount: float, user: str = "u") -> None:
        account = self.ledger.account(user, client_id)
        self.ledger.wake(account)
        self.ledger.charge(account, kind, amount, self.now_ms)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += 1000.0
            list(self.sampler.tick(self.now_ms))

    def close(self, ticks: int = 0) -> list[record.Row]:
        """The rows of an interval that ends after `ticks` more."""
        self.tick(ticks)
        start_ms, self.start_ms = self.start_ms, self.now_ms
        closed = self.sampler.close(int(start_ms), int(self.now_ms), (self.now_ms - start_ms) / 1000)
        rows = [row for row in closed if row is not None]
        for row in rows:
            line = record.to_line(row)
            assert (line.isascii(), line.count(b"\n"), tuple(json.loads(line))) == (True, 1, NAMES)
            assert from_line(line) == row
        return rows


def values(row: record.Row, *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_a_client_s_use_of_an_interval() -> None:
    watched = Watched()
    for size in (100, 0, 300, 0, 500, 600, 700, 800, 900, 1000):
        if size:
            watched.charge("c", Kind.PRODUCE, size)
        watched.tick()
    watched.charge("c", Kind.REQUEST, 250)
    watched.charge("c", Kind.MUTATION, 7)
    (row,) = watched.close()
    assert values(row, "user", "client_id", "instance", "sequence", "pod") == ["u", "c", "i", 1, "p"]
    assert values(row, "start_ms", "end_ms", "duration_s", "samples") == [0, 10_000, 10.0, 10]
    assert values(row, "produce_bytes", "fetch_bytes", "request_seconds", "mutations") == [4900, 0, 0.25, 7.0]
    # charged after the last tick: in this interval's totals, in the next one's rates
    assert row["request_rate_max"] == 0.0
    assert watched.close(1) == []
    for client_id in ("b", "c"):
        watched.charge(client_id, Kind.PRODUCE, 2)
    found = [values(row, "client_id", "sequence", "produce_bytes") for row in watched.close(1)]
    assert found == [["c", 2, 2], ["b", 3, 2]]


@pytest.mark.parametrize(
    ("rates", "idle", "percentiles"),
    [
        (range(1, 21), 0, [10, 19, 20, 20]),  # ranks ceil(0.5 * 20) = 10, ceil(0.95 * 20) = 19, ceil(0.99 * 20) = 20
        ((7, 5, 6), 97, [0, 0, 6, 7]),  # ranks 50, 95, 99 of 97 zeros, 5, 6, 7
        ((3,), 0, [3, 3, 3, 3]),
    ],
)
def test_percentiles_are_nearest_ranks(rates: Iterable[int], idle: int, percentiles: list[int]) -> None:
    watched = Watched()
    for rate in rates:
        watched.charge('a "quoted"\nname ü', Kind.FETCH, rate)
        watched.tick()
    (row,) = watched.close(idle)
    assert values(row, *(f"fetch_rate_{name}" for name in ("p50", "p95", "p99", "max"))) == percentiles


def test_connections_requests_library_and_mutes() -> None:
    watched = Watched()
    account = watched.ledger.account("u", "c")
    for _ in range(3):
        account.join()
    account.leave()
    for api_key in (0, 0, 0, 0, 1, 1, 1, 78, 3, 3, 11, 22, 19, 18, 18, 18, -1):
        account.counted.add(api_key)
    account.software = "apache-kafka-java/4.2.0"
    account.note_mute(ignored=True)
    account.note_mute(ignored=False)
    watched.ledger.note_throttle(account, Kind.PRODUCE, 1500)
    watched.ledger.note_throttle(account, Kind.REQUEST, 20)
    watched.ledger.note_broker_throttle(account, 7)
    (row,) = watched.close(1)
    assert {name: row[f"requests_{name}"] for name in record.FAMILIES} == (
        {"produce": 4, "fetch": 4, "metadata": 2, "group": 1, "transaction": 1, "admin": 1, "connection": 3, "other": 1}
    )
    assert values(row, "connections_peak", "connections_opened", "mutes", "mutes_ignored") == [3, 3, 2, 1]
    assert values(row, "client_library", "client_library_version") == ["apache-kafka-java", "4.2.0"]
    assert values(row, "throttle_produce_count", "throttle_produce_seconds") == [1, 1.5]
    assert values(row, "throttle_request_count", "throttle_request_seconds") == [1, 0.02]
    assert values(row, "throttle_broker_count", "throttle_broker_seconds") == [1, 0.007]
    account.leave()  # no row for a connection that only ends, but the peak of the next row knows
    watched.ledger.wake(account)
    assert watched.close(1) == []
    watched.charge("c", Kind.PRODUCE, 1)
    (row,) = watched.close(1)
    assert values(row, "connections_peak", "connections_opened", "requests", "mutes") == [1, 0, 0, 0]


def test_limits_and_groups() -> None:
    watched = Watched(Entry(client_id=DEFAULT, producer_byte_rate=1000.0), Entry("u", consumer_byte_rate=50.0))
    for _ in range(2):
        watched.charge("c", Kind.PRODUCE, 2000)
        watched.charge("c", Kind.FETCH, 1)
        watched.tick()
    (row,) = watched.close()
    limit = values(row, "produce_limit", "produce_limit_mode", "produce_limit_level")
    assert limit == [1000.0, "enforce", "<default client-id>"]
    assert values(row, "produce_group_user", "produce_group_client_id") == [None, "c"]
    assert values(row, "fetch_group_user", "fetch_group_client_id", "fetch_limit") == ["u", None, 50.0]
    assert values(row, "mutation_limit", "mutation_limit_mode", "mutation_group_utilisation_peak") == [None, None, None]
    # 4000 bytes in Kafka's window, of which at least 10 s count: 400 bytes/s of 1000
    assert row["produce_group_utilisation_peak"] == pytest.approx(0.4, abs=0.05)


def test_trial_limits_are_exported_once_per_group() -> None:
    candidate = CandidateLimits(consumer_byte_rate=10.0)
    watched = Watched(
        Entry("u", producer_byte_rate=10.0, mode="shadow"), Entry("u", "b", consumer_byte_rate=1e9, candidate=candidate)
    )
    for client in "abc":
        watched.charge(client, Kind.PRODUCE, 1000)
    rows = watched.close(1)
    assert [row["produce_limit_mode"] for row in rows] == ["shadow"] * 3
    (group,) = watched.ledger.groups()
    assert group.shadowed is not None
    assert sum(row["produce_group_shadow_count"] for row in rows) == group.shadowed.throttled == 3
    assert sum(row["produce_group_shadow_seconds"] for row in rows) == group.shadowed.throttle_ms / 1000 > 0
    assert sum(row["throttle_produce_count"] for row in rows) == 0
    watched.charge("b", Kind.PRODUCE, 1000)
    watched.charge("b", Kind.FETCH, 1000)
    (row,) = watched.close(1)
    assert row["produce_group_shadow_count"] == 1
    assert values(row, "fetch_limit", "fetch_candidate_limit", "fetch_group_candidate_count") == [1e9, 10.0, 1]
    # 1000 bytes in 10 s are 100 bytes/s: (100 - 10) / 10 * 10 s
    assert row["fetch_group_candidate_seconds"] == pytest.approx(90.0, rel=0.1)


def test_exports_forgotten_clients_together() -> None:
    watched = Watched(max_clients=2)
    for index in range(5):
        watched.charge(f"c{index}", Kind.PRODUCE, 100 + index)
        watched.ledger.account("u", f"c{index}").counted.add(0)
        if index == 2:
            watched.tick()
    watched.tick()
    assert watched.ledger.clients == 2
    rows = watched.close()
    assert sum(row["produce_bytes"] for row in rows) == 100 + 101 + 102 + 103 + 104
    assert sum(row["requests_produce"] for row in rows) == 5
    assert values(rows[-1], "user", "client_id", "produce_bytes", "requests") == ["u", "other", 100 + 101 + 102, 3]
    assert watched.sampler.folded == 3
    assert [row["sequence"] for row in rows] == [1, 2, 3]
    watched.charge("c0", Kind.PRODUCE, 7)  # back again, a newcomer
    watched.charge("c0", Kind.MUTATION, 5)
    assert [values(row, "client_id", "produce_bytes") for row in watched.close(1)] == [["c0", 7]]
    watched.ledger.refund(watched.ledger.account("u", "c0"), Kind.MUTATION, 3, watched.now_ms)
    assert [values(row, "mutations", "mutation_rate_max") for row in watched.close(1)] == [[-3.0, 0.0]]
    watched.now_ms += 2 * 3_600_000
    assert sum(watched.ledger.sweep(watched.now_ms)) >= 1
    assert list(watched.ledger.accounts()) == [], "the sampler does not keep it alive"


def test_invented_clients_and_users_take_no_rows_from_others() -> None:
    watched = Watched()
    for index in range(300):
        watched.charge(f"old{index}", Kind.PRODUCE, 1)
    assert len(watched.close(1)) == 300
    for interval in range(2):
        for index in range(INVENTED):
            watched.charge(f"new{interval}-{index}", Kind.PRODUCE, 10)
        for index in range(300):
            watched.charge(f"old{index}", Kind.PRODUCE, 1)
        for user in ("x", "y", "other"):
            watched.charge("late", Kind.FETCH, 2, user)
        watched.charge("other", Kind.PRODUCE, 5, "y")
        rows = watched.close(1)
        assert len(rows) == MAX_ROWS + 1
        assert len(b"".join(map(record.to_line, rows))) < 5e6, "68 MB with a row for each"
        assert sum(row["produce_bytes"] for row in rows) == INVENTED * 10 + 300 + 5
        assert sum(row["fetch_bytes"] for row in rows) == 6
        named = {(row["user"], row["client_id"]): row for row in rows}
        assert len(named) == len(rows)
        assert {("u", f"old{index}") for index in range(300)} <= named.keys()
        # The rest of u's; and those who are really called other.
        assert named["u", "other"]["produce_bytes"] == (INVENTED - (MAX_ROWS - 300 - 4)) * 10
        assert {("x", "late"), ("y", "late"), ("other~d9298a10", "late"), ("y", "other~d9298a10")} <= named.keys()
    assert watched.sampler.folded == 2 * (INVENTED - (MAX_ROWS - 300 - 4))
    for index in range(1500):
        watched.charge("c", Kind.PRODUCE, 1, f"u{index}")
    rows = watched.close(1)
    assert len(rows) == MAX_ROWS + MAX_FOLDED_USERS + 1
    assert values(rows[-1], "user", "client_id", "produce_bytes") == ["other", "other", 1500 - len(rows) + 1]


def test_types_for_spark_and_duckdb_name_every_field_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert [part.split(" ")[0] for part in record.spark_ddl().split(", ")] == list(NAMES)
    assert list(record.duckdb_columns()) == list(NAMES)
    assert set(record.UNITS) == {str(kind) for kind in Kind}
