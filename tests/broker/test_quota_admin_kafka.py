"""Quota administration compared with a real broker, and done with Kafka's own tools through the sidecar."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from config.load import load_bytes
from config.overlay import load_overlay
from config.table import to_table
from proxy.app.cli.main import app
from quota.entity import DEFAULT
from tests.lab.kafka import GuardedProcess, KafkaCluster
from tests.support.brokers import JavaTool
from tests.support.raw_client import ClosedByPeerError, Ops, Pairs, RawClient, alter_quotas, produce_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

PRODUCE, FETCH, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, RATE = "controller_mutation_rate", "connection_creation_rate"


def applying(directory: Path, *entries: dict[str, Any]) -> dict[str, Any]:
    """`quotas` of a sidecar that applies alterations."""
    overlay = str(directory / "overlay.yaml")
    return {"entries": entries, "alter": "apply", "alter_principals": ["ANONYMOUS"], "overlay": overlay}


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
    """A client of the broker itself; the cluster is shared, and whatever quotas others have left are removed, too."""

    def remove_all() -> None:
        deadline = time.monotonic() + 20
        while (left := describe(client)[1]) and time.monotonic() < deadline:
            for entity, limits in left.items():
                alter_quotas(client, [(list(entity), [(key, None) for key in limits])])
            time.sleep(0.1)  # the broker learns of it from the controller a little later

    with RawClient(bootstrap) as client:
        remove_all()
        try:
            yield client
        finally:
            remove_all()


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
    "bad key next to a good one": [(U, [(MUTATIONS, 77.0), ("bad", 1.0)])],
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


@pytest.mark.parametrize(
    ("cluster", "version"), [pytest.param("kafka", 0, marks=pytest.mark.long), ("kafka", 1), ("kafka_391", 1)]
)
def test_quota_admin_answers_as_a_broker(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: str, version: int
) -> None:
    """G1 to G12: the same requests, one after the other; error codes and the quotas afterwards are the same."""
    kafka: KafkaCluster = request.getfixturevalue(cluster)
    with (
        quotas_removed_afterwards(kafka.bootstrap[0]) as broker,
        sidecar(kafka.bootstrap, quotas=applying(tmp_path)) as proxy,
        RawClient(proxy.bootstrap) as ours,
    ):
        assert describe(broker) == describe(ours) == (0, {})

        def answers(client: RawClient, entries: Sequence[tuple[Pairs, Ops]], validate_only: bool) -> list[str]:
            found = alter_quotas(client, entries, version=version, validate_only=validate_only)
            return sorted(repr((code, bool(message), sorted(entity.items()))) for code, message, entity in found)

        for what, entries in ALTERATIONS.items():
            for validate_only in (True, False):
                assert answers(ours, entries, validate_only) == answers(broker, entries, validate_only), what
                # The broker learns of it from the controller a little later.
                until(lambda: describe(ours, version=version) == describe(broker, version=version), what, 10.0)
        for what, (components, strict) in FILTERS.items():
            theirs_found = describe(broker, components, strict=strict, version=version)
            assert describe(ours, components, strict=strict, version=version) == theirs_found, what


Configs = Callable[..., str]


def tool(java_tool: JavaTool, bootstrap: str) -> tuple[Configs, Configs]:
    """`kafka-configs` of Kafka: what it prints; and, where it has to fail, what it complains of."""

    def run(*arguments: str, check: bool = True) -> Any:
        return java_tool("kafka.admin.ConfigCommand", ["--bootstrap-server", bootstrap, *arguments], check=check)

    def refused(*arguments: str) -> str:
        found = run(*arguments, check=False)
        assert found.returncode != 0, found.stdout
        return str(found.stderr)

    return lambda *arguments: run(*arguments).stdout.strip(), refused


def user(name: str | None, *what: str) -> tuple[str, ...]:
    return (*what, "--entity-type", "users", *(["--entity-default"] if name is None else ["--entity-name", name]))


def test_kafka_configs_sets_describes_and_deletes(kafka: KafkaCluster, java_tool: JavaTool, tmp_path: Path) -> None:
    quotas = applying(tmp_path, {"user": "<default>", FETCH: "4M"}, {"user": "shade", PRODUCE: 1, "mode": "shadow"})
    with sidecar(kafka.bootstrap, quotas=quotas) as proxy, RawClient(kafka.bootstrap[0]) as broker:
        configs, refused = tool(java_tool, proxy.bootstrap)
        configs(*user("user with spaces", "--alter"), "--add-config", f"{PRODUCE}=1000000,{TIME}=50.5")
        configs(*user("<default>", "--alter"), "--add-config", f"{PRODUCE}=7")
        assert configs("--describe", "--entity-type", "users").splitlines() == [
            "Quota configs for the default user-principal are consumer_byte_rate=4000000.0",
            "Quota configs for user-principal 'user with spaces' are producer_byte_rate=1000000.0, "
            "request_percentage=50.5",
            "Quota configs for user-principal '<default>' are producer_byte_rate=7.0",
        ]
        configs(*user("user with spaces", "--alter"), "--delete-config", TIME)
        configs(*user(None, "--alter"), "--delete-config", FETCH)
        configs(*user(None, "--alter"), "--entity-type", "clients", "--entity-default", "--add-config", f"{FETCH}=9")
        configs("--alter", "--entity-type", "ips", "--entity-name", "127.0.0.9", "--add-config", f"{RATE}=10")
        both = configs("--describe", "--entity-type", "users", "--entity-type", "clients")
        one, addresses = configs(*user("user with spaces", "--describe")), configs("--describe", "--entity-type", "ips")
        assert [both, one, addresses] == [
            "Quota configs for the default user-principal, the default client-id are consumer_byte_rate=9.0",
            "Quota configs for user-principal 'user with spaces' are producer_byte_rate=1000000.0",
            "Quota configs for ip '127.0.0.9' are connection_creation_rate=10.0",
        ]
        text = "InvalidRequestException: expected producer_byte_rate to be a finite number above 0, got -5"
        assert text in refused(*user("alice", "--alter"), "--add-config", f"{PRODUCE}=-5")
        complaint = refused(*user("user with spaces", "--alter"), "--delete-config", TIME)
        assert "Invalid config(s): request_percentage" in complaint
        assert describe(broker) == (0, {})  # the broker has seen nothing of it
        overlay = (tmp_path / "overlay.yaml").read_text()
    assert [line for line in overlay.splitlines() if not line.startswith("#")] == [
        "quotas:",
        "- {user: user with spaces, producer_byte_rate: 1000000}",
        "- user: {name: <default>}",
        "  producer_byte_rate: 7",
        "- {user: <default>, consumer_byte_rate: null}",
        "- {user: <default>, client-id: <default>, consumer_byte_rate: 9}",
        "- {ip: 127.0.0.9, connection_creation_rate: 10}",
    ]


def limit_of(proxy: Sidecar, kind: str, name: str) -> float | None:
    """The limit that the sidecar applies to a user, as `kquota explain --admin` shows it."""
    answer = proxy.get(f"/explain?user={name}&client_id=c")
    found = next(one for one in answer["kinds"] if one["kind"] == kind)
    return None if found["limit"] is None else float(found["limit"])


def test_the_clusters_quotas_are_enforced_as_they_change(kafka: KafkaCluster, java_tool: JavaTool, topic: str) -> None:
    """Set at the broker, which would enforce them too: for ANONYMOUS, as every client is here."""
    alice: Pairs = [("user", "alice")]
    quotas = {"source": "cluster", "poll_interval_s": 0.5}
    with (
        quotas_removed_afterwards(kafka.bootstrap[0]) as broker,
        sidecar(kafka.bootstrap, quotas=quotas, identity={"sources": ["static"], "static": "alice"}) as proxy,
        RawClient(proxy.bootstrap, "c") as ours,
    ):

        def produce_50_kb() -> int:
            """The throttle time of the answer, on a connection of its own."""
            with RawClient(proxy.bootstrap, "c") as client:
                answer = client.ask(produce_message(9, client.topic(topic), [b"v" * 50_000]))
                return int(answer.message.throttle_time_ms)

        assert produce_50_kb() == 0
        alter_quotas(broker, [(alice, [(PRODUCE, 2000), (FETCH, 3000)]), ([("ip", "10.1.2.3")], [(RATE, 10)])])
        until(lambda: limit_of(proxy, "produce", "alice") == 2000)
        assert limit_of(proxy, "fetch", "alice") == 3000
        assert produce_50_kb() > 1000
        until(lambda: len(describe(ours)[1] or {}) == 2 and describe(ours) == describe(broker))
        assert proxy.metric("kquota_quota_limit", kind="produce", user="alice") == 2000
        alter_quotas(broker, [(alice, [(PRODUCE, 2.0**63)])])
        until(lambda: limit_of(proxy, "produce", "alice") == 2.0**63)
        alter_quotas(broker, [(alice, [(PRODUCE, None), (FETCH, None)])])
        until(lambda: limit_of(proxy, "produce", "alice") is None)
        until(lambda: proxy.metric("kquota_quota_source_changes_total") >= 3)  # an exposition is up to a second old
        assert proxy.metric("kquota_quota_source_last_poll_successful") == 1
        _, refused = tool(java_tool, proxy.bootstrap)
        text = "quotas cannot be altered through this kquota sidecar: they are managed in the cluster"
        complaint = refused(*user("alice", "--alter"), "--add-config", f"{PRODUCE}=1")
        assert f"PolicyViolationException: {text}" in complaint


@pytest.mark.long
def test_forwarded_alteration_applies_at_once(kafka: KafkaCluster, java_tool: JavaTool) -> None:
    quotas = {"source": "cluster", "poll_interval_s": "1h", "alter": "forward"}
    with quotas_removed_afterwards(kafka.bootstrap[0]) as broker, sidecar(kafka.bootstrap, quotas=quotas) as proxy:
        configs, refused = tool(java_tool, proxy.bootstrap)
        configs(*user("alice", "--alter"), "--add-config", f"{PRODUCE}=1000000")
        until(lambda: limit_of(proxy, "produce", "alice") == 1_000_000)
        assert describe(broker)[1] == {frozenset({("user", "alice")}): {PRODUCE: 1_000_000.0}}
        assert "greater than 0" in refused(*user("alice", "--alter"), "--add-config", f"{PRODUCE}=0")
        assert proxy.metric("kquota_quota_alterations_total", outcome="forwarded") == 2


@pytest.mark.long
def test_overlay_survives_crash_at_any_moment(kafka: KafkaCluster, tmp_path: Path) -> None:
    """SIGKILL in the middle of alterations, again and again: what was acknowledged is there, or something newer."""
    overlay, last, acknowledged = tmp_path / "overlay.yaml", 0, 0
    for round_number in range(4):
        process: GuardedProcess | None = None
        with pytest.raises(AssertionError), sidecar(kafka.bootstrap, quotas=applying(tmp_path)) as proxy:  # noqa: PT012
            process = proxy.process
            with RawClient(proxy.bootstrap) as admin:
                _, found = describe(admin)
                if round_number:
                    kept = (found or {})[frozenset({("user", "alice")})][PRODUCE]
                    assert acknowledged <= kept <= last
                fatal = last + 5  # from this alteration on it is killed, a moment later each time
                with suppress(OSError, ClosedByPeerError):
                    while True:
                        last += 1
                        if last == fatal:
                            threading.Timer(0.004 * round_number, process.kill).start()
                        others = [([("user", f"user {number}")], [(PRODUCE, float(last))]) for number in range(200)]
                        answers = alter_quotas(admin, [([("user", "alice")], [(PRODUCE, float(last))]), *others])
                        assert {code for code, _, _ in answers} == {0}
                        acknowledged = last
            process.wait(10)
            assert process.returncode == -signal.SIGKILL
        assert len(load_overlay(overlay)) == 201
    assert acknowledged > 4


def test_import_turns_the_clusters_quotas_into_entries(kafka: KafkaCluster, tmp_path: Path) -> None:
    (path := tmp_path / "kquota.yaml").write_text(f"upstream: {{bootstrap: {json.dumps(list(kafka.bootstrap))}}}\n")

    def imported(*source: str) -> Any:
        return CliRunner().invoke(app, ["import", "kafka", *source])

    with quotas_removed_afterwards(kafka.bootstrap[0]) as broker:
        empty = imported("--config", str(path))
        assert (empty.exit_code, empty.stdout) == (1, "")
        wanted: list[tuple[Pairs, Ops]] = [
            ([("user", "alice"), ("client-id", "etl")], [(PRODUCE, 1e6), (TIME, 12.5)]),
            ([("user", None)], [(FETCH, 2e6)]),
            ([("ip", "10.0.0.1")], [(RATE, 20.0)]),
            ([("user", "<default>")], [(PRODUCE, 7.0)]),
            ([("client-id", "a\u202eb")], [(PRODUCE, 8.0)]),
            ([("client-id", "a\nwarning: b")], [(PRODUCE, 9.0)]),
            ([("ip", "::1")], [(RATE, 3.0)]),
            ([("ip", "::0001")], [(RATE, 3.0)]),
        ]
        alter_quotas(broker, wanted)
        until(lambda: len(describe(broker)[1] or {}) == len(wanted), limit_s=20.0)
        done = imported("--config", str(path))
        assert imported("--bootstrap", kafka.bootstrap[0]).stdout == done.stdout
    assert done.exit_code == 0, done.output
    table = to_table(load_bytes("q.yaml", done.stdout.encode(), on_paper=True))
    assert {(entry.user, entry.client_id): entry.producer_byte_rate for entry in table.entries} == {
        ("alice", "etl"): 1_000_000,
        (DEFAULT, None): None,
        (None, "a\u202eb"): 8,
    }
    assert "{ip: 10.0.0.1, connection_creation_rate: 20}" in done.stdout
    assert all(line.startswith("warning: skipped: ") for line in done.stderr.splitlines())
    assert "a\\nwarning: b: client-id: expected a client-id" in done.stderr
    assert "cannot be distinguished from the default" in done.stderr
    assert "another spelling of an address that has an entry" in done.stderr
