"""Hot reload with real files: changes are applied, bad files refused, the last good one stays in force. And what is no
regular file in their place, and file systems that do not answer."""

import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from config.known_ports import BadStateError, load_ports
from config.load import load, load_bytes
from config.model import Config
from config.overlay import load_overlay
from config.parts import Fingerprint, fingerprint
from config.problems import ConfigError
from deploy.kubernetes.webhook import of_files, read_template
from proxy.app.sources import follow, quota_file
from proxy.app.sources.follow import MAX_SETTLING, Aside, Followed, Follower, StuckError, replace_file
from proxy.app.sources.quota_file import FileSource
from proxy.app.sources.security import load_security
from proxy.app.sources.watch import ReloadState, Watcher
from proxy.net import files
from proxy.net.files import in_memory, read_file
from proxy.net.tls.contexts import KeyPair, ServerTls, TlsFilesError
from proxy.net.upstream.credentials import Credentials, LoginError
from quota.admin import enforced
from quota.entity import Kind
from quota.table import QuotaTable
from tests.support.certificates import Issued
from tests.support.hostile_files import KINDS, put, put_file, take_away
from tests.support.scripted_broker import background, until
from tests.support.tls_pairs import done_by

pytestmark = pytest.mark.usefixtures("quick_files")
LIMIT_S = 30.0
UPSTREAM = 'upstream: {bootstrap: ["kafka:9092"]}\n'


def quota(limit: str | int) -> str:
    return UPSTREAM + f"quotas: [{{client-id: c, producer_byte_rate: {limit}}}]\n"


class Running:
    def __init__(self, path: Path) -> None:
        self.state = ReloadState()
        self.limits: list[float | None] = []
        self.tables: list[QuotaTable] = []
        now = fingerprint(path)
        self.watcher = Watcher(path, load(path), now, self.state, self._apply)

    async def _apply(self, config: Config, table: QuotaTable) -> None:
        self.tables.append(table)
        self.limits.append(table.resolve(Kind.PRODUCE, "u", "c").limit)


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Running]:
    running = Running(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.watcher.run)
        yield running
        with trio.fail_after(LIMIT_S):  # whatever its threads do
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()


async def test_does_not_load_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SETTLE_S", 0.5)
    (path := tmp_path / "q.yaml").write_text(quota("1M"))
    async with watching(path) as running:
        with path.open("w") as file:  # each prefix of this is a file that loads, with other limits
            file.write(UPSTREAM)
            for piece in ("quotas:\n", *(f"- {{client-id: {one}, producer_byte_rate: 7}}\n" for one in "ac")):
                file.flush()
                await trio.sleep(0.02)
                file.write(piece)
        await until(lambda: bool(running.limits))
        assert running.limits == [7]


async def test_default_scope_takes_a_restart(tmp_path: Path) -> None:
    """The members go on sharing, so a limit must not become each instance's own before they restart."""
    (key := tmp_path / "key").write_text("k" * 32)
    fleet = f"fleet: {{key_file: {key}, default_scope: fleet}}\n"
    (path := tmp_path / "q.yaml").write_text(fleet + quota("1M"))
    async with watching(path) as running:
        for count, text in enumerate((fleet.replace("scope: fleet", "scope: instance"), ""), 1):
            path.write_text(text + quota(count))
            await until(lambda: len(running.limits) == count)  # noqa: B023 - it ends within this turn
            await until(lambda: bool(running.state.restart_settings))
            assert "fleet.default_scope" in running.state.restart_settings
        assert [table.default_scope for table in running.tables] == ["fleet", "fleet"]
        assert running.limits == [1, 2]


@pytest.mark.parametrize("source", ["file", "cluster"])
async def test_says_that_quotas_of_another_source_wait_for_a_restart(tmp_path: Path, source: str) -> None:
    texts = {"file": quota("1M"), "cluster": UPSTREAM + "quotas: {source: cluster}\n"}
    (path := tmp_path / "q.yaml").write_text(texts.pop(source))
    with structlog.testing.capture_logs() as logs:
        async with watching(path) as running:
            path.write_text(*texts.values())
            await until(lambda: bool(running.state.restart_settings))
    found = [line for line in logs if "restart" in line["event"]]
    assert [(line["event"], line["settings"]) for line in found] == [
        ("the file's quotas are not in force: changed settings need a restart", ["quotas.source"])
    ]


def test_a_regular_file_is_read_through_links_up_to_the_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link", 1000) == b"x" * 1000
    with pytest.raises(OSError, match="it has 1000 bytes; at most 999 are read"):
        read_file(tmp_path / "link", 999)
    assert read_file("/proc/self/status", 100_000).startswith(b"Name:"), "a file that says it has no bytes"
    with pytest.raises(OSError, match="it has more than 10 bytes"):
        read_file("/proc/self/status", 10)


@pytest.mark.parametrize("kind", KINDS)
def test_reads_no_irregular_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither found there, nor put in between the look at a file and its opening."""
    path = tmp_path / "file"
    reason = put(kind, path)
    assert fingerprint(path).data is None
    assert reason in (fingerprint(path).error or "")
    take_away(path)
    path.write_text("good")
    check, looks = files._check, iter(range(10))

    def look(found: os.stat_result, *more: Any) -> None:
        check(found, *more)
        if next(looks) == 0:
            put(kind, path)

    monkeypatch.setattr(files, "_check", look)
    with pytest.raises(OSError, match="No such device or address" if kind == "socket" else reason):
        read_file(path, 1_000_000)


def test_refuses_file_that_grows_while_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    check = files._check

    def check_and_grow(found: os.stat_result, *more: Any) -> None:
        check(found, *more)
        with path.open("ab") as file:
            file.write(b"x" * 3000)

    monkeypatch.setattr(files, "_check", check_and_grow)
    with pytest.raises(OSError, match="it has more than 5000 bytes; larger files are not read"):
        read_file(path, 5000)


def configured(text: str) -> Config:
    return load_bytes("q.yaml", f"{UPSTREAM}{text}\n".encode())


def static_user(static: str) -> None:
    load_security(configured(f"identity: {{static: {{{static}}}}}"))


def server_tls(certificate: Path, key: Path, authorities: Path | None = None) -> ServerTls:
    pair = KeyPair(certificate, key)
    return ServerTls(pair, client_auth="required" if authorities else "none", client_authorities=authorities)


READERS: dict[str, tuple[Callable[[Path, Issued], object], str]] = {
    "configuration": (lambda path, _: load(path), "{path}: cannot be read: "),
    "overlay": (lambda path, _: load_overlay(path), "{path}: cannot be read: "),
    "overlay at the start": (
        lambda path, _: FileSource(path.with_name("q.yaml"), configured(f"quotas: {{overlay: {path}}}")),
        "{path}: cannot be read: ",
    ),
    "ports": (lambda path, _: load_ports(path), "{path} cannot be read: "),
    "password": (lambda path, _: Credentials("PLAIN", "me", path).secret(), "{path}: "),
    "static user": (lambda path, _: static_user(f"file: {path}"), "identity.static {path}: cannot be read: "),
    "template of a user": (
        lambda path, _: static_user(f'template: "{{namespace}}", directory: {path.parent}'),
        "identity.static {path}: cannot be read: ",
    ),
    "certificate": (lambda path, issued: server_tls(path, issued.key), "listen.tls.certificate_file {path}: cannot"),
    "key": (lambda path, issued: server_tls(issued.chain, path), "listen.tls.key_file {path}: cannot be read: "),
    "authorities": (
        lambda path, issued: server_tls(issued.chain, issued.key, path),
        "listen.tls.client_ca_file {path}: cannot be read: ",
    ),
    "template of the webhook": (lambda path, _: read_template(path), ""),
    "certificate of the webhook": (lambda path, issued: of_files(path, issued.key), ""),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_name_the_file_and_the_reason(reader: str, tmp_path: Path, host: Issued) -> None:
    path = tmp_path / "namespace"
    reason = put("FIFO", path)
    read, said = READERS[reader]
    with pytest.raises((BadStateError, ConfigError, LoginError, TlsFilesError, OSError)) as error:
        read(path, host)
    assert said.format(path=path) in str(error.value)
    assert reason in str(error.value)


def test_pythons_ssl_loads_the_checked_file(tmp_path: Path, host: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens files by itself, and would wait for a FIFO that has taken the place of one in between."""
    key = tmp_path / "key"
    key.write_bytes(host.key.read_bytes())
    monkeypatch.setattr("proxy.net.tls.python_ssl.in_memory", lambda data: (in_memory(data), put("FIFO", key))[0])
    with done_by("python"):
        assert ServerTls(KeyPair(host.chain, key)).expires_at_s is not None


def test_overwrites_only_regular_files(tmp_path: Path) -> None:
    path, made = tmp_path / "o.yaml", tmp_path / "o.yaml.tmp"
    for kind in ("endless device", "directory", "FIFO"):
        put(kind, made)
        with pytest.raises(OSError, match=r"No such device|Is a directory|symbolic links"):
            replace_file(path, b"one")
        assert not path.exists()
    with (
        open(made, opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_NONBLOCK)),  # with a reader it can be opened
        pytest.raises(OSError, match="not a regular file"),
    ):
        replace_file(path, b"two")


@pytest.mark.parametrize("kind", [*KINDS, "a mistake", "gone"])
async def test_bad_configuration_keeps_the_former_and_is_told_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    put_file(path, quota(1))
    with structlog.testing.capture_logs() as logs:
        async with watching(path) as running:
            if kind == "a mistake":
                put_file(path, quota("2X"))
                reason = (
                    ':2:45: quotas[0].producer_byte_rate: got "2X", expected bytes per second of at least 1, such as'
                )
            elif kind == "gone":
                path.unlink()
                reason = ": cannot be read: No such file or directory"
            else:
                reason = f": cannot be read: {put(kind, path)}"
            # root sees the moment between the old and the new: a file that is gone is one more failure
            await until(lambda: any(reason in str(entry.get("problems")) for entry in logs))
            assert (running.limits, running.state.successful) == ([], False)
            failures = running.state.failures
            await trio.sleep(0.1)
            assert running.state.failures == failures, "reported once, not at each look"
            put_file(path, quota(1))  # the very content in force: whole again
            await until(lambda: running.limits == [1])
            assert running.state.successful
    assert f"{path}{reason}" in [e for e in logs if e["log_level"] == "error"][-1]["problems"][0]


async def test_irregular_followed_files_keep_the_former(tmp_path: Path, host: Issued) -> None:
    cert, user = tmp_path / "cert", tmp_path / "user"
    put_file(cert, host.chain.read_bytes())
    put_file(user, "web\n")
    tls_text = f"listen: {{tls: {{certificate_file: {cert}, key_file: {host.key}}}}}"
    security = load_security(configured(f"identity: {{static: {{file: {user}}}}}\n{tls_text}"))
    tls, static = security.follower.followed
    follower = Follower([tls, static])
    before: ssl.SSLContext = security.sides[0].context
    with structlog.testing.capture_logs() as logs:
        async with background(follower.run):
            reason = put("FIFO", cert)
            put("FIFO", user)
            await until(lambda: not tls.successful and not static.successful)
            both = {tls.setting, static.setting}
            await until(lambda: {entry["setting"] for entry in logs if reason in str(entry.get("error"))} == both)
            assert security.sides[0].context is before
            assert security.identity.static_user == "web"
            put_file(cert, host.chain.read_bytes())
            put_file(user, "shop\n")
            await until(lambda: tls.successful and static.successful)
            assert security.identity.static_user == "shop"
            assert security.sides[0].context is not before


class Silent:
    """A file system that does not answer, in place of a function that reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, path: Path) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self._real = getattr(module, name)
        self._path = path
        monkeypatch.setattr(module, name, self)

    def __call__(self, path: Path, *more: Any) -> Any:
        if path == self._path and not self.answers.is_set():
            self.asked += 1
            self.answers.wait(120)
        return self._real(path, *more)


class Restless(Silent):
    """A file that differs at each reading, until it `answers`."""

    def __call__(self, path: Path, *more: Any) -> Any:
        found = self._real(path, *more)
        if path != self._path or self.answers.is_set():
            return found
        self.asked = 1
        return Fingerprint(f"{time.monotonic_ns()}", None, found.data)


@pytest.mark.parametrize(
    ("kind", "timeout_s", "reason"),
    [
        (Silent, 0.05, "no answer from the file system within 0.05 s"),
        (Restless, LIMIT_S, f"it keeps changing: {MAX_SETTLING + 1} readings, and no two in a row were the same"),
    ],
)
async def test_unreadable_configuration_is_logged_once(
    kind: type[Silent], timeout_s: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", timeout_s)
    path = tmp_path / "q.yaml"
    put_file(path, quota(1))
    with structlog.testing.capture_logs() as logs:
        async with watching(path) as running:
            put_file(path, quota(2))
            silent = kind(monkeypatch, follow, "fingerprint", path)
            await until(lambda: running.state.failures == 1)
            assert not running.state.successful
            await trio.sleep(0.3)
            assert (running.state.failures, running.limits) == (1, [])
            assert silent.asked == 1, "one thread hangs, no more"
            silent.answers.set()
            await until(lambda: running.limits == [2])
            assert running.state.successful
    (error,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert error["problems"] == [f"{path}: cannot be read: {reason}"]


async def test_overlay_write_without_answer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "o.yaml"
    config = configured(f"quotas: {{overlay: {path}, alter: apply, alter_principals: [admin]}}")
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 0.2)
    source = FileSource(tmp_path / "q.yaml", config)
    silent = Silent(monkeypatch, quota_file, "replace_file", path)
    reasons: list[str | None] = []
    async with background(source.run):
        source.apply("admin", {(("user", "alice"),): {"producer_byte_rate": 5.0}}, reasons.append)
        await until(lambda: reasons)
        assert reasons == [f"{path} cannot be written: no answer from the file system within 0.2 s"]
        assert dict(enforced(source.table)) == {}
        silent.answers.set()  # it is written after all, found by the next look
        await until(lambda: dict(enforced(source.table)) == {(("user", "alice"),): {"producer_byte_rate": 5.0}})


async def test_hanging_file_does_not_stop_other_followed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    for one in (path, other):
        put_file(one, "1")
    stuck = Followed("listen.tls", [path], lambda: None)
    free = Followed("identity.static", [other], lambda: None)
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 0.05)
    follower = Follower([stuck, free])
    silent = Silent(monkeypatch, follow, "fingerprint", path)
    with structlog.testing.capture_logs() as logs:
        async with background(follower.run):
            await until(lambda: stuck.failures == 1)
            put_file(other, "2")
            await until(lambda: free.reloads == 1)  # those of another section are loaded meanwhile
            await trio.sleep(0.2)
            assert (stuck.failures, silent.asked, stuck.successful) == (1, 1, False)
            silent.answers.set()
            await until(lambda: stuck.successful)
    # What answers at once may take longer than that, too, on a machine with more to do than it can.
    (error,) = [entry["error"] for entry in logs if entry["log_level"] == "error" and str(path) in entry["error"]]
    assert error == f"listen.tls {path}: no answer from the file system within 0.05 s"


async def test_cancel_does_not_wait_for_reading_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    try:
        began_s = time.monotonic()
        with trio.move_on_after(0.05):
            await Aside().run(answers.wait, 120)
        assert time.monotonic() - began_s < LIMIT_S
        monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 0.02)
        with pytest.raises(StuckError, match=r"no answer from the file system within 0\.02 s"):
            await Aside().run(answers.wait, 120)
    finally:
        answers.set()


async def test_load_bug_does_not_end_following(tmp_path: Path) -> None:
    path = tmp_path / "file"
    put_file(path, "1")

    def load() -> None:
        if path.read_text() == "2":
            raise RecursionError("deep")

    followed = Followed("listen.tls", [path], load)
    follower = Follower([followed])
    with structlog.testing.capture_logs() as logs:
        async with background(follower.run):
            put_file(path, "2")
            await until(lambda: followed.failures == 1)
            put_file(path, "3")
            await until(lambda: followed.reloads == 1)
    assert "listen.tls: RecursionError('deep')" in [entry.get("error") for entry in logs]
