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


QUARANTINED = """
def test_fails_now_and_then():
    print("tried")
    assert False

def test_is_as_it_shall_be():
    assert True
"""


def test_what_is_in_quarantine_is_tried_once_told_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "tests/broker").mkdir(parents=True)
    conftest = (TESTS / "conftest.py").read_text()
    named = 'QUARANTINE["tests/broker/test_some.py::test_fails_now_and_then"] = "not understood yet"\n'
    (tmp_path / "tests/conftest.py").write_text(conftest + named)
    (tmp_path / "tests/broker/test_some.py").write_text(QUARANTINED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    broker: as in pyproject.toml\n    timeout: too\n")
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--strict-markers", "tests"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests in quarantine: 1, failed: 1" in done.stdout
    assert "tests/broker/test_some.py::test_fails_now_and_then (failed): not understood yet" in done.stdout
    assert "1 passed, 1 xfailed" in done.stdout
    (tmp_path / "tests/conftest.py").write_text(conftest)
    done = run()
    assert done.returncode == 1
    assert done.stdout.count("\ntried\n") == 1, "once"
    assert "1 failed, 1 passed" in done.stdout
    assert "tests in quarantine: 0, failed: 0" in done.stdout
