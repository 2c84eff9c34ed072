"""Start and reload: how long they take, and what traffic notices of a reload of 10 000 quota entries.

Start: from the exec of `kquota run` until /readyz says yes, a broker being there. Reload: every entry of a file of
10 000 is changed and SIGHUP sent; a client asks something each millisecond, one request at a time, and its slowest
answers while the file is read are compared with those of the second before. `python -m benchmarks.control`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.procstat import cpu_s, describe_machine, resident_bytes
from benchmarks.rawclient import api_versions_frame
from deploy.kafka import KafkaCluster
from deploy.kafka.ports import free_ports

LIMIT_S = 60.0
PROBE_EVERY_S = 0.001
SETTLE_S = 0.1
"""`deploy.watch` waits so long before it believes that a file has been written whole; not part of the reload's time."""


@dataclass(frozen=True)
class Start:
    """One start."""

    wall_s: float
    cpu_s: float
    resident_mb: float


@dataclass(frozen=True)
class Reload:
    """One reload, and as long a time beside it."""

    took_ms: float
    """As the sidecar logs it: from the file's bytes to limits in force."""
    cpu_ms: float
    """Of the whole process in the second of the reload, less that of the quiet second before it."""
    worst_ms: float
    """The slowest answer while it was under way."""
    worst_quiet_ms: float
    """The slowest answer in the second before."""
    p99_ms: float
    p99_quiet_ms: float


def configuration(ports: Sequence[int], bootstrap: Sequence[str], entries: int, limit: int) -> str:
    """A file with so many quota entries, laid out as people and charts do."""
    head = (
        f"listen: {{port: {ports[0]}, broker_ports: {ports[1]}-{ports[1]}}}\n"
        f"upstream: {{bootstrap: {json.dumps(list(bootstrap))}}}\n"
        f"admin: {{host: 127.0.0.1, port: {ports[2]}}}\n"
        "log: {format: json}\n"
        "quotas:\n"
    )
    entry = "  - client-id: client-{0}\n    producer_byte_rate: {1}M\n    consumer_byte_rate: 8M\n"
    return head + "".join(entry.format(number, limit) for number in range(entries))


@contextmanager
def sidecar(file: Path, log: Path, admin: int) -> Iterator[tuple[subprocess.Popen[bytes], Start]]:
    """`kquota run`, ready; and how long that took."""
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", "run", "--config", str(file)], stdout=output, stderr=output
        )
    try:
        while not _ready(admin):
            if process.poll() is not None or time.monotonic() > began + LIMIT_S:
                raise RuntimeError(f"the sidecar is not ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.01)
        yield process, Start(time.monotonic() - began, cpu_s(process.pid), resident_bytes(process.pid) / 1e6)
    finally:
        process.terminate()
        try:
            process.wait(40)
        finally:
            process.kill()


def _ready(admin: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5):
            return True
    except OSError:
        return False


def probe(port: int, seconds: float) -> list[tuple[float, float]]:
    """Ask each millisecond; (when asked, latency in ms)."""
    found = []
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = api_versions_frame(1)
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            connection.sendall(frame)
            left, got = 4, b""
            while left:
                got += connection.recv(left)
                left = (4 if len(got) < 4 else 4 + int.from_bytes(got[:4], "big")) - len(got)
            done = time.monotonic()
            found.append((began, (done - began) * 1000))
            time.sleep(max(PROBE_EVERY_S - (done - began), 0))
    return found


def reloaded(log: Path) -> list[dict[str, Any]]:
    """The sidecar's log lines about reloads."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["message"] == "configuration reloaded"]


def reload_once(process: subprocess.Popen[bytes], file: Path, log: Path, text: str, port: int) -> Reload:
    """Change every entry while a client asks."""
    before = len(reloaded(log))
    marks: list[float] = [cpu_s(process.pid)]
    quiet = [latency for _, latency in probe(port, 1.0)]
    marks.append(cpu_s(process.pid))
    file.write_text(text)
    process.send_signal(signal.SIGHUP)
    sent = time.monotonic()
    busy = probe(port, 1.0)
    marks.append(cpu_s(process.pid))
    deadline = time.monotonic() + LIMIT_S
    while len(lines := reloaded(log)) == before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was reloaded:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)
    took_ms = float(lines[-1]["took_ms"])
    # from the signal to limits in force: the pause for half-written files, then the reload, then a margin
    during = [latency for at, latency in busy if at <= sent + 2 * SETTLE_S + took_ms / 1000 + 0.1]
    return Reload(
        took_ms,
        (marks[2] - marks[1] - (marks[1] - marks[0])) * 1000,
        max(during),
        max(quiet),
        statistics.quantiles(during, n=100)[98],
        statistics.quantiles(quiet, n=100)[98],
    )


def run(entries: int, rounds: int) -> dict[str, Any]:
    """Starts and reloads."""
    ports = free_ports(3)
    starts, reloads, large = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="kquota-control-") as name,
        KafkaCluster.start(1, directory=Path(name, "kafka")) as cluster,
    ):
        file, log = Path(name, "kquota.yaml"), Path(name, "kquota.log")
        for _ in range(rounds):
            file.write_text(configuration(ports, cluster.bootstrap, 1, 4))
            with sidecar(file, log, ports[2]) as (_, start):
                starts.append(start)
        file.write_text(configuration(ports, cluster.bootstrap, entries, 4))
        with sidecar(file, log, ports[2]) as (process, start):
            large.append(start)
            for number in range(rounds):
                text = configuration(ports, cluster.bootstrap, entries, 5 + number)
                reloads.append(reload_once(process, file, log, text, ports[0]))
                time.sleep(0.5)
    return {
        "machine": describe_machine() | {"load_per_core": os.getloadavg()[0] / len(os.sched_getaffinity(0))},
        "entries": entries,
        "starts": [asdict(one) for one in starts],
        "starts_with_entries": [asdict(one) for one in large],
        "reloads": [asdict(one) for one in reloads],
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: medians with least and most."""
    lines = ["| | median (min–max) |", "|---|---:|"]
    for title, samples, name in (
        ("start to ready, s", "starts", "wall_s"),
        ("… of CPU, s", "starts", "cpu_s"),
        ("resident when ready, MB", "starts", "resident_mb"),
        (f"start to ready with {result['entries']} entries, s", "starts_with_entries", "wall_s"),
        (f"reload of {result['entries']} entries, ms", "reloads", "took_ms"),
        ("… of CPU, traffic's aside, ms", "reloads", "cpu_ms"),
        ("slowest answer meanwhile, ms", "reloads", "worst_ms"),
        ("slowest answer in the second before, ms", "reloads", "worst_quiet_ms"),
        ("p99 meanwhile, ms", "reloads", "p99_ms"),
        ("p99 in the second before, ms", "reloads", "p99_quiet_ms"),
    ):
        values = [one[name] for one in result[samples]]
        lines.append(f"| {title} | {statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f}) |")
    lines.append("")
    lines.append(f"Load per core: {result['machine']['load_per_core']:.1f}")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    arguments.add_argument("--entries", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    result = run(options.entries, options.rounds)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
