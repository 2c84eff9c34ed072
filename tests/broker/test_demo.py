"""`kquota demo`, the whole of it: a real broker, two sidecars, real clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.lab.demo.plan import PLANS
from tests.support.precedence import precedence
from tests.support.usage_rows import from_line

ROOT = Path(__file__).parents[2]


class Demo:
    """A running `kquota demo --plain`; every process it starts inherits a mark in its environment."""

    def __init__(self, seconds: int, *more: str) -> None:
        self._mark = f"KQUOTA_DEMO_TEST={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proxy.app.cli.main", "demo", "--plain", "--seconds", str(seconds), *more],
            cwd=ROOT,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def survivors(self) -> list[str]:
        """Command lines of the processes that it started and that still run."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = self._mark.encode() in (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # gone meanwhile, or not ours to read
                continue
            if marked and command:
                found.append(command)
        return found


@contextmanager
def demo(seconds: int, *more: str) -> Iterator[Demo]:
    running = Demo(seconds, *more)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()  # its children follow by themselves
        running.process.communicate()


@pytest.mark.timeout(150)
def test_the_demo_holds_every_client_to_its_limit(tmp_path: Path) -> None:
    # Clients that wait for a core do not reach their limits.
    with precedence(), demo(19, "--usage", str(tmp_path)) as running:
        output, _ = running.process.communicate(timeout=120)
        assert running.process.returncode == 0, output
        assert running.survivors() == []
    for plan in PLANS:
        assert len(re.findall(rf"^ +\d+ s  {plan.name} .* MB/s; ", output, re.MULTILINE)) >= 8, output
    assert "limit vs achieved" in output
    shares = re.findall(r"^([\w-]+) (?:producer|consumer) .* (\d+)%", output, re.MULTILINE)
    assert [name for name, _ in shares] == [plan.name for plan in PLANS], output
    found = {name: int(share) for name, share in shares}
    # One limit behind two sidecars: together they have it, and what the modest one leaves is the greedy one's.
    found["clicks"] = found.pop("clicks-1") + (modest := found.pop("clicks-2"))
    assert 22 <= modest <= 28, output  # 0.5 of 2 MB/s
    for name, share in found.items():
        assert 90 <= share <= 110, f"{name}\n{output}"
    # Over its limit from the first second on, each limited client has been held for most of the time, and the two
    # libraries that tell throttle times have told them.
    assert re.search(r"orders .* muted$", output, re.MULTILINE), output
    for name in ("orders", "reports"):
        row = next(line for line in output.splitlines() if line.startswith(f"{name} "))
        *_, held_s, told_ms, result = row.split()
        assert float(held_s) > 5, output
        assert int(told_ms) > 50, output
        assert result == "ok"
    assert "Every limit was kept within 10% from second " in output
    assert "clicks-1 and clicks-2 shared one limit." in output
    assert f"kquota report throttling --input {tmp_path}" in output
    lines = [line for path in tmp_path.rglob("usage-*.jsonl") for line in path.read_bytes().splitlines()]
    moved = Counter[str]()
    for row in map(from_line, lines):
        moved[row["client_id"]] += row["produce_bytes"] + row["fetch_bytes"]
    assert all(moved[plan.client_id] > 1_000_000 for plan in PLANS), moved


@pytest.mark.long
@pytest.mark.timeout(90)
def test_ctrl_c_ends_everything_without_a_trace() -> None:
    with demo(seconds=60) as running:
        assert running.process.stdout is not None
        before = []
        for line in running.process.stdout:
            before.append(line)
            if re.match(r" +\d+ s  batch ", line):
                break
        pages = re.findall(r"http://\S+/ui/", "".join(before))
        assert [httpx.get(page).status_code for page in pages] == [200, 200], before
        assert len(running.survivors()) >= 8, before  # itself, broker, sidecars, clients, and their guardians
        # As a terminal does it: to the whole foreground process group, and people press twice.
        os.killpg(running.process.pid, signal.SIGINT)
        os.killpg(running.process.pid, signal.SIGINT)
        after, _ = running.process.communicate(timeout=60)
        output = "".join(before) + after
        assert running.process.returncode == 130, output
        assert running.survivors() == []
    assert "Traceback" not in output
    assert output.endswith("Stopped: clients, sidecars and broker are gone.\n")
