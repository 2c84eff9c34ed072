"""The real sidecar, `kquota run`, as a process of its own in front of a real cluster."""

from __future__ import annotations

import json
import signal
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml
from prometheus_client.samples import Sample

from tests.lab.kafka import GuardedProcess
from tests.lab.kafka.ports import free_port_run, free_ports
from tests.support.forked import ForkedProcess, run_kquota
from tests.support.waiting import until

READY_LIMIT_S = 60.0
STOP_LIMIT_S = 40.0
BROKER_PORTS = 20
FLEET_KEY = "the key that all sidecars of tests have"
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Never used: a client that is given no context first reads all authorities that the machine trusts (20 ms)."""


@dataclass
class Sidecar:
    bootstrap: str
    admin: str
    config: Path
    log: Path
    process: GuardedProcess | ForkedProcess
    """It ends with the test's process, whatever becomes of that."""
    before: Sequence[str] | None
    """Words before its command; None: it has been forked."""
    killed: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """kill -9; nothing is expected of it any more."""
        self.killed = True
        self.process.kill()
        self.process.wait(STOP_LIMIT_S)

    def stop(self) -> None:
        """SIGTERM; it must drain and exit 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_LIMIT_S) == 0, self.log.read_text()[-3000:]

    def start_again(self) -> None:
        """After `stop` or `kill`: the same command, on the same ports, with the same log."""
        self.killed = False
        self.process = _start(self.before, self.config, self.log)
        wait_ready(self, None)

    def set_quotas(self, quotas: Sequence[Mapping[str, Any]]) -> None:
        """Change the quotas in the file; returns when they are in force."""
        config = yaml.safe_load(self.config.read_text()) | {"quotas": [dict(entry) for entry in quotas]}
        before = self._changes()
        self.config.write_text(yaml.safe_dump(config))
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self._changes() > before)

    def _changes(self) -> int:
        return sum(line["changed"] for line in self.logged("configuration reloaded"))

    @property
    def port(self) -> int:
        return int(self.bootstrap.rsplit(":", 1)[1])

    def get(self, path: str) -> Any:
        return get(self.admin + path).raise_for_status().json()

    def metrics(self) -> str:
        return get(self.admin + "/metrics").raise_for_status().text

    def samples(self) -> Iterator[Sample]:
        return samples_of(self.metrics())

    def metric(self, name: str, **labels: str) -> float:
        # Only lines of this name are parsed: all of them take a hundred times as long, again and again where one waits.
        lines = [f"{line}\n" for line in self.metrics().split("\n") if line.startswith((name + "{", name + " "))]
        samples = (one for one in samples_of("".join(lines)) if one.name == name)
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    def logged(self, message: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["message"] == message]

    def broker_addresses(self) -> set[tuple[str, int]]:
        """Where clients may connect: the bootstrap listener and one listener per broker."""
        ports = yaml.safe_load(self.config.read_text())["listen"]["broker_ports"]
        first, last = map(int, ports.split("-"))
        return {("127.0.0.1", port) for port in (self.port, *range(first, last + 1))}


def get(url: str, timeout_s: float = 10, params: Mapping[str, str] | None = None) -> httpx.Response:
    """An answer over plain HTTP, on a connection of its own."""
    return httpx.get(url, params=params, timeout=timeout_s, verify=PLAIN)


def samples_of(exposition: str) -> Iterator[Sample]:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(exposition):
        yield from family.samples


@contextmanager
def sidecar(
    bootstrap: Sequence[str],
    quotas: Sequence[Mapping[str, Any]] | Mapping[str, Any] = (),
    *,
    not_ready: str | None = None,
    listen_tls: Mapping[str, Any] | None = None,
    upstream_tls: Mapping[str, Any] | None = None,
    before: Sequence[str] | None = None,
    listen: Mapping[str, Any] | None = None,
    broker_ports: int = BROKER_PORTS,
    **settings: Any,
) -> Iterator[Sidecar]:
    """Start `kquota run` and wait until /readyz says yes, or no and why; at the end SIGTERM must make it exit 0."""
    port, admin_port = free_ports(2)
    first = free_port_run(broker_ports, avoid={port, admin_port})
    own = {"host": "127.0.0.1", "port": port, "broker_ports": f"{first}-{first + broker_ports - 1}"}
    config = {
        "mode": "rewrite",
        "listen": own | dict(listen or {}),
        "upstream": {"bootstrap": list(bootstrap)},
        "quotas": dict(quotas) if isinstance(quotas, Mapping) else [dict(quota) for quota in quotas],
        "admin": {"host": "127.0.0.1", "port": admin_port},
        "log": {"level": "debug", "format": "json"},
    } | settings
    for section, tls in (("listen", listen_tls), ("upstream", upstream_tls)):
        if tls is not None:
            config[section]["tls"] = dict(tls)
    with TemporaryDirectory(prefix="kquota-test-") as directory:
        path = Path(directory, "kquota.yaml")
        if "fleet" in config:
            key = Path(directory, "fleet-key")
            key.write_text(FLEET_KEY)
            config["fleet"] = {"key_file": str(key)} | config["fleet"]
        path.write_text(yaml.safe_dump(config))
        log = Path(directory, "kquota.log")
        process = _start(before, path, log)
        running = Sidecar(f"127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", path, log, process, before)
        try:
            wait_ready(running, not_ready)
            yield running
            if running.killed:
                return
            running.stop()
            text = log.read_text()
            assert "Traceback" not in text, text[-3000:]
        except BaseException:
            print(log.read_text()[-5000:])  # pytest shows it with the failure
            raise
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()


def _start(before: Sequence[str] | None, config: Path, log: Path) -> GuardedProcess | ForkedProcess:
    return run_kquota(["run", "--config", str(config)], log, before)


def wait_ready(running: Sidecar, not_ready: str | None = None) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        assert running.process.poll() is None, running.log.read_text()
        try:
            answer = get(running.admin + "/readyz", timeout_s=2)
            reason = answer.text
            if answer.status_code == 200 if not_ready is None else not_ready in reason:
                return
        except httpx.HTTPError as error:
            reason = repr(error)
        assert time.monotonic() < deadline, f"not ready: {reason}\n{running.log.read_text()}"
        time.sleep(0.05)
