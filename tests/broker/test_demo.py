"""`kquota demo`, the whole of it: a real broker, two sidecars, real clients."""

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


@pytest.mark.long
@pytest.mark.timeout(150)
def test_the_demo_holds_every_client_to_its_limit(tmp_path: Path) -> None:
    """Only then is its exit code 0 (tests/lab/demo/verdict.py). Clients that wait for a core do not reach them."""
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
    assert "Every limit was kept within 10% from second " in output
    assert "clicks-1 and clicks-2 shared one limit." in output
    assert f"kquota report throttling --input {tmp_path}" in output
    lines = [line for path in tmp_path.rglob("usage-*.jsonl") for line in path.read_bytes().splitlines()]
    moved = Counter[str]()
    for row in map(from_line, lines):
        moved[row["client_id"]] += row["produce_bytes"] + row["fetch_bytes"]
    assert all(moved[plan.client_id] > 1_000_000 for plan in PLANS), moved
