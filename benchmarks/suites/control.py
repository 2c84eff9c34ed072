"""Start and reload: how long they take, and what traffic notices of a reload of 10 000 quota entries.

Start: from the exec of `kquota run` until /readyz says yes, a broker being there. Reload: every entry of a file of
10 000 is changed and SIGHUP sent; a client asks something each millisecond, one request at a time, and its answers
while the file is read are compared with those of as long a time before. Where the hypervisor took more than a hundredth
of the machine away meanwhile, it is done again, at most twice, and the least disturbed one is kept.
`python -m benchmarks.suites.control`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import MachineTime, cpu_s, describe_machine, resident_bytes
from benchmarks.rig.rawclient import connected, greet
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_ports

LIMIT_S = 60.0
PROBE_EVERY_S = 0.001
PROBE_S = 2.0
MARGIN_S = 0.1
"""What was in force before is freed after the reload; traffic is watched so much longer."""
PAUSE_MS = 5.0
MAX_STOLEN = 0.01
ATTEMPTS = 3


@dataclass(frozen=True)
class Start:
    """One start."""

    wall_s: float
    cpu_s: float
    resident_mb: float


@dataclass(frozen=True)
class Noticed:
    """What a client noticed in some time."""

    worst_ms: float
    p99_ms: float
    over_5ms: int

    @classmethod
    def of(cls, answers: Sequence[tuple[float, float]], began: float, length_s: float) -> Noticed:
        """Of answers (when, after how many ms), those in a time."""
        found = [ms for when, ms in answers if began <= when <= began + length_s]
        return cls(max(found), statistics.quantiles(found, n=100)[98], sum(ms > PAUSE_MS for ms in found))


@dataclass(frozen=True)
class Reload:
    """One reload."""

    took_ms: float
    """As the sidecar logs it: from the file's bytes to limits in force."""
    cpu_ms: float
    """Of the whole process in the second of the reload, less that of the quiet second before it."""
    answers: dict[str, Noticed]
    """While the file was read and what was in force before was freed, and in as long a quiet time before."""
    stolen: float
    """Share of the machine that the hypervisor gave to others, over both times and what is between them."""


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
    command = [sys.executable, "-m", "proxy.app.cli.main", "run", "--config", str(file)]
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=output)
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
    """Ask each millisecond; (when answered, after how many ms)."""
    found = []
    with connected(("127.0.0.1", port)) as connection:
        connection.settimeout(LIMIT_S)
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            greet(connection, 1)
            done = time.monotonic()
            found.append((done, (done - began) * 1000))
            time.sleep(max(PROBE_EVERY_S - (done - began), 0))
    return found


def reloaded(log: Path) -> list[dict[str, Any]]:
    """The sidecar's log lines about reloads."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["message"] == "configuration reloaded"]


def reload_once(process: subprocess.Popen[bytes], file: Path, log: Path, text: str, port: int) -> Reload:
    """Change every entry while a client asks."""
    before, machine = len(reloaded(log)), MachineTime.now()
    marks: list[float] = [cpu_s(process.pid)]
    quiet = time.monotonic()
    answers = probe(port, PROBE_S)
    marks.append(cpu_s(process.pid))
    file.write_text(text)
    process.send_signal(signal.SIGHUP)
    answers += probe(port, PROBE_S)
    marks.append(cpu_s(process.pid))
    deadline = time.monotonic() + LIMIT_S
    while len(lines := reloaded(log)) == before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was reloaded:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)
    wall_s = datetime.fromisoformat(lines[-1]["timestamp"]).timestamp()
    ended = wall_s - time.time() + time.monotonic()
    took_ms = float(lines[-1]["took_ms"])
    if ended + MARGIN_S > answers[-1][0] or took_ms / 1000 + MARGIN_S > PROBE_S:
        raise RuntimeError(f"the reload took longer than the client asked: {took_ms} ms")
    cpu_ms = (marks[2] - marks[1] - (marks[1] - marks[0])) * 1000
    length_s = took_ms / 1000 + MARGIN_S
    times = {"reload": ended - took_ms / 1000, "quiet": quiet}
    stolen_s = (MachineTime.now().stolen_s - machine.stolen_s) / (os.cpu_count() or 1)
    noticed = {name: Noticed.of(answers, began, length_s) for name, began in times.items()}
    return Reload(took_ms, cpu_ms, noticed, stolen_s / (time.monotonic() - quiet))


def reload_often(
    file: Path, log: Path, ports: Sequence[int], bootstrap: Sequence[str], entries: int, rounds: int
) -> tuple[Start, list[Reload]]:
    """Start with many entries and change all of them so many times."""
    file.write_text(configuration(ports, bootstrap, entries, 4))
    found = []
    with sidecar(file, log, ports[2]) as (process, start):
        limits = itertools.count(5)
        for _ in range(rounds):
            attempts: list[Reload] = []
            while not attempts or (attempts[-1].stolen > MAX_STOLEN and len(attempts) < ATTEMPTS):
                text = configuration(ports, bootstrap, entries, next(limits))
                attempts.append(reload_once(process, file, log, text, ports[0]))
                time.sleep(0.5)
            found.append(min(attempts, key=lambda one: one.stolen))
    return start, found


def run(entries: int, starts: int, rounds: int) -> dict[str, Any]:
    """Starts and reloads."""
    ports = free_ports(3)
    started: list[Start] = []
    with (
        tempfile.TemporaryDirectory(prefix="kquota-control-") as name,
        KafkaCluster.start(1, directory=Path(name, "kafka")) as cluster,
    ):
        file, log = Path(name, "kquota.yaml"), Path(name, "kquota.log")
        for _ in range(starts):
            file.write_text(configuration(ports, cluster.bootstrap, 1, 4))
            with sidecar(file, log, ports[2]) as (_, start):
                started.append(start)
        large, reloads = reload_often(file, log, ports, cluster.bootstrap, entries, rounds)
    return {
        "machine": describe_machine() | {"load_per_core": os.getloadavg()[0] / len(os.sched_getaffinity(0))},
        "project": describe_project(),
        "entries": entries,
        "starts": [asdict(one) for one in started],
        "starts_with_entries": [asdict(large)],
        "reloads": [asdict(one) for one in reloads],
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: medians with least and most, and sums."""
    reloads, entries = result["reloads"], result["entries"]
    rows: list[tuple[str, list[float]]] = [
        ("start to ready, s", [one["wall_s"] for one in result["starts"]]),
        ("… of CPU, s", [one["cpu_s"] for one in result["starts"]]),
        ("resident when ready, MB", [one["resident_mb"] for one in result["starts"]]),
        (f"start to ready with {entries} entries, s", [one["wall_s"] for one in result["starts_with_entries"]]),
        (f"reload of {entries} entries, ms", [one["took_ms"] for one in reloads]),
        ("… of CPU, traffic's aside, ms", [one["cpu_ms"] for one in reloads]),
        ("taken by the hypervisor meanwhile, % of the machine", [one["stolen"] * 100 for one in reloads]),
    ]
    for name, said in (("reload", "meanwhile"), ("quiet", "in as long a time before")):
        noticed = [one["answers"][name] for one in reloads]
        rows.append((f"slowest answer {said}, ms", [one["worst_ms"] for one in noticed]))
        rows.append((f"p99 {said}, ms", [one["p99_ms"] for one in noticed]))
        rows.append((f"over {PAUSE_MS:g} ms {said}, per reload", [one["over_5ms"] for one in noticed]))
    lines = ["| | median (min–max) |", "|---|---:|"]
    for title, values in rows:
        lines.append(f"| {title} | {statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f}) |")
    lines.append("")
    lines.append(f"Load per core: {result['machine']['load_per_core']:.1f}")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.control", description=__doc__)
    arguments.add_argument("--entries", type=int, default=10_000)
    arguments.add_argument("--starts", type=int, default=7)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    result = run(options.entries, options.starts, options.rounds)
    print(table(result))
    if options.json:
        options.json.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
