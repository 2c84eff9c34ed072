"""What tests cost in seconds of a core (tests/support/cpu_times.py), by control groups of both versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cpu_times import PARENT, V1, V2, remove_left_overs

ROOT = Path(__file__).resolve().parents[2]
BUSY = """
import subprocess, sys, time
from pathlib import Path
from tests.support.cpu_times import CpuTimes
times = CpuTimes(Path(sys.argv[1]))
before_s = times.used_s()
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)
print(times.used_s() - before_s)
"""


def _needs_groups(parent: Path) -> None:
    if not (parent / "cgroup.procs").exists() or not os.access(parent, os.W_OK):
        pytest.skip(f"no control groups can be made at {parent}")


@pytest.mark.parametrize("parent", [V1, V2 / "unified", V2], ids=["v1", "v2 beside v1", "v2"])
def test_what_a_child_computes_is_counted(parent: Path) -> None:
    _needs_groups(parent)
    done = subprocess.run([sys.executable, "-c", BUSY, str(parent)], cwd=ROOT, capture_output=True, text=True)
    remove_left_overs(parent)
    assert done.returncode == 0, done.stderr
    assert 0.5 <= float(done.stdout) < 5


def test_the_end_of_a_run_shows_a_table() -> None:
    _needs_groups(PARENT)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "1",
        "-p",
        "tests.support.cpu_times",
        "tests/unit/test_rooms.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ +\d+\.\d s of a core +\d+\.\d s  tests/unit/test_rooms.py$", done.stdout, re.MULTILINE)
