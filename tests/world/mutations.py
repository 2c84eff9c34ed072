"""Bugs planted one at a time into a copy of the sources: each has to be found, and how soon it is."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
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


PATCHES = """
quota/rate.py: the window lacks a sample
         for sample in self._ring:  # slot order, like Kafka, so that sums of fractions round the same way
-            total += sample.sum
+            total += sample.sum if sample is self._current else 0.0

quota/pacing.py: a debt is half paid after a charge
-        self.paid_at = min(max(self.paid_at, now - self._tolerance_ms) + cost_ms, now + self._most_ms)
+        self.paid_at = min(max(self.paid_at, now - self._tolerance_ms) + cost_ms / 2, now + self._most_ms)

quota/gate.py: a mute ends early, and the gate lets go too soon
-        debt_ms = paid_at - now - GRACE_MS
+        debt_ms = paid_at - now - 25 * GRACE_MS

quota/fleet/claim.py: a share is raised before its claim came back twice
-        grant = exact(min(before, found, capacity, *(claim for _, claim in self._sent)))
+        grant = exact(max(before, found))

quota/fleet/core.py: an instance that ends keeps its share
-        for own in self._own.values():
-            own.claim.lower(0.0)

proxy/core/session/session.py: no refund of a fetch whose connection ends
-                state.ledger.settle(pending.account, Kind.FETCH, pending.grant, 0, now_ms)
+                pass

quota/ledger.py: fetched bytes are not charged
-        if amount:
+        if amount < 0:
             self.charge_no_throttle(account, kind, amount, now_ms)

proxy/core/session/throttle.py: a place in a queue outlives its connection
-                group.leave_queue(self)
+                pass
         self._enter(Throttled.FREE)

proxy/core/session/request_handler.py: accounts are not left when a connection ends
         self._current, self.account = None, None
-        self.close()

quota/counter_store.py: a reload is not applied to counters in use
-        self._applied += 1
         for (kind, entity), group in list(self._overflow.items()):

proxy/net/io/pair.py: a byte is lost where a socket was full
-        self.unsent = left[done:] if done else left
+        self.unsent = left[done + 1 :] if done else left

quota/ledger.py: clients without a limit are charged to a group of others
         user, client_id = account.identity
+        client_id = 'g0' if client_id == 'free' else client_id
         self.counters.attach(meter, kind, user, client_id, now)

proxy/core/session/throttle.py: throttles of members are not cut
-        return min(delay_ms, self.most_ms)
+        return delay_ms
"""


def _parsed() -> Iterator[Mutation]:
    for patch in PATCHES.strip().split("\n\n"):
        head, *lines = patch.splitlines()
        file, _, name = head.partition(": ")
        old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +"))
        yield Mutation(name, file, old, new)


MUTATIONS = tuple(_parsed())


def _children_s() -> float:
    """CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def play() -> Iterator[tuple[str, float, str]]:
    """Of each its name, the CPU time in seconds (the machine's other work changes no comparison with an earlier run),
    and the property that failed, or nothing."""
    command = [sys.executable, "-m", "tests.world", "--seeds", "100000", "--minutes", "5", "--no-shrink"]
    nothing_built = shutil.ignore_patterns("_compiled", "__pycache__")
    for mutation in MUTATIONS:
        with tempfile.TemporaryDirectory() as folder:
            for name in FOLDERS:
                shutil.copytree(ROOT / name, Path(folder, name), ignore=nothing_built)
            path, pure = Path(folder, mutation.file), os.environ | {"KQUOTA_PURE": "1", "PYTHONPATH": folder}
            path.write_text(path.read_text().replace(mutation.old, mutation.new))
            began_s, found = _children_s(), ""
            with suppress(subprocess.TimeoutExpired):
                done = subprocess.run(command, cwd=folder, env=pure, capture_output=True, text=True, timeout=LONGEST_S)
                found = done.stdout.partition("\n")[0]
                if not found.startswith("seed "):
                    raise ValueError(f"{mutation.name}: {done.stderr[-2000:]}")
            yield mutation.name, _children_s() - began_s, found
