"""Child processes that cannot outlive us: `subprocess.Popen` with a guardian between (see guard.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

GUARD = Path(__file__).with_name("guard.py")
# What an orphaned child gets between SIGTERM and SIGKILL.
ORPHAN_GRACE_S = 3.0


class GuardedProcess(subprocess.Popen[str]):
    """A text-mode Popen whose child always dies with this process. `pid` is the guardian's id, and that of the session
    and process group around both; `child_pid`, signals and exit codes (128 + n after signal n) are the program's own.
    """

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        orphan_dir: Path | None = None,
        **more: Any,
    ) -> None:
        control_read, self._control = os.pipe()
        report_read, report_write = os.pipe()
        guard = [sys.executable, "-I", "-S", str(GUARD), str(control_read), str(report_write)]
        guard += [str(ORPHAN_GRACE_S), str(orphan_dir or "")]
        try:
            super().__init__(
                [*guard, *command],
                stdin=stdin,
                text=True,
                pass_fds=(control_read, report_write),
                start_new_session=True,
                **more,
            )
        except BaseException:
            self._close_control()
            os.close(report_read)
            raise
        finally:
            os.close(control_read)
            os.close(report_write)
        with os.fdopen(report_read) as report:
            line = report.readline()
        self.child_pid = int(line) if line else self.pid

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None:
            self._close_control()
        return code

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self._close_control()
        return code

    def send_signal(self, sig: int) -> None:
        """Signal the program itself, through its guardian where that is the safe way."""
        if self.poll() is not None:
            return
        if sig in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                os.write(self._control, b"T" if sig == signal.SIGTERM else b"K")
        else:
            os.kill(self.child_pid, sig)

    def stop(self, limit_s: float) -> int:
        """SIGTERM, SIGKILL if that took longer than `limit_s`, finally SIGKILL to the group; returns the exit code."""
        self.terminate()
        try:
            return self.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        try:
            return self.wait(limit_s + ORPHAN_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            return self.wait()

    def _close_control(self) -> None:
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def __del__(self, *args: Any, **kwargs: Any) -> None:
        if getattr(self, "_control", -1) >= 0:
            self._close_control()  # its owner forgot it: at the end of file the guardian stops the child
        super().__del__(*args, **kwargs)
