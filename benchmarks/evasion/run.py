"""A run: batch by batch the attackers are let loose, while what reaches the broker is noted without the sidecar."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.evasion.arithmetic import Achieved, Staircase, compute_achieved, compute_most, steps
from benchmarks.evasion.gssapi import environment
from benchmarks.evasion.rows import BATCHES, BOUND, STRETCHES, Row
from benchmarks.evasion.stage import PASSWORD, Stage, charged, sidecars, topic_counts
from benchmarks.rig.variants import PROJECT
from tests.support.sidecars import Sidecar

WINDOW_NUM = 11
SAMPLE_S = 0.25
NICE = {"attackers": ("nice", "-n", "5")}
"""They stand for other machines, whose CPU is not the broker's."""
Say = Callable[[str], None]


@dataclass
class Outcome:
    """Of a row."""

    row: Row
    figures: Achieved
    charged: float | None
    """What the sidecar itself counted in all; None without a sidecar."""
    seen: dict[str, Any]
    """What the attackers saw."""
    stretches: dict[float, float]
    """The most over any so many seconds after the first window, without one request, in limits."""

    @property
    def passed(self) -> bool:
        """Was it held to its limit, and did it try at all?"""
        row = self.row
        if not row.bounded:
            return True
        tried = self.figures.total > 0 and (self.figures.achieved > 0 or not row.one_at_least)
        if row.in_stretches and any(most > STRETCHES[span_s] for span_s, most in self.stretches.items()):
            return False
        return tried and self.figures.achieved <= BOUND


@dataclass
class Batch:
    """Rows that ran at the same time."""

    outcomes: list[Outcome] = field(default_factory=list)
    names: tuple[str, ...] = ()
    unclean: str = ""
    """How a sidecar failed to end when it was asked to."""


class Watch(threading.Thread):
    """Notes at the broker's own listener, again and again, how far each row has come."""

    def __init__(self, on: Stage, rows: Sequence[Row], prefix: str) -> None:
        super().__init__(daemon=True)
        self._on, self._prefix = on, prefix
        self._produce = [row.name for row in rows if row.attack == "produce"]
        self._mutate = [row.name for row in rows if row.attack == "mutations" and not row.answered]
        self.records: dict[str, list[tuple[float, float]]] = {name: [] for name in self._produce}
        self.topics: dict[str, list[tuple[float, float]]] = {name: [] for name in self._mutate}
        self._done = threading.Event()

    def run(self) -> None:
        """Until `end`."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self._on.cluster.bootstrap, client_id="watch")
        partitions = {TopicPartition(self._prefix + name, 0): name for name in self._produce}
        last = False
        try:
            while not last:
                last = self._done.wait(SAMPLE_S)
                if partitions:
                    ends = consumer.end_offsets(list(partitions))
                    now = time.monotonic()
                    for partition, name in partitions.items():
                        self.records[name].append((now, ends[partition]))  # its topic was made for this batch
                if self._mutate:
                    known = Counter(topic.rpartition("-x")[0] for topic in consumer.topics())
                    now = time.monotonic()
                    for name in self._mutate:
                        self.topics[name].append((now, known[self._prefix + name]))
        finally:
            consumer.close()

    def end(self) -> None:
        """One last look."""
        self._done.set()
        self.join()


class Meter(threading.Thread):
    """Notes what the sidecars say was charged, of the rows for which the broker reports nothing."""

    def __init__(self, running: dict[str, Sidecar], rows: Sequence[Row], prefix: str) -> None:
        super().__init__(daemon=True)
        self._running, self._rows, self._prefix = running, rows, prefix
        self.seen: dict[str, list[tuple[float, float]]] = {row.name: [] for row in rows}
        self._done = threading.Event()

    def run(self) -> None:
        """Until `end`."""
        while not self._done.wait(1.0):
            if not self._rows:
                continue
            result, now = charged(self._running, self._rows, self._prefix), time.monotonic()
            for name, amount in result.items():
                self.seen[name].append((now, amount))

    def end(self) -> None:
        """No more."""
        self._done.set()
        self.join()


def start(command: Sequence[str], work: dict[str, Any]) -> subprocess.Popen[str]:
    """A program with this work."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT)
    tell(process, json.dumps(work))
    return process


def tell(process: subprocess.Popen[str], line: str) -> None:
    """A line of its input."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


@contextmanager
def child(module: str, work: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A program of this package with its work; killed at the end of the block."""
    command = [*NICE.get(module, ()), sys.executable, "-m", f"benchmarks.evasion.{module}"]
    with start(command, work) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line of its output. Raises RuntimeError if there is none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} has ended without an answer")
    return line


def run_batch(
    on: Stage,
    rows: Sequence[Row],
    seconds: float,
    *,
    direct: bool = False,
    window_num: int = WINDOW_NUM,
    settings: dict[str, Any] | None = None,
) -> Batch:
    """Rows at the same time, through sidecars or straight to the broker, which then has their quotas itself."""
    prefix = "d-" if direct else f"e{len(on.prepared)}-"
    ids = on.prepare(rows, prefix)
    tokens = {row.name: on.token_of(row.user) for row in rows if row.relogin == "renew"}
    if direct:
        on.limit_at_the_broker(rows, prefix)
        return _attack(on, rows, seconds, prefix, ids, tokens, None, window_num)
    owners = {tokens[row.name][0]: row.user for row in rows if row.name in tokens}
    batch = Batch()
    try:
        with sidecars(on, {prefix: rows}, owners=owners, window_num=window_num, settings=settings) as running:
            batch = _attack(on, rows, seconds, prefix, ids, tokens, running, window_num)
    except AssertionError as error:
        if not batch.outcomes:
            raise
        batch.unclean = str(error)  # what was measured before stays
    return batch


def work_of(
    on: Stage,
    rows: Sequence[Row],
    seconds: float,
    prefix: str,
    ids: dict[str, str],
    tokens: dict[str, tuple[str, str]],
    running: dict[str, Sidecar] | None,
) -> dict[str, Any]:
    """The work of the attackers (`attackers.Work`)."""
    hosts = {"ipv6": "::1"}
    return {
        "doors": {
            door: on.broker(door) if running is None else (hosts.get(door, "127.0.0.1"), running[door].port)
            for door in {"plain"} | {row.door for row in rows}
        },
        "rows": [asdict(row) for row in rows],
        "topics": ids,
        "seconds": seconds,
        "prefix": prefix,
        "password": PASSWORD,
        "authority": str(on.authority.certificate),
        "tokens": tokens,
        "certificates": {
            row.name: [str(file) for file in on.certificates[row.name][:2]]
            for row in rows
            if row.name in on.certificates
        },
        "kerberos": {} if on.kerberos is None else environment(on.kerberos.config, on.kerberos.keytab),
    }


def _attack(
    on: Stage,
    rows: Sequence[Row],
    seconds: float,
    prefix: str,
    ids: dict[str, str],
    tokens: dict[str, tuple[str, str]],
    running: dict[str, Sidecar] | None,
    window_num: int,
) -> Batch:
    batch = Batch()
    work = work_of(on, rows, seconds, prefix, ids, tokens, running)
    reads = any(row.attack in ("fetch", "share") for row in rows)
    beans = on.folder / f"{prefix}bytes-out.csv"
    watch = Watch(on, rows, prefix)
    metered = [] if running is None else [row for row in rows if row.attack == "requests"]
    meter = Meter(running or {}, metered, prefix)
    with on.bytes_out(beans) if reads else nullcontext(), child("attackers", work) as process:
        if reads:
            time.sleep(3)  # until its first line is there
        line_of(process)
        watch.start()
        meter.start()
        tell(process, "go")
        seen = {one["name"]: one for one in json.loads(line_of(process))}
        until = time.monotonic()
        watch.end()
        meter.end()
        if reads:
            time.sleep(1.5)
    result = {} if running is None else charged(running, rows, prefix)
    sent = topic_counts(beans, [prefix + row.name for row in rows]) if reads else {}
    clocks = time.time() - time.monotonic()
    for row in rows:
        stairs: Staircase
        if row.attack == "produce":
            size = seen[row.name]["frame_bytes"]
            stairs = [(at, count * size) for at, count in watch.records[row.name]]
        elif row.attack in ("fetch", "share"):
            stairs = [(at - clocks, amount) for at, amount in sent.get(prefix + row.name, ())]
        elif row.attack == "mutations":
            stairs = seen[row.name]["series"] if row.answered else watch.topics[row.name]
        else:
            stairs = meter.seen.get(row.name, ())
        saves = row.attack == "mutations"
        at_once = row.connections * row.size if saves else 0
        figures = compute_achieved(stairs, row.limit, float(window_num), until, at_once, saves=saves)
        series = seen[row.name].pop("series")
        stretches = _stretches(row, stairs, series, float(window_num), seen[row.name]["frame_bytes"])
        batch.outcomes.append(Outcome(row, figures, result.get(row.name), seen[row.name], stretches))
    return batch


def _stretches(
    row: Row, stairs: Staircase, series: Staircase, window_s: float, frame_bytes: float
) -> dict[float, float]:
    """See `Outcome.stretches`. Of fetches by the answers, as the broker's metrics have a line per second."""
    if row.attack in ("fetch", "share") and series:
        stairs = series
    rises = steps(stairs)
    if not rises:
        return {}
    one = frame_bytes or max(amount for _, amount in rises)
    begin_s = rises[0][0] + window_s
    return {span_s: compute_most(stairs, row.limit, begin_s, span_s, one) for span_s in STRETCHES}


def run(on: Stage, rows: Sequence[Row], seconds: float, say: Say, *, direct: bool = False) -> list[Batch]:
    """All of the rows, batch by batch."""
    found = []
    for names in BATCHES:
        together = [row for row in rows if row.batch in names]
        if direct:
            # What a broker counts as request time only the broker knows.
            together = [row for row in together if row.attack != "requests" and row.door != "ipv6"]
        if not together:
            continue
        say(f"{len(together)} attacks at the same time ({', '.join(names)}), {seconds:g} s ...")
        batch = run_batch(on, together, seconds, direct=direct)
        batch.names = names
        found.append(batch)
        for one in batch.outcomes:
            say(in_words(one))
    return found


def in_words(one: Outcome) -> str:
    """A line for the terminal."""
    figures = one.figures
    verdict = "PASS" if one.passed else "FAIL"
    if not one.row.bounded:
        verdict = "open"
    counted = "" if one.charged is None or not figures.total else f", charged/arrived {one.charged / figures.total:.3f}"
    if one.row.in_stretches:
        counted += "".join(f", {most:.3f} over {span_s:g} s" for span_s, most in one.stretches.items())
    errors = f", errors {dict(one.seen['errors'])}" if one.seen["errors"] else ""
    return (
        f"{verdict} {figures.achieved:7.3f} over {figures.seconds:5.1f} s, burst {figures.burst:6.2f}, overall "
        f"{figures.overall:6.3f}  {one.row.name}: {one.row.title} ({one.seen['requests']} requests on "
        f"{one.seen['connections']} connections{counted}{errors})"
    )
