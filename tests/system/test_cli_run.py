"""`kquota run` as a process without a cluster: exit codes, signals, reloads, logs, the admin port."""

import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.lab.kafka.ports import free_ports
from tests.support.command import KQUOTA, LIMIT_S, kquota
from tests.support.hostile_files import put_file
from tests.support.sidecars import Sidecar, get, sidecar
from tests.support.waiting import until

REFUSED = "configuration refused, the last good one stays in force"
EARLY = """
import os
import signal

from proxy.app import run
from proxy.app.cli.main import main

read = run.read
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs in the background that ignore it


def read_late(path):
    os.kill(os.getpid(), {number})
    return read(path)


run.read = read_late
main()
"""
"""A signal while the configuration is read."""
SUCCESSFUL = "kquota_config_last_reload_successful"


@contextmanager
def alone(**settings: Any) -> Iterator[Sidecar]:
    """A sidecar of which no broker answers."""
    (port,) = free_ports(1)
    quotas = [{"client-id": "c", "producer_byte_rate": 1_000_000}]
    with sidecar([f"127.0.0.1:{port}"], quotas, not_ready=f"127.0.0.1:{port}", **settings) as running:
        yield running


def limit(running: Sidecar) -> float:
    return float(running.get("/explain?client_id=c")["kinds"][0]["limit"])


@contextmanager
def running_process(words: Sequence[str | Path], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def configured(folder: Path, more: str = "", broker: int = 1, port: int = 0, admin: int | None = None) -> Path:
    """The configuration file of a sidecar before a broker on this machine."""
    free, first = free_ports(2)
    path = folder / "q.yaml"
    path.write_text(f"""drain_timeout_s: 1
listen: {{port: {port}, broker_ports: {first}-{first}}}
admin: {{port: {free if admin is None else admin}}}
upstream: {{bootstrap: ["127.0.0.1:{broker}"]}}
quotas: []
{more}""")
    return path


def test_reload_of_a_configmap_and_by_signal() -> None:
    with alone() as running:
        folder, config = running.config.parent, yaml.safe_load(running.config.read_text())

        def publish(generation: str, rate: int, **settings: str) -> None:
            """As the kubelet does it."""
            (folder / f"..{generation}").mkdir()
            quotas = [{"client-id": "c", "producer_byte_rate": rate}]
            (folder / f"..{generation}/kquota.yaml").write_text(yaml.safe_dump(config | {"quotas": quotas} | settings))
            (folder / "..data_tmp").symlink_to(f"..{generation}")
            os.replace(folder / "..data_tmp", folder / "..data")

        publish("1", 1_000_000)
        (folder / "link").symlink_to("..data/kquota.yaml")
        os.replace(folder / "link", running.config)
        assert limit(running) == 1_000_000
        publish("2", 2_000_000)
        until(lambda: limit(running) == 2_000_000)
        publish("3", -3)
        until(lambda: running.metric("kquota_config_reload_failures_total") == 1)
        assert running.metric(SUCCESSFUL) == 0
        assert limit(running) == 2_000_000
        (refused,) = running.logged(REFUSED)
        assert "quotas[0].producer_byte_rate: got -3, expected bytes per second" in refused["problems"][0]
        publish("4", 4_000_000, max_mute="5s")
        until(lambda: limit(running) == 4_000_000)
        until(lambda: running.metric(SUCCESSFUL) == 1)  # an exposition may be a second old
        assert running.metric("kquota_config_restart_required") == 1
        (named,) = running.logged("these settings changed but need a restart; changed quotas are already in force")
        assert named["settings"] == ["max_mute"]
        before = running.metric("kquota_config_reloads_total")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: running.metric("kquota_config_reloads_total") == before + 1)


@pytest.mark.parametrize("which", ["listen", "admin"])
def test_port_in_use_is_one_line_and_exit_1(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = configured(tmp_path, port=port) if which == "listen" else configured(tmp_path, admin=port)
        done = kquota("run", "--config", path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"error"' in line and "cannot run" in line]
    assert f"cannot listen on 127.0.0.1:{port}" in line["error"]
    assert "Address already in use" in line["error"]
    assert "Traceback" not in done.stderr


def test_a_reload_changes_the_log_level() -> None:
    with alone(log={"level": "info", "format": "json"}) as running:
        visits = 0

        def visit() -> int:
            """A client that comes and goes, which only debug logs; how many lines there are once it has been."""
            nonlocal visits
            visits += 1
            socket.create_connection(("127.0.0.1", running.port), timeout=LIMIT_S).close()
            until(lambda: running.metric("kquota_connections_closed_total", reason="client_closed") == visits)
            return len(running.logged("connection closed"))

        def reload(level: str, count: int) -> None:
            config = yaml.safe_load(running.config.read_text()) | {"log": {"level": level}}
            running.config.write_text(yaml.safe_dump(config))
            until(lambda: running.metric("kquota_config_reloads_total") == count)

        assert visit() == 0
        reload("debug", 1)
        assert visit() == 1
        reload("info", 2)
        assert visit() == 1


def test_writes_console_lines_on_a_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    words = [*KQUOTA, "run", "--config", configured(tmp_path)]
    shown = b""
    with open(master, "rb", buffering=0) as terminal, running_process(words, stdout=slave, stderr=slave) as process:
        os.close(slave)
        while b"kquota is up" not in shown:
            shown += terminal.read(4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    assert b"{" not in shown.split(b"kquota is up")[0]


def ended_by_sigterm(words: list[str], admin: int, stderr: int, before: Callable[[], object] = int) -> int:
    """The exit code of a sidecar that has answered."""
    with running_process(words, stderr=stderr) as process:
        until(lambda: process.poll() is not None or answers(admin), limit_s=LIMIT_S)
        before()
        process.send_signal(signal.SIGTERM)
        return process.wait(LIMIT_S)


def answers(admin: int) -> bool:
    try:
        return get(f"http://127.0.0.1:{admin}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def words_and_admin(tmp_path: Path, log_format: str = "json", **more: int) -> tuple[list[str], int]:
    (admin,) = free_ports(1)
    path = configured(tmp_path, f"log: {{format: {log_format}}}\n", admin=admin, **more)
    return [*KQUOTA, "run", "--config", str(path)], admin


def test_a_log_reader_that_stops_stops_nothing_else(tmp_path: Path) -> None:
    words, admin = words_and_admin(tmp_path)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * select.PIPE_BUF)
    os.set_blocking(writer, True)
    with open(reader, "rb") as log:
        os.set_blocking(reader, False)
        assert ended_by_sigterm(words, admin, writer, log.read) == 0
        os.close(writer)
        lines = [json.loads(line) for line in log.read().splitlines()]
    assert "shutting down, requests in flight may finish" in [line["message"] for line in lines]
    assert lines[0]["lost_lines"] > 1


@pytest.mark.parametrize("log_format", ["json", "auto"])
@pytest.mark.parametrize("kind", ["full disk", "no reader", "closed"])
def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path, kind: str, log_format: str) -> None:
    words, admin = words_and_admin(tmp_path, log_format)
    if kind == "no reader":
        reader, stderr = os.pipe()
        os.close(reader)
    else:
        stderr = os.open("/dev/full", os.O_WRONLY)
    if kind == "closed":
        words = ["sh", "-c", 'exec "$@" 2>&-', "sh", *words]
    try:
        assert ended_by_sigterm(words, admin, stderr) == 0
    finally:
        os.close(stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_start_is_not_lost(tmp_path: Path, number: signal.Signals) -> None:
    words, _ = words_and_admin(tmp_path)
    log = tmp_path / "log"
    early = [words[0], "-c", EARLY.format(number=int(number)), *words[3:]]
    with log.open("wb") as stderr, running_process(early, stderr=stderr) as process:
        if number == signal.SIGHUP:
            until(lambda: process.poll() is not None or '"configuration reloaded"' in log.read_text())
            process.terminate()
        assert process.wait(LIMIT_S) == 0, log.read_text()
    assert f'"signal": "{number.name}"' in log.read_text()
    assert '"stopped"' in log.read_text()


def test_the_log_names_requests_that_a_drain_leaves_unanswered(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent, log.open("wb") as stderr:
        words, admin = words_and_admin(tmp_path, broker=silent.getsockname()[1], port=port)
        client = socket.socket()

        def ask() -> None:
            client.connect(("127.0.0.1", port))
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))  # ApiVersions
            shown = f"http://127.0.0.1:{admin}/connections"
            until(lambda: [one["in_flight"] for one in get(shown).json()["connections"]] == [1])

        with client:
            assert ended_by_sigterm(words, admin, stderr.fileno(), ask) == 0
    (line,) = [json.loads(line) for line in log.read_text().splitlines() if "with requests in flight" in line]
    assert (line["level"], line["count"]) == ("warning", 1)


END_S = 15.0
"""An idle sidecar ends within a tenth of a second after SIGTERM. Machines are busy."""


@pytest.mark.long
def test_sigterm_while_the_fullest_file_is_loaded() -> None:
    """A thread that computes is not waited for, and Python must not unwind it either: that was an end by SIGABRT."""
    entry = "- {client-id: client-%d, producer_byte_rate: 4X, request_percentage: 50.5, consumer_byte_rate: 1M}\n"
    text = "a: &a 1\nquotas:\n" + "".join(entry % number for number in range(27_000))
    with alone() as running:
        put_file(running.config, text)
        running.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)  # in the midst of it, most likely; what has to hold holds at all times
        began_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(LIMIT_S) == 0
        running.killed = True
        assert time.monotonic() - began_s < END_S
        assert running.logged("stopped")
