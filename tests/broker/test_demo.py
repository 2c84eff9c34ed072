"""`kquota demo`, the whole of it: a real broker, two sidecars, real clients."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.demo.plan import PLANS
from tests.support.precedence import precedence
from tests.support.usage_rows import from_line

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(150)
def test_the_demo_holds_every_client_to_its_limit(tmp_path: Path) -> None:
    # Clients that wait for a core do not reach their limits.
    mark = f"KQUOTA_DEMO_TEST={tmp_path}"  # all that it starts inherits this
    arguments = ["demo", "--plain", "--seconds", "19", "--usage", str(tmp_path)]
    command = [sys.executable, "-m", "proxy.app.cli.main", *arguments]
    with precedence():
        done = subprocess.run(["env", mark, *command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or not ours to read
            assert mark.encode() not in (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
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
    # libraries that report throttle times have reported them.
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
