"""Child processes that cannot outlive us: `subprocess.Popen` with a guardian (see guard.py)."""

from __future__ import annotations

import atexit
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO, Any

GUARD = Path(__file__).with_name("guard.py")


class GuardedProcess(subprocess.Popen[str]):
    """A text-mode Popen in a session of its own. It ends with this process at the latest, and then `orphan_dir` is
    deleted."""

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        orphan_dir: Path | None = None,
        **more: Any,
    ) -> None:
        guardian = _guardian()
        super().__init__(command, stdin=stdin, text=True, start_new_session=True, **more)
        guardian.send(f"{self.pid} {orphan_dir or ''}".encode())

    def stop(self, limit_s: float) -> int:
        """SIGTERM, SIGKILL if that took longer than `limit_s`; returns the exit code."""
        self.terminate()
        try:
            return self.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()


@cache
def _guardian() -> socket.socket:
    """The one of this process, by the socket that reports its children."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        guardian.wait()

    atexit.register(end)
    return ours
