"""Hostile files and the processes that read them: `kquota` says what is wrong and exits with 2, a running sidecar goes
on with what it has, and SIGTERM ends it in time whatever its threads wait for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.broker.test_cli_run import LIMIT_S, Run, running, text_of, until
from tests.lab.kafka.ports import free_ports
from tests.support.certificates import Authority
from tests.support.hostile_files import KINDS, put, put_file

pytestmark = pytest.mark.long

END_S = 15.0
"""An idle sidecar ends within a tenth of a second after SIGTERM. Machines are busy."""
SUCCESS = "kquota_config_last_reload_successful"


def kquota(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "proxy.app.cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S, check=False)


COMMANDS = [
    ("check",),
    ("check", "--json"),
    ("explain", "--user", "u"),
    ("simulate",),
    ("run",),
]


BRACKETS = "[" * 100_000
DIGITS = f"upstream: {{bootstrap: ['k:1']}}\nquotas:\n- {{user: u, producer_byte_rate: {'9' * 310}}}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        (BRACKETS, "1:33: (the whole file)", "expected at most 32 levels of nesting"),
        (DIGITS, "3:33: quotas[0].producer_byte_rate", "999999"),
    ],
    ids=["brackets", "310 digits"],
)
def test_absurd_text_is_exit_2_with_place_and_reason(
    command: tuple[str, ...], text: str, place: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(text)
    done = kquota(*command, "--config", str(path))
    assert done.returncode == 2, done.stderr
    said = (done.stdout if "--json" in command else done.stderr).decode()
    assert reason in said
    assert "--json" in command or said.startswith(f"error: {path}:{place}: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_irregular_file_exits_with_2_and_reason(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    reason = put(kind, path)
    done = kquota("run", "--config", str(path))
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"error: {path}: (the whole file): cannot be read: {reason}")
    assert done.stderr.count(b"\n") == 1


def ends_in_time(run: Run, code: int = 0) -> None:
    began_s = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(LIMIT_S) == code
    assert time.monotonic() - began_s < END_S
    assert run.logged("stopped")


@pytest.mark.parametrize("kind", ["FIFO", "endless device", "36 MB", "directory", "brackets", "310 digits"])
def test_a_running_sidecar_goes_on_and_ends_in_time(kind: str, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        if kind in KINDS:
            reason = f"{run.config}: cannot be read: {put(kind, run.config)}"
        else:
            put_file(run.config, BRACKETS if kind == "brackets" else DIGITS)
            reason = "expected at most 32 levels" if kind == "brackets" else "producer_byte_rate: got 99999"
        until(lambda: run.metric(SUCCESS) == 0)
        refused = run.logged("configuration refused, the last good one stays in force")
        assert reason in refused[-1]["problems"][0]
        run.process.send_signal(signal.SIGHUP)
        until(lambda: len(run.logged("configuration refused, the last good one stays in force")) > len(refused))
        assert b'"limit":1000000' in run.get("/explain?client_id=c")[1].replace(b" ", b"")
        put_file(run.config, text_of(run.ports, "2M"))
        until(lambda: run.metric(SUCCESS) == 1)
        assert b'"limit":2000000' in run.get("/explain?client_id=c")[1].replace(b" ", b"")
        ends_in_time(run)


def test_fifos_in_place_of_followed_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("host", "localhost", common_name="kquota")
    user, overlay, ports = tmp_path / "user", tmp_path / "overlay.yaml", free_ports(4)
    user.write_text("web\n")
    overlay.write_text("quotas: [{user: web, producer_byte_rate: 5}]\n")
    path = tmp_path / "q.yaml"
    port, admin_port, first, closed_port = ports
    good = (
        f"listen: {{port: {port}, broker_ports: {first}-{first + 3}, "
        f"tls: {{certificate_file: {issued.chain}, key_file: {issued.key}}}}}\n"
        f'upstream: {{bootstrap: ["127.0.0.1:{closed_port}"]}}\nadmin: {{port: {admin_port}}}\n'
        f"identity: {{static: {{file: {user}}}}}\nquotas: {{overlay: {overlay}, entries: []}}\n"
    )
    path.write_text(good)
    with running(tmp_path, path, ports) as run:
        followed = {file: file.read_bytes() for file in (issued.chain, issued.key, user, overlay, path)}
        for file in followed:
            put("FIFO", file)
        metrics = {
            SUCCESS,
            'kquota_files_last_reload_successful{setting="listen.tls"}',
            'kquota_files_last_reload_successful{setting="identity.static"}',
            "kquota_quota_overlay_last_load_successful",
        }
        until(lambda: all(run.metric(name) == 0 for name in metrics), lambda: run.get("/metrics")[1].decode())
        for file, data in followed.items():
            put_file(file, data)
        until(lambda: all(run.metric(name) == 1 for name in metrics), lambda: run.get("/metrics")[1].decode())
        for file in followed:
            put("FIFO", file)
        until(lambda: all(run.metric(name) == 0 for name in metrics))
        ends_in_time(run)


def test_sigterm_while_the_fullest_file_is_loaded(tmp_path: Path) -> None:
    """A thread that computes is not waited for, and Python must not unwind it either: that was an end by SIGABRT."""
    entry = "- {client-id: client-%d, producer_byte_rate: 4X, request_percentage: 50.5, consumer_byte_rate: 1M}\n"
    text = "a: &a 1\nquotas:\n" + "".join(entry % number for number in range(27_000))
    with running(tmp_path) as run:
        put_file(run.config, text)
        run.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)  # in the midst of it, most likely; what has to hold holds at all times
        ends_in_time(run)
