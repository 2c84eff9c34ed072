"""The two sources of limits: the file with its overlay, and the cluster; what stays in force when something fails."""

# ruff: noqa: ASYNC240 - small local files, read and written between two steps of the code under test
import resource
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import yaml

import proxy.app.sources.quota_file
from config.load import load_bytes
from config.model import Config
from config.overlay import load_overlay
from config.table import to_table
from proxy.app.admin.app import not_ready
from proxy.app.sources import quota_cluster
from proxy.app.sources.follow import replace_file
from proxy.app.sources.quota_cluster import ClusterSource
from proxy.app.sources.quota_file import MAX_WAITING, FileSource
from proxy.app.sources.quota_source import QuotaSource
from proxy.net.upstream.cluster import Access, ClusterError
from quota.admin import Changes, Entity, Quotas, enforced
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT
from quota.overlay import UNLIMITED, from_cluster
from quota.table import Entry, QuotaTable
from tests.support.scripted_broker import background, until

ALICE: Entity = (("user", "alice"),)
BOB: Entity = (("user", "bob"),)
PRODUCE, FETCH, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
RATE = "connection_creation_rate"
LIMIT_S = 30.0


def configured(**quotas: Any) -> Config:
    text = yaml.safe_dump({"upstream": {"bootstrap": ["kafka:9092"]}, "quotas": quotas})
    return load_bytes("kquota.yaml", text.encode())


def with_overlay(path: Path, *entries: dict[str, Any], **more: Any) -> Config:
    settings = {"entries": list(entries), "alter": "apply", "alter_principals": ["admin"], "overlay": str(path)}
    return configured(**(settings | more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "overlay.yaml"


@asynccontextmanager
async def running(source: QuotaSource) -> AsyncIterator[list[QuotaTable]]:
    swapped: list[QuotaTable] = []
    source.swap = swapped.append
    with trio.fail_after(LIMIT_S):
        async with background(source.run):
            yield swapped


async def apply(source: QuotaSource, changes: Changes) -> str | None:
    reasons: list[str | None] = []
    source.apply("admin", changes, reasons.append)
    await until(lambda: reasons)
    return reasons[0]


async def test_alterations_stay_over_the_file_and_after_a_restart(path: Path) -> None:
    config = with_overlay(path, {"user": "alice", PRODUCE: 10, FETCH: 20})
    source = FileSource(Path("kquota.yaml"), config)
    assert dict(enforced(source.table)) == {ALICE: {PRODUCE: 10.0, FETCH: 20.0}}
    async with running(source) as swapped:
        assert await apply(source, {ALICE: {PRODUCE: None}, BOB: {TIME: 12.5}}) is None
        assert load_overlay(path) == {ALICE: {PRODUCE: None}, BOB: {TIME: 12.5}}
        assert swapped == [source.table]
        assert dict(enforced(source.table)) == {ALICE: {FETCH: 20.0}, BOB: {TIME: 12.5}}
        assert await apply(source, {BOB: {TIME: 12.5}}) is None  # nothing new: nothing is written
        assert (len(swapped), source.state.overlay_entities) == (1, 2)
        assert dict(enforced(FileSource(Path("kquota.yaml"), config).table)) == dict(enforced(source.table))
        assert source.origin(BOB, TIME) == f"in the overlay {path}, by AlterClientQuotas"
        assert source.origin(ALICE, FETCH) == source.origin(ALICE, PRODUCE) == "in the file kquota.yaml"
        assert (source.may_alter("admin"), source.may_alter("alice")) == (True, False)
        changed = with_overlay(path, {"user": "alice", PRODUCE: 99, FETCH: 5}, alter="deny", alter_principals=["alice"])
        await source.reload(changed, to_table(changed))
        assert dict(enforced(source.table)) == {ALICE: {FETCH: 5.0}, BOB: {TIME: 12.5}}
        assert (source.rule, source.may_alter("admin"), source.may_alter("alice")) == ("deny", False, True)


@pytest.mark.parametrize("source", ["file", "cluster"])
async def test_other_source_takes_a_restart_and_limits_stay(source: str, path: Path) -> None:
    file = with_overlay(path, {"user": "alice", PRODUCE: 10})
    cluster = configured(source="cluster", alter="forward")
    one = FileSource(Path("kquota.yaml"), file) if source == "file" else ClusterSource(cluster, list)
    before, rule = one.table, one.rule
    other = cluster if source == "file" else file
    await one.reload(other, to_table(other))
    assert (one.table, one.rule) == (before, rule)
    assert other.restart_settings() != (file if source == "file" else cluster).restart_settings()


async def test_alterations_that_cannot_be_stored_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileSource(Path("kquota.yaml"), with_overlay(path))
    many: Changes = {(("user", f"user {number}"),): {PRODUCE: 1.0} for number in range(1000)}
    async with running(source) as swapped:
        await apply(source, {ALICE: {PRODUCE: 1.0}})
        before = path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, hard))  # as a full disk: part of it is written
        try:
            assert await apply(source, many) == f"{path} cannot be written: File too large"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        for bound, said in (
            ("MAX_FILE_BYTES", "would become larger than 1000 bytes"),
            ("MAX_VALUES", "would have more than 1000 values (keys, values, lists and mappings)"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(f"config.overlay.{bound}", 1000)
                assert await apply(source, many) == f"{path} {said}"
        assert path.read_bytes() == before
        assert (len(swapped), dict(enforced(source.table))) == (1, {ALICE: {PRODUCE: 1.0}})
        assert [file.name for file in path.parent.iterdir()] == ["overlay.yaml"]
        assert await apply(source, many) is None
        assert len(load_overlay(path)) == 1001


async def test_a_slow_disk_holds_up_administrators_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()

    def slow(path: Path, data: bytes) -> None:
        assert written.wait(LIMIT_S)
        replace_file(path, data)

    monkeypatch.setattr(proxy.app.sources.quota_file, "replace_file", slow)
    source = FileSource(Path("kquota.yaml"), with_overlay(path))
    reasons: list[str | None] = []
    async with running(source):
        source.apply("admin", {ALICE: {PRODUCE: 1.0}}, reasons.append)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(MAX_WAITING):  # one is being written, and these wait
            source.apply("admin", {BOB: {PRODUCE: number + 1.0}}, reasons.append)
        source.apply("admin", {BOB: {PRODUCE: 1.0}}, reasons.append)
        assert reasons == ["100 alterations are waiting already"]
        for _ in range(100):  # the event loop goes on
            await trio.lowlevel.checkpoint()
        written.set()
        await until(lambda: len(reasons) == MAX_WAITING + 2)
    assert set(reasons[1:]) == {None}
    assert load_overlay(path) == {ALICE: {PRODUCE: 1.0}, BOB: {PRODUCE: float(MAX_WAITING)}}


@pytest.mark.usefixtures("quick_files")
async def test_an_edited_overlay_is_read_and_a_broken_one_is_not(path: Path) -> None:
    config = with_overlay(path, {"user": "alice", PRODUCE: 10})
    source = FileSource(Path("kquota.yaml"), config)
    async with running(source):
        await apply(source, {ALICE: {PRODUCE: 11.0}})
        path.write_text("quotas: [{user: alice, producer_byte_rate: 12}]")
        await until(lambda: dict(enforced(source.table)) == {ALICE: {PRODUCE: 12.0}})
        path.write_text("quotas: [{user: alice, producer_byte_rate: 0}]")
        await until(lambda: not source.state.overlay_successful)
        assert dict(enforced(source.table)) == {ALICE: {PRODUCE: 12.0}}
        reason = await apply(source, {BOB: {PRODUCE: 1.0}})
        assert reason is not None
        assert reason.startswith(f"{path} is invalid after an edit: ")
        path.write_text("quotas: [{user: alice, producer_byte_rate: 13}]")
        await until(lambda: source.state.overlay_successful)
        assert await apply(source, {BOB: {PRODUCE: 1.0}}) is None
        assert dict(enforced(source.table)) == {ALICE: {PRODUCE: 13.0}, BOB: {PRODUCE: 1.0}}
        path.unlink()
        await until(lambda: dict(enforced(source.table)) == {ALICE: {PRODUCE: 10.0}})


def test_replaced_file_keeps_permissions_and_follows_no_link(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    replace_file(path, b"one")
    path.chmod(0o600)
    replace_file(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    (tmp_path / "file.tmp").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(path, b"three")
    assert not other.exists()
    assert path.read_bytes() == b"two"


def test_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    """An overlay may be a link to a file on a volume: replacing the link would lose what is set at the next start."""
    (volume := tmp_path / "volume").mkdir()
    (link := tmp_path / "overlay.yaml").symlink_to(volume / "real.yaml")
    for data in (b"one", b"two"):
        replace_file(link, data)
        assert (link.is_symlink(), (volume / "real.yaml").read_bytes()) == (True, data)


class Brokers:
    """By host: what each answers, or why it does not; of a list one after the other, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Quotas | list[Quotas] | str) -> None:
        self.answers = answers
        self.asked: list[str] = []
        monkeypatch.setattr(quota_cluster, "ask_quotas", self.ask)

    async def ask(self, host: str, port: int, access: Access) -> Quotas:
        await trio.lowlevel.checkpoint()
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, str):
            raise ClusterError(answer)
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer


def cluster_source(*hosts: str, **quotas: Any) -> ClusterSource:
    settings = {"source": "cluster", "poll_interval_s": "100ms"} | quotas
    return ClusterSource(configured(**settings), lambda: [(host, 9092) for host in hosts])


VIEW: Any = SimpleNamespace(state="serving", cluster=SimpleNamespace(reached=True), full=None)


async def test_the_last_quotas_known_stay_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, a="a: refused")
    source = cluster_source("a")
    assert not_ready(VIEW, source) == ["cannot read the cluster's quotas: no answer yet"]
    async with running(source) as swapped:
        await until(lambda: source.state.poll_failures > 1)
        assert not_ready(VIEW, source) == ["cannot read the cluster's quotas: a: refused"]
        brokers.answers["a"] = {ALICE: {PRODUCE: 10.0}}
        await until(lambda: bool(swapped))
        assert not_ready(VIEW, source) == []
        before = source.state.poll_failures
        brokers.answers["a"] = "a: gone"
        await until(lambda: source.state.poll_failures > before)
        assert (source.state.successful, dict(enforced(source.table))) == (False, {ALICE: {PRODUCE: 10.0}})
        assert not_ready(VIEW, source) == []
        brokers.answers["a"] = {}
        await until(lambda: source.state.successful)
        assert dict(enforced(source.table)) == {}


async def test_the_broker_that_answered_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, a="a: gone", b={}, c={})
    source = cluster_source("a", "b", "c")
    async with running(source):
        await until(lambda: len(brokers.asked) > 4)
        assert brokers.asked[:4] == ["a", "b", "b", "b"]
        brokers.answers["b"] = "b: gone"
        await until(lambda: "c" in brokers.asked)
        assert brokers.asked[brokers.asked.index("c") - 2 :][:3] == ["b", "a", "c"]


async def test_asks_again_a_broker_that_learns_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has answered, the broker that is asked has not heard of it yet."""
    brokers = Brokers(monkeypatch, a={})
    monkeypatch.setattr(quota_cluster, "AGAIN_S", (0.01, 0.02, 0.03))
    source = cluster_source("a", poll_interval_s="1h", alter="forward")

    async def alter(limit: float, asked_then: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        brokers.answers["a"] = [dict(enforced(source.table)), dict(enforced(source.table)), {ALICE: {PRODUCE: limit}}]
        source.altered_at_the_broker()
        await until(lambda: len(brokers.asked) == asked_then)
        assert dict(enforced(source.table)) == {ALICE: {PRODUCE: limit}}

    async with running(source):
        await until(lambda: len(brokers.asked) == 1)
        await alter(10.0, asked_then=5)
        await alter(20.0, asked_then=9)  # no different from the first
        await trio.sleep(0.1)
        assert len(brokers.asked) == 9, "and then not before the interval is over"


async def test_limits_of_connections_come_from_the_file_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    Brokers(
        monkeypatch,
        a={(("ip", name),): {RATE: rate} for name, rate in (("10.0.0.1", 5.0), ("10.0.0.2", 6.0), (None, 7.0))},
    )
    caps = {"ip": "10.0.0.1", "max_connections": 3}, {"user": "alice", "max_connections": 9}
    entries = [caps[0], {"ip": "10.0.0.2", RATE: 1}, caps[1]]
    source = cluster_source("a", entries=entries)
    async with running(source) as swapped:
        await until(lambda: bool(swapped))
        expected = {
            ConnectionEntry(EntityType.IP, "10.0.0.1", 5.0, 3),
            ConnectionEntry(EntityType.IP, "10.0.0.2", 1.0),
            ConnectionEntry(EntityType.IP, DEFAULT, 7.0),
            ConnectionEntry(EntityType.USER, "alice", None, 9),
        }
        assert set(source.table.connections.entries) == expected
        changed = configured(source="cluster", entries=entries[:1])
        await source.reload(changed, to_table(changed))
        assert ConnectionEntry(EntityType.IP, "10.0.0.2", 6.0) in source.table.connections.entries
    place = "in the cluster itself, at its brokers"
    assert source.origin((("ip", "10.0.0.2"),), RATE) == source.origin((("ip", None),), RATE) == place
    assert source.origin((("ip", "10.0.0.1"),), "max_connections") == "in the configuration file"


def test_names_cluster_quotas_that_cannot_be_enforced() -> None:
    quotas: Quotas = {
        ALICE: {PRODUCE: float("nan"), TIME: float("inf"), FETCH: 2.5, "some_new_rate": 1.0},
        (("ip", "localhost"),): {RATE: 5.0},
        (("user", "x" * 40_000),): {PRODUCE: 1.0},
    }
    table, unusable = from_cluster(QuotaTable(), quotas)
    assert table.entries == (Entry("alice", None, UNLIMITED, 2.5, UNLIMITED),)
    named = ["user=alice, some_new_rate=1", "ip=localhost, connection_creation_rate=5", "user=" + "x" * 35]
    assert [text.split(":")[0][:40] for text in unusable] == named
    own = ConnectionEntry(EntityType.IP, "10.0.0.1", max_connections=3, mode="shadow")
    base = QuotaTable(connections=ConnectionLimits([own, ConnectionEntry(EntityType.IP, DEFAULT, 9.0, mode="shadow")]))
    table, unusable = from_cluster(base, {(("ip", "10.0.0.1"),): {RATE: 5.0}, (("ip", None),): {RATE: 7.0}})
    assert table.connections.entries == base.connections.entries  # the second one's rate is the configuration's
    assert unusable == ["ip=10.0.0.1, connection_creation_rate=5: the configuration has this ip in mode shadow"]
