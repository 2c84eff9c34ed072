"""Bugs planted one at a time into a copy of the sources: each has to be found, and how soon it is."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = ("quota", "proxy", "config", "benchmarks/report", "tests/support", "tests/world")
LONGEST_S = 600.0


class Mutation(NamedTuple):
    """What is planted, and where: `old` is there once, and `new` replaces it."""

    name: str
    file: str
    old: str
    new: str


class Outcome(NamedTuple):
    name: str
    seconds: float
    """Of CPU time: the machine's other work changes no comparison with an earlier run."""
    found: str
    """The property that failed, or nothing."""


MUTATIONS = (
    Mutation(
        "the window lacks a sample",
        "quota/rate.py",
        "round the same way\n            total += sample.sum",
        "round the same way\n            total += sample.sum if sample is self._current else 0.0",
    ),
    Mutation(
        "a debt is half paid after a charge",
        "quota/pacing.py",
        "self.paid_at = min(max(self.paid_at, now - self._tolerance_ms) + cost_ms, now + self._most_ms)",
        "self.paid_at = min(max(self.paid_at, now - self._tolerance_ms) + cost_ms / 2, now + self._most_ms)",
    ),
    Mutation(
        "a mute ends early, and the gate lets go too soon",
        "quota/gate.py",
        "debt_ms = paid_at - now - GRACE_MS",
        "debt_ms = paid_at - now - 25 * GRACE_MS",
    ),
    Mutation(
        "a share is raised before its claim came back twice",
        "quota/fleet/claim.py",
        "grant = exact(min(before, found, capacity, *(claim for _, claim in self._sent)))",
        "grant = exact(max(before, found))",
    ),
    Mutation(
        "an instance that ends keeps its share",
        "quota/fleet/core.py",
        "        for own in self._own.values():\n            own.claim.lower(0.0)\n",
        "",
    ),
    Mutation(
        "no refund of a fetch whose connection ends",
        "proxy/core/session/session.py",
        "state.ledger.settle(pending.account, Kind.FETCH, pending.grant, 0, now_ms)",
        "pass",
    ),
    Mutation(
        "fetched bytes are not charged",
        "quota/ledger.py",
        "        if amount:\n            self.charge_no_throttle(account, kind, amount, now_ms)",
        "        if amount < 0:\n            self.charge_no_throttle(account, kind, amount, now_ms)",
    ),
    Mutation(
        "a place in a queue outlives its connection",
        "proxy/core/session/throttle.py",
        "group.leave_queue(self)\n        self._enter(Throttled.FREE)",
        "pass\n        self._enter(Throttled.FREE)",
    ),
    Mutation(
        "accounts are not left when a connection ends",
        "proxy/core/session/request_handler.py",
        "        self._current, self.account = None, None\n        self.close()",
        "        self._current, self.account = None, None",
    ),
    Mutation(
        "a reload is not applied to counters in use",
        "quota/counter_store.py",
        "        self._applied += 1\n        for (kind, entity)",
        "        for (kind, entity)",
    ),
    Mutation(
        "a byte is lost where a socket was full",
        "proxy/net/io/pair.py",
        "self.unsent = left[done:] if done else left",
        "self.unsent = left[done + 1 :] if done else left",
    ),
    Mutation(
        "clients without a limit are charged to a group of others",
        "quota/ledger.py",
        "        user, client_id = account.identity\n        self.counters.attach(",
        "        user, client_id = account.identity\n"
        "        client_id = 'g0' if client_id == 'free' else client_id\n        self.counters.attach(",
    ),
    Mutation(
        "throttles of members are not cut",
        "proxy/core/session/throttle.py",
        "        return min(delay_ms, self.most_ms)",
        "        return delay_ms",
    ),
)


def _children_s() -> float:
    """CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def play() -> Iterator[Outcome]:
    for mutation in MUTATIONS:
        with tempfile.TemporaryDirectory() as folder:
            for name in FOLDERS:
                shutil.copytree(
                    ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("_compiled", "__pycache__")
                )
            path = Path(folder, mutation.file)
            source = path.read_text()
            if source.count(mutation.old) != 1:
                raise ValueError(f"{mutation.file} has {source.count(mutation.old)} times: {mutation.old}")
            path.write_text(source.replace(mutation.old, mutation.new))
            began_s = _children_s()
            command = [sys.executable, "-m", "tests.world", "--seeds", "100000", "--minutes", "5", "--no-shrink"]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={**os.environ, "KQUOTA_PURE": "1", "PYTHONPATH": folder},
                    capture_output=True,
                    text=True,
                    timeout=LONGEST_S,
                    check=False,
                )
                found = done.stdout.partition("\n")[0]
                if not found.startswith("seed "):
                    raise ValueError(f"{mutation.name}: {done.stderr[-2000:]}")
            except subprocess.TimeoutExpired:
                found = ""
            yield Outcome(mutation.name, _children_s() - began_s, found)
