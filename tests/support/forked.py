"""`kquota run` in processes forked from one that has done the imports (fork_server.py), for sidecars of tests."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.lab.kafka import GuardedProcess

IDS_LIMIT_S: Final = 60.0
NOT_PASSED_ON: Final = ("PYTEST_CURRENT_TEST",)
"""Variables that change with each test, and that no sidecar reads."""


class ForkedProcess:
    """A sidecar's process, with what tests use of a GuardedProcess."""

    def __init__(self, report: Connection) -> None:
        self._report = report
        self.returncode: int | None = None
        self.pid = self._told(IDS_LIMIT_S)

    def poll(self) -> int | None:
        """The exit code, if it has ended: -n after signal n."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._told(timeout)
            except EOFError:
                self.returncode = -signal.SIGKILL
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it to the sidecar, if that has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self, limit_s: float | None) -> int:
        """What the watching process says next; EOFError if it has been killed, and the sidecar with it."""
        if not self._report.poll(limit_s):
            raise subprocess.TimeoutExpired(["kquota"], limit_s or 0.0)
        return int(self._report.recv())


class _Server:
    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, arguments: Sequence[str], log: int) -> ForkedProcess:
        request: dict[str, Any] = {
            "arguments": list(arguments),
            "cores": sorted(os.sched_getaffinity(0)),
            "policy": os.sched_getscheduler(0),
            "priority": os.sched_getparam(0).sched_priority,
        }
        report, theirs = Pipe(duplex=False)
        with theirs:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [log, theirs.fileno()])
        return ForkedProcess(report)

    def stop(self) -> None:
        """End it; what it forked and still runs ends as well."""
        self._requests.close()
        self._process.wait()


@cache
def _server(_folder: str, _variables: frozenset[tuple[str, str]]) -> _Server:
    """One for each environment that sidecars are started in."""
    server = _Server()
    atexit.register(server.stop)
    return server


def _namespaces() -> dict[str, str]:
    return {kind: os.readlink(f"/proc/thread-self/ns/{kind}") for kind in os.listdir("/proc/thread-self/ns")}


_HOME: Final = _namespaces()


def run_kquota(
    arguments: Sequence[str], log: Path, before: Sequence[str] | None = None
) -> GuardedProcess | ForkedProcess:
    """Start `kquota` with these arguments, as `log` has it from then on; it ends with this process."""
    with log.open("ab") as out:
        if before is None and _namespaces() == _HOME and not any(name.startswith("COVERAGE_") for name in os.environ):
            variables = frozenset((name, value) for name, value in os.environ.items() if name not in NOT_PASSED_ON)
            return _server(os.getcwd(), variables).fork(arguments, out.fileno())
        command = [*(before or ()), sys.executable, "-m", "proxy.app.cli.main", *arguments]
        program = shutil.which(command[0])
        assert program is not None, f"{command[0]} is missing"
        return GuardedProcess([program, *command[1:]], stdout=out, stderr=out)
