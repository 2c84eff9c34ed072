"""The unit room's conftest.py at work, in a run of pytest of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

FILE = """
import subprocess, threading, time

def test_all_is_well():
    assert True

def test_a_process():
    subprocess.run(["true"])

def test_a_sleep_that_is_swallowed():
    try:
        time.sleep(1)
    except AssertionError:
        pass

def test_after_them():
    assert True
"""


def test_a_unit_test_that_does_more_fails_and_is_told_where_it_belongs(tmp_path: Path) -> None:
    shutil.copy(TESTS / "unit/conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_some.py").write_text(FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", "."]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    shown = done.stdout
    assert done.returncode == 1, shown + done.stderr
    for name in ("test_all_is_well", "test_after_them"):
        assert f"PASSED test_some.py::{name}" in shown
    assert "FAILED test_some.py::test_a_process" in shown
    assert "starts a process (subprocess.Popen: 'true')" in shown
    assert "belongs into tests/system" in shown
    assert "ERROR test_some.py::test_a_sleep_that_is_swallowed" in shown
    assert "time.sleep(1), which a unit test may not: it belongs into tests/loopback" in shown
