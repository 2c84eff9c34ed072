"""Child processes that cannot outlive us."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

_starter = ThreadPoolExecutor(1, "starter")


class GuardedProcess(subprocess.Popen[str]):
    """A text-mode Popen, in a session of its own, which the kernel ends when this process ends, killed or not.

    The kernel does so when the *thread* ends that started it (PR_SET_PDEATHSIG), and workers' threads do end: from
    these it is started by a thread that lives as long as the process. (From the main thread it is not: a program starts
    in the network namespace of the thread.)
    """

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        death_signal: str = "KILL",
    ) -> None:
        def start() -> None:
            subprocess.Popen.__init__(
                self,
                ["setpriv", "--pdeathsig", death_signal, *command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=cwd,
                text=True,
                start_new_session=True,
            )

        if threading.current_thread() is threading.main_thread():
            start()
        else:
            _starter.submit(start).result()

    def stop(self, limit_s: float) -> int:
        """SIGTERM, and SIGKILL if that took longer than `limit_s`; the exit code."""
        self.terminate()
        try:
            return self.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()
