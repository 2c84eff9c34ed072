"""`kquota run` as a process: exit codes, signals, reloads, logs, and the admin port in front of a real broker."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kafka.ports import free_ports
from tests.support.waiting import until

LIMIT_S = 20.0


@dataclass
class Run:
    """A running `kquota run` without a cluster behind it."""

    config: Path
    admin: str
    process: subprocess.Popen[bytes]
    log: Path
    ports: list[int] = field(default_factory=list)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.admin + path, timeout=LIMIT_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/healthz")[0] == 200
        except OSError:
            return False

    def metric(self, name: str) -> float | None:
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return None

    def logged(self, message: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["message"] == message]


def text_of(ports: list[int], limit: str, more: str = "") -> str:
    port, admin_port, first, closed_port = ports
    return (
        f"listen: {{port: {port}, broker_ports: {first}-{first + 3}}}\n"
        f'upstream: {{bootstrap: ["127.0.0.1:{closed_port}"]}}\n'
        f"admin: {{port: {admin_port}}}\n"
        f"quotas: [{{client-id: c, producer_byte_rate: {limit}}}]\n{more}"
    )


@contextmanager
def running(
    tmp_path: Path, path: Path | None = None, ports: list[int] | None = None, **environment: str
) -> Iterator[Run]:
    """Start it with a small file, or with the given one, which uses these ports."""
    ports = ports or free_ports(4)
    if path is None:
        path = tmp_path / "q.yaml"
        path.write_text(text_of(ports, "1M"))
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy.app.cli.main", "run", "--config", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=out,
            env={**os.environ, **environment},
        )
    run = Run(path, f"http://127.0.0.1:{ports[1]}", process, log, ports)
    try:
        until(run.up, log.read_text)
        yield run
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exits_0_on_signal(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as run:
        run.process.send_signal(number)
        assert run.process.wait(LIMIT_S) == 0
        assert [entry["signal"] for entry in run.logged("shutting down, requests in flight may finish")] == [
            number.name
        ]
        assert run.logged("stopped")


def test_readiness_and_explain_without_a_cluster(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        status, body = run.get("/readyz")
        assert status == 503
        assert f"127.0.0.1:{run.ports[3]}" in json.loads(body)["reasons"][0]
        command = [sys.executable, "-m", "proxy.app.cli.main", "explain", "--admin", run.admin, "--client-id", "c"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
        assert "1 MB/s (1000000) <- in force" in shown
        assert "not throttled: the next request does not wait" in shown


def test_reload_of_a_configmap_and_by_signal(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    ports = free_ports(4)

    def publish(generation: str, text: str) -> None:
        directory = volume / f"..{generation}"
        directory.mkdir()
        (directory / "kquota.yaml").write_text(text)
        (volume / "..data_tmp").symlink_to(directory.name)
        os.replace(volume / "..data_tmp", volume / "..data")

    publish("1", text_of(ports, "1M"))
    path = volume / "kquota.yaml"
    path.symlink_to(Path("..data") / "kquota.yaml")
    with running(tmp_path, path, ports) as run:

        def limit() -> float:
            return float(json.loads(run.get("/explain?client_id=c")[1])["kinds"][0]["limit"])

        assert limit() == 1_000_000
        publish("2", text_of(ports, "2M"))
        until(lambda: limit() == 2_000_000)
        publish("3", text_of(ports, "-3"))
        until(lambda: run.metric("kquota_config_last_reload_successful") == 0)
        assert limit() == 2_000_000
        assert run.metric("kquota_config_reload_failures_total") == 1
        (refused,) = run.logged("configuration refused, the last good one stays in force")
        assert (
            "kquota.yaml:4:45: quotas[0].producer_byte_rate: got -3, expected bytes per second"
            in refused["problems"][0]
        )
        publish("4", text_of(ports, "4M", "max_mute: 5s\n"))
        until(lambda: limit() == 4_000_000)
        until(lambda: run.metric("kquota_config_last_reload_successful") == 1)  # an exposition may be a second old
        assert run.metric("kquota_config_restart_required") == 1
        (named,) = run.logged("these settings changed but need a restart; changed quotas are already in force")
        assert named["settings"] == ["max_mute"]
        before = run.metric("kquota_config_reloads_total")
        run.process.send_signal(signal.SIGHUP)
        until(lambda: run.metric("kquota_config_reloads_total") == (before or 0) + 1)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("which", ["listen", "admin"])
def test_port_in_use_is_one_line_and_exit_1(tmp_path: Path, which: str) -> None:
    ports = free_ports(4)
    path = tmp_path / "q.yaml"
    path.write_text(text_of(ports, "1M"))
    with socket.socket() as taken:
        port = ports[0 if which == "listen" else 1]
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "proxy.app.cli.main", "run", "--config", str(path)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"error"' in line and "cannot run" in line]
    assert f"cannot listen on 127.0.0.1:{port}" in line["error"]
    assert "Address already in use" in line["error"]
    assert "Traceback" not in done.stderr


def test_a_reload_changes_the_log_level(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        visits = 0

        def visit() -> int:
            """A client that comes and goes, which only debug tells of; how many lines there are once it has been."""
            nonlocal visits
            visits += 1
            socket.create_connection(("127.0.0.1", run.ports[0]), timeout=LIMIT_S).close()
            until(lambda: run.metric('kquota_connections_closed_total{reason="client_closed"}') == visits)
            return len(run.logged("connection closed"))

        def reload(level: str, count: int) -> None:
            run.config.write_text(text_of(run.ports, "1M", f"log: {{level: {level}}}\n"))
            until(lambda: run.metric("kquota_config_reloads_total") == count)

        assert visit() == 0
        reload("debug", 1)
        assert visit() == 1
        reload("info", 2)
        assert visit() == 1


def test_writes_console_lines_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    ports = free_ports(4)
    path.write_text(text_of(ports, "1M"))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy.app.cli.main", "run", "--config", str(path)], stdout=slave, stderr=slave
    )
    os.close(slave)
    shown = b""
    try:
        while b"kquota is up" not in shown:
            shown += os.read(master, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)
    assert b"{" not in shown.split(b"kquota is up")[0]
