"""Sidecars of tests are forked from a process that has done the imports: they are what a start would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.kafka import GuardedProcess
from deploy.kafka.ports import free_ports
from tests.support.forked import ForkedProcess, run_kquota
from tests.support.namespaces import Namespace
from tests.support.precedence import precedence
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
PARENT = """
import sys, time
from pathlib import Path
from tests.support.forked import run_kquota
print(run_kquota(["run", "--config", sys.argv[1]], Path(sys.argv[2])).child_pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a sidecar that waits for its brokers."""
    closed, admin, port = free_ports(3)
    values = {"upstream": {"bootstrap": [f"127.0.0.1:{closed}"]}, "listen": {"host": "127.0.0.1", "port": port}}
    path = tmp_path / "kquota.yaml"
    path.write_text(yaml.safe_dump(values | {"admin": {"host": "127.0.0.1", "port": admin}}))
    return path


def test_it_says_and_exits_with_what_a_start_does(tmp_path: Path) -> None:
    for arguments in (["--version"], ["check", "--config", "/nowhere.yaml"]):
        command = [sys.executable, "-m", "deploy.cli.main", *arguments]
        started = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        log = tmp_path / arguments[0]
        forked = run_kquota(arguments, log)
        assert isinstance(forked, ForkedProcess)
        assert forked.wait(LIMIT_S) == started.returncode
        assert log.read_bytes() == started.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, 128 + signal.SIGKILL)])
def test_it_takes_signals(config: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    log = tmp_path / "log"
    forked = run_kquota(["run", "--config", str(config)], log)
    until(lambda: log.read_text())
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    forked.send_signal(number)
    assert forked.wait(LIMIT_S) == forked.returncode == code
    forked.send_signal(number)  # harmless


def test_it_has_the_environment_and_the_precedence_of_the_test(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KQUOTA_TEST_FORKED", "yes")
    with precedence() as granted:
        forked = run_kquota(["run", "--config", str(config)], tmp_path / "log")
    assert b"KQUOTA_TEST_FORKED=yes" in Path(f"/proc/{forked.pid}/environ").read_bytes().split(b"\0")
    assert os.sched_getscheduler(forked.pid) == (os.SCHED_RR if granted else os.SCHED_OTHER)
    assert {"0", "1", "2"} <= set(os.listdir(f"/proc/{forked.pid}/fd"))
    forked.kill()
    assert forked.wait(LIMIT_S) == 128 + signal.SIGKILL


def test_it_ends_with_the_tests_process(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(config), str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        sidecar = Path("/proc", parent.stdout.readline().strip())
        assert sidecar.exists()
        parent.kill()
        parent.wait()
        until(lambda: not sidecar.exists())


def test_a_test_in_another_namespace_gets_a_process_that_was_started_there(tmp_path: Path) -> None:
    namespace = Namespace()
    with namespace.inside():
        started = run_kquota(["--version"], tmp_path / "there")
        assert isinstance(started, GuardedProcess)
        assert started.wait(LIMIT_S) == 0
    namespace.close()
    forked = run_kquota(["--version"], tmp_path / "here")
    assert isinstance(forked, ForkedProcess)
    assert forked.wait(LIMIT_S) == 0
    assert (tmp_path / "there").read_text() == (tmp_path / "here").read_text() != ""
