"""What tests cost in seconds of a core, with all that they start: `PYTEST_ARGS="-p tests.support.cpu_times"`.

Each process that runs tests moves into a control group of its own, where whatever it starts stays as well (brokers,
sidecars, Spark, compilers), and is asked for the group's time around each test. The end of the run shows a table by
file. It takes root and control groups, of version 1 or 2.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

V1: Final = Path("/sys/fs/cgroup/cpuacct")
V2: Final = Path("/sys/fs/cgroup")
PARENT: Final = V1 if V1.is_dir() else V2
PREFIX: Final = "kquota-tests-"
SHOWN: Final = 60
PROPERTY: Final = "cpu_s"


def remove_left_overs(parent: Path) -> None:
    """Remove the groups of processes that have ended."""
    for left_over in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use: another run
            left_over.rmdir()


class CpuTimes:
    """The control group of this process."""

    def __init__(self, parent: Path = PARENT) -> None:
        self.folder = parent / f"{PREFIX}{os.getpid()}"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        self.before_s = self.of_tests_s = 0.0
        v1 = self.folder / "cpuacct.usage"
        self.file = v1 if v1.exists() else self.folder / "cpu.stat"

    def used_s(self) -> float:
        """CPU time of this process and of all that it started since, seconds."""
        words = self.file.read_text().split()
        return int(words[0]) / 1e9 if len(words) == 1 else int(words[words.index("usage_usec") + 1]) / 1e6

    def pytest_runtest_logstart(self) -> None:
        """Before the fixtures of a test."""
        self.before_s = self.used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """After its fixtures: what is told goes with the report of the teardown, the last one."""
        report = yield
        if call.when == "teardown":
            took_s = self.used_s() - self.before_s
            self.of_tests_s += took_s
            report.user_properties.append((PROPERTY, took_s))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """What no test took: imports and collecting, mostly."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[PROPERTY] = self.used_s() - self.of_tests_s


class Table:
    """Adds up what the processes tell, and shows it."""

    def __init__(self) -> None:
        remove_left_overs(PARENT)
        self.files: defaultdict[str, float] = defaultdict(float)
        self.waited: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.waited[file] += report.duration
        self.files[file] += sum(
            took_s for name, took_s in report.user_properties if name == PROPERTY and isinstance(took_s, float)
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """A process that ran tests is done."""
        self.files["(no test)"] += getattr(node, "workeroutput", {}).get(PROPERTY, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"CPU time of all processes: {sum(self.files.values()):.0f} s")
        for file, took_s in sorted(self.files.items(), key=lambda item: -item[1])[:SHOWN]:
            terminalreporter.write_line(f"{took_s:8.1f} s of a core {self.waited[file]:8.1f} s  {file}")


def pytest_configure(config: pytest.Config) -> None:
    """The process that only hands out tests adds up, those that run them measure; one process alone does both."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(CpuTimes(), "cpu-times")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(), "cpu-times-table")
