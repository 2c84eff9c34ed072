"""The data path compiled and as Python: the same answers and the same state, whatever is done to a ledger; and its
tests once more as Python. (Whatever two peers send: tests/loopback/test_connection_io.py.)"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quota import compiled

ROOT = Path(__file__).resolve().parents[2]
CASES = 25
AGAIN = (
    [
        *map(str, ROOT.glob("tests/unit/test_quota_*.py")),
        "tests/unit/test_session.py",
        "tests/unit/test_session_fetch.py",
    ],
    ["tests/loopback/test_proxy_shell.py", "tests/loopback/test_event_loop.py"],
)
"""Tests that are run again with the Python code, in a process of its own, when this one runs the compiled one."""

pytestmark = pytest.mark.skipif(bool(compiled.WHY_NOT), reason=f"quota is not compiled: {compiled.WHY_NOT}")


def run(pure: str, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env=os.environ | {"KQUOTA_PURE": pure, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_random_operations_end_in_the_same_state() -> None:
    argv = ("-m", "tests.one_source", "--cases", str(CASES))
    first, *compiled_lines = run("0", *argv).splitlines()
    assert first == "arithmetic: compiled"
    first, *pure_lines = run("1", *argv).splitlines()
    assert first == "arithmetic: KQUOTA_PURE is set"
    assert compiled_lines == pure_lines
    assert len(set(pure_lines)) == CASES


@pytest.mark.long
@pytest.mark.parametrize("files", AGAIN, ids=["arithmetic", "loops"])
def test_tests_pass_with_the_python_code_too(files: list[str]) -> None:
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib --strict-markers"]
    said = run("1", "-m", "pytest", "-q", *plain, *files)
    assert " passed" in said
    assert "skipped" not in said
