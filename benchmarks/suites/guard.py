"""What a request and its response cost a sidecar, in counts that a busy machine does not change: `make bench-guard`.

A scripted client and a scripted peer exchange one request at a time through `kquota run`, which is only looked at from
outside. Instructions and objects are counted by callgrind, system calls and the bytes that they copy by strace; wake-
ups are the voluntary context switches of all its threads. Client, sidecar and peer share one core and give way to no
other program (SCHED_FIFO), so that counts repeat. How threads compete with others (ADR 0024) cannot be counted then: a
policy or time slice that is not the peer's is looked at instead. A coarse comparison with HAProxy at a broker comes
last.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stats
from benchmarks.report.measured import describe_project
from benchmarks.report.tables import Samples
from benchmarks.rig import affinity, runner, variants
from benchmarks.rig.answerer import TOPIC, fetch_request, fetch_response, produce_response
from benchmarks.rig.frames import produce_frame, record_batch
from benchmarks.rig.rawclient import SMALL_VALUE_BYTES, BenchmarkRequestError, connected, exactly
from benchmarks.rig.tls import BOTH, Files, Tls
from benchmarks.rig.variants import Ports, Running
from benchmarks.suites.plan import FULL
from benchmarks.suites.scenarios import scenarios
from quota import compiled
from tests.lab.kafka.ports import free_ports
from tests.support.precedence import precedence

STORED: Final = Path(__file__).with_name("guard.json")
FETCH_BYTES: Final = 300_000
MANY_TOPICS, MANY_BYTES = 10, 20_000
"""In the responses of the rows that begin with "many"."""
REPEATS: Final = 8
"""Of each count. The least is compared: timers and other programs only add."""
WARMUP: Final = 50
HEAD_BYTES: Final = 200
"""The first part of the rows that end with "parts": Java's TLS clients send the records on their own."""
PAUSE_S: Final = 0.001
"""Between the parts: the sidecar, under strace or valgrind as well, reads the first one in less time."""
COPYING: Final = frozenset(("read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg"))
CALL: Final = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).* = (-?\d+)")
"""A line of `strace -f`: of a call that was interrupted by another thread's only the second one has a result."""
SCHEDULED: Final = re.compile(r"^(?:policy|prio|se\.slice) +: +(\d+)$", re.MULTILINE)
CALLGRIND: Final = (
    "/usr/bin/env",
    "valgrind",
    "--tool=callgrind",
    "--instr-atstart=no",
    "--callgrind-out-file={folder}/callgrind.out",
)
TOLERANCE_PERCENT: Final = 3.0
COUNTERS: Final = (
    "instructions",
    "unlocked_instructions",
    "objects",
    "system_calls",
    "bytes_copied",
    "wakeups",
    "own_scheduling",
)
LOCK: Final = re.compile(
    r"(take|drop)_gil|pthread_(mutex|cond)_|PyEval_(Save|Restore)Thread|ThreadState_(Swap|MustExit)"
)
"""What the interpreter's lock costs: a wait that may block gives it up. Not among `unlocked_instructions`."""
OBJECT: Final = re.compile(
    r"^(malloc|_?PyObject_(GC_)?(Malloc|New)|PyFloat_FromDouble|_Py_dict_lookup|PyDict_GetItem)\b"
)
"""What makes or looks up a Python object, by the start of a function's name."""
AT_MOST: Final = {("produce", "unlocked_instructions"): 4000.0, ("produce", "objects"): 0.0}
"""By row and counter, whatever is stored: a Produce request makes no object."""
LIMIT_S: Final = 120.0
"""Until a sidecar under valgrind takes connections, and for each use of the tools."""

Counted = dict[str, dict[str, list[float]]]
"""By row and counter, for one request and its response, what each repeat has shown."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How the sidecar and its peer are run."""

    by_tls: bool = False
    topics: int = 1
    fetch_bytes: int = FETCH_BYTES


PLAIN, TLS, MANY = Peer(), Peer(by_tls=True), Peer(topics=MANY_TOPICS, fetch_bytes=MANY_BYTES)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of request, and how many make a count."""

    key: str
    frame: bytearray
    answer: bytes
    count: int
    peer: Peer = PLAIN
    first_bytes: int = 0
    """The sidecar reads so many of the request before the rest is sent; 0: all of it at once."""


def rows() -> list[Row]:
    """All kinds; with TLS it is spoken on both sides. "many": to several topics, and in a fetch session."""
    produce, small = (
        bytearray(produce_frame(TOPIC, record_batch(b"x" * size))) for size in (16_000, SMALL_VALUE_BYTES)
    )
    fetched = fetch_response(FETCH_BYTES)
    plain = [
        Row("produce", produce, produce_response(), 400),
        Row("fetch", fetch_request(), fetched, 200),
        Row("small", small, produce_response(), 400),
        Row("produce-parts", produce, produce_response(), 100, first_bytes=HEAD_BYTES),
    ]
    many = [
        Row("many-produce", produce, produce_response(MANY_TOPICS), 400, MANY),
        Row("many-fetch", fetch_request(in_session=True), fetch_response(MANY_BYTES, MANY_TOPICS), 400, MANY),
    ]
    return [*plain, *(replace(row, key=f"tls-{row.key}", count=row.count // 4, peer=TLS) for row in plain), *many]


def exchange(connection: socket.socket, row: Row, count: int) -> None:
    """Send so many requests, each when the one before it has been answered.

    Raises:
        BenchmarkRequestError: the answer is another one.
    """
    frame = row.frame
    for number in range(count):
        struct.pack_into(">i", frame, 8, number)
        if row.first_bytes:
            connection.sendall(frame[: row.first_bytes])
            time.sleep(PAUSE_S)
        connection.sendall(frame[row.first_bytes :])
        got = exactly(connection, len(row.answer))
        if got != row.answer[:4] + frame[8:12] + row.answer[8:]:
            raise BenchmarkRequestError(f"{row.key}: the answer to request {number} is not the one that was sent")


@contextmanager
def sidecar(kind: Peer, before: Sequence[str] = ()) -> Iterator[tuple[Running, int, Path]]:
    """A peer that only answers, its process id, and kquota with quotas in front of it, run by the command `before`."""
    with tempfile.TemporaryDirectory(prefix="kquota-guard-") as name:
        folder = Path(name)
        secured = Tls(Files.issue(folder), BOTH) if kind.by_tls else None
        answers, *own = free_ports(4)
        answerer = variants.answerer(kind.fetch_bytes, kind.topics)
        peer = variants.start(answerer, Ports(answers, 0, 0), ("", 0), folder, secured)
        try:
            command = variants.KQUOTA.command
            assert command is not None
            words = [word.replace("{folder}", name) for word in before]
            kquota = replace(variants.KQUOTA, command=lambda *those: [*words, *command(*those)], start_limit_s=LIMIT_S)
            running = variants.start(kquota, Ports(*own), peer.address, folder, secured)
            try:
                assert peer.pid is not None
                yield running, peer.pid, folder
            finally:
                running.stop()
        finally:
            peer.stop()


# ---- the counters ----------------------------------------


def _control(running: Running, *words: str) -> None:
    subprocess.run(["callgrind_control", *words, str(_pid(running))], check=True, capture_output=True, timeout=LIMIT_S)


@contextmanager
def traced(pid: int, file: Path) -> Iterator[None]:
    """Write each system call of a process into this file meanwhile."""
    command = ["strace", "-f", "-s", "0", "-e", "signal=none", "-o", str(file), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        try:
            deadline = time.monotonic() + LIMIT_S
            while any("TracerPid:\t0\n" in text for text in _status(pid)):
                if strace.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(command)} did not attach: it needs the right to trace (ptrace)")
                time.sleep(0.01)
            yield
        finally:
            strace.send_signal(signal.SIGINT)


def called(text: str) -> tuple[int, int]:
    """System calls in what strace has written, and the bytes that they copied from or to the process."""
    found = [(match[1], int(match[2])) for match in map(CALL.match, text.splitlines()) if match]
    return len(found), sum(result for name, result in found if name in COPYING and result > 0)


def _status(pid: int) -> list[str]:
    return [Path(f"/proc/{pid}/task/{thread}/status").read_text() for thread in affinity.threads(pid)]


def wakeups(pid: int) -> int:
    """How often its threads have waited so far (proc_pid_status(5))."""
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in _status(pid))


def scheduled(pid: int) -> set[tuple[str, ...]]:
    """Policy, priority and time slice of its threads. Nothing where the kernel does not tell (CONFIG_SCHED_DEBUG)."""
    files = [Path(f"/proc/{pid}/task/{thread}/sched") for thread in affinity.threads(pid)]
    return {tuple(SCHEDULED.findall(file.read_text())) for file in files if file.exists()}


def measure(before: Sequence[str] = (), only: str = "") -> Counted:
    """By row and counter, what each repeat has shown. `before`: a command that the sidecar is started by; `only`: how
    the rows' keys begin."""
    found: Counted = {row.key: {} for row in rows() if row.key.startswith(only)}
    for kind in (PLAIN, TLS, MANY):
        mine = [row for row in rows() if row.peer == kind and row.key in found]
        if not mine:
            continue
        with sidecar(kind, before) as (running, peer, folder):
            with _connection(running, mine[0]):
                own = [float(len(scheduled(_pid(running)) - scheduled(peer)))]
            with _one_core(peer, _pid(running)):
                for row in mine:
                    with _connection(running, row) as connection:
                        found[row.key] |= {"own_scheduling": own, "wakeups": _woken(_pid(running), row, connection)}
                        found[row.key] |= _calls(running, row, connection, folder)
        with _one_core(), sidecar(kind, (*before, *CALLGRIND)) as (running, _, folder):
            for row in mine:
                with _connection(running, row) as connection:
                    found[row.key] |= _executed(running, row, connection, folder)
        for row in mine:
            print(f"{row.key}: " + ", ".join(f"{name} {_text(found[row.key][name])}" for name in COUNTERS))
    return found


@contextmanager
def _connection(running: Running, row: Row) -> Iterator[socket.socket]:
    with connected(running.address, running.client_context) as connection:
        connection.settimeout(LIMIT_S)
        exchange(connection, row, WARMUP)
        yield connection


def _pid(running: Running) -> int:
    assert running.pid is not None
    return running.pid


def _calls(running: Running, row: Row, connection: socket.socket, folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"system_calls": [], "bytes_copied": []}
    for _ in range(REPEATS):
        file = folder / "calls"
        with traced(_pid(running), file):
            exchange(connection, row, row.count)
        for name, total in zip(found, called(file.read_text(encoding="ascii", errors="replace")), strict=True):
            found[name].append(total / row.count)
    return found


def profiled(text: str) -> tuple[Counter[str], Counter[str]]:
    """By function, the instructions of its own and the calls to it in what callgrind has written."""
    names: dict[str, str] = {}
    own: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    function, inclusive = "", False
    for line in text.splitlines():
        if named := re.match(r"(c?)fn=(\(\d+\))(?: (.+))?$", line):
            names.setdefault(named[2], named[3] or "")
            if not named[1]:
                function = names[named[2]]
            callee = names[named[2]]
        elif line.startswith("calls="):
            calls[callee] += int(line[len("calls=") :].split()[0])
            inclusive = True  # the next line has what the callee took
        elif cost := re.match(r"[-+*\d]\d* (\d+)$", line):
            own[function] += 0 if inclusive else int(cost[1])
            inclusive = False
    return own, calls


def _executed(running: Running, row: Row, connection: socket.socket, folder: Path) -> dict[str, list[float]]:
    """Few requests at a time, so that some of them pass between two timers of the sidecar."""
    _control(running, "--instr=on")
    found: dict[str, list[float]] = {"instructions": [], "unlocked_instructions": [], "objects": []}
    count = row.count // 2
    for _ in range(2 * REPEATS + 1):
        exchange(connection, row, count)
        _control(running, "--dump")  # and begin at 0 again
        newest = max(folder.glob("callgrind.out.*"), key=lambda dump: dump.stat().st_mtime_ns)
        own, calls = profiled(newest.read_text(errors="replace"))
        total, locked = sum(own.values()), sum(n for name, n in own.items() if LOCK.search(name))
        made = sum(n for name, n in calls.items() if OBJECT.match(name))
        for values, value in zip(found.values(), (total, total - locked, made), strict=True):
            values.append(value / count)
        newest.unlink()
    _control(running, "--instr=off")
    return {name: values[1:] for name, values in found.items()}


@contextmanager
def _one_core(*pids: int) -> Iterator[None]:
    """These processes, and what this one starts, on one core and, by SCHED_FIFO, with no other program in between."""
    cores = os.sched_getaffinity(0)
    try:
        for pid in (os.getpid(), *pids):
            affinity.pin(pid, {min(cores)})
            for thread in affinity.threads(pid):
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cores)


def _woken(pid: int, row: Row, connection: socket.socket) -> list[float]:
    found = []
    for _ in range(REPEATS):
        before = wakeups(pid)
        exchange(connection, row, row.count)
        found.append((wakeups(pid) - before) / row.count)
    return found


def _text(values: Sequence[float]) -> str:
    return f"{min(values):,.2f} (most {max(values):,.2f})"


# ---- what is compared ----------------------------------------


def environment() -> dict[str, str]:
    """What counts depend on next to kquota: those of another environment are not compared."""
    compiler = subprocess.run(["cc", "-dumpfullversion"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return {
        "machine": platform.machine(),
        "Python": platform.python_version(),
        "C library": "-".join(platform.libc_ver()),
        "compiler": compiler.stdout.strip(),
        "OpenSSL": ssl.OPENSSL_VERSION,
        "Linux": ".".join(platform.release().split(".")[:2]),
    }


def missing() -> str | None:
    """Why nothing can be counted here; None if it can."""
    if compiled.WHY_NOT:
        return f"kquota runs as {compiled.description()}, expected compiled: make compile, KQUOTA_PURE=0"
    if os.geteuid() != 0:
        return "counting needs root, for SCHED_FIFO and ptrace"
    tools = [tool for tool in ("valgrind", "strace", "cc", "haproxy") if shutil.which(tool) is None]
    return f"not on PATH: {', '.join(tools)} (Debian: apt-get install valgrind strace gcc haproxy)" if tools else None


def failures(stored: Mapping[str, Any], found: Counted) -> list[str]:
    """Counts that are not as stored. Fewer are a failure as well: unless they are stored, they can come back unseen."""
    wrong = []
    for row, counts in found.items():
        for name, values in counts.items():
            now = min(values)
            was = stored["rows"].get(row, {}).get(name, 0.0)  # 0: not stored yet
            percent = stored["tolerance_percent"].get(f"{row} {name}", TOLERANCE_PERCENT)
            if name != "objects" and abs(now - was) > was * percent / 100:  # objects are only bounded
                wrong.append(f"{row}: {name} {now:,.2f}, expected {was:,.2f} within {percent:g} %")
            if now > (most := AT_MOST.get((row, name), now)):
                wrong.append(f"{row}: {name} {now:,.2f}, at most {most:,.0f}")
    return wrong


def beside_haproxy(stored: Mapping[str, Any]) -> list[str]:
    """CPU next to HAProxy's in three interleaved rounds at a broker; what is above the bound."""
    bounds = stored["haproxy_at_most"]
    plan = replace(FULL, name="guard", rounds=3, repeats={}, wait_budget_s=20.0, idle_cores_poll=False)
    plan = replace(plan, warmup_records=20_000, produce_default_records=30_000, fetch_records=100_000, small_s=1.0)
    todo = [scenario for scenario in scenarios(plan) if scenario.key in bounds]
    with precedence():
        samples = Samples(runner.run(plan, [variants.HAPROXY, variants.KQUOTA], todo, lambda _: None))
    wrong = []
    for scenario in todo:
        metric = next(metric.key for metric in scenario.metrics if metric.compare == "haproxy")
        mine, other = (samples.of(scenario.key, metric, one.key) for one in (variants.KQUOTA, variants.HAPROXY))
        ratio = stats.ratio(mine, other)
        if ratio is None:
            wrong.append(f"{scenario.key}: nothing was measured next to HAProxy")
            continue
        print(f"{scenario.key}: CPU x HAProxy {ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})")
        if ratio.median > bounds[scenario.key]:
            wrong.append(f"{scenario.key}: CPU {ratio.median:.2f} x HAProxy's, at most {bounds[scenario.key]:g}")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0: as stored; 1: a count or a ratio is not; 2: it cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.guard", description=__doc__)
    parser.add_argument("--store", action="store_true", help="keep what is measured as what is expected from now on")
    parser.add_argument("--counts-only", action="store_true", help="no rounds at a broker next to HAProxy")
    options = parser.parse_args(argv)
    if reason := missing():
        print(reason)
        return 2
    stored, here = json.loads(STORED.read_text(encoding="utf-8")), environment()
    differs = [f"{name} {was} (here {here[name]})" for name, was in stored["environment"].items() if here[name] != was]
    found = measure()
    wrong = failures(stored, found)
    if options.store:
        if wrong or differs:
            outcome = subprocess.run(["git", "log", "-1", "--format=%cI"], capture_output=True, text=True, check=True)
            stored |= {"changed": outcome.stdout.strip(), "commit": describe_project()["commit"]}
        least = {row: {name: float(f"{min(values):.6g}") for name, values in one.items()} for row, one in found.items()}
        STORED.write_text(json.dumps(stored | {"environment": here, "rows": least}, indent=1) + "\n", encoding="utf-8")
        return 0
    if differs:
        print(f"counts are not compared, the stored ones are of {', '.join(differs)}: --store before a change")
        wrong = []
    if not options.counts_only:
        wrong += beside_haproxy(stored)
    print("\n".join(wrong) or "as stored")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
