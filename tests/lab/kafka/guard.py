"""Guardian of one child process; run as a script (`python -I -S guard.py`), so standard library only.

A JVM must never outlive the Python process that wanted it, not even when that one is killed with SIGKILL. The
kernel's parent-death signal alone cannot promise this: it fires when the *thread* that forked ends, and trio's and
pytest's worker threads do end. So this single-threaded process stands between: its parent holds the other end of a
pipe (`control`), and end of file there means that the parent is gone. The child in turn carries PR_SET_PDEATHSIG and
dies if this guardian is killed.

Control pipe: `T` sends SIGTERM, `K` sends SIGKILL, end of file sends SIGTERM and, after the grace time, SIGKILL.
Report pipe: one line, the child's process id. Exit status: the child's, or 128 + signal number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
# If some forked process of the parent keeps the control pipe open, a changed parent id shows the end.
PARENT_CHECK_S = 1.0


def main(argv: list[str]) -> int:
    """`guard.py CONTROL_FD REPORT_FD GRACE_S ORPHAN_DIR COMMAND...`; ORPHAN_DIR ("" for none) goes with the parent."""
    control, report, grace_s, orphan_dir, command = int(argv[0]), int(argv[1]), float(argv[2]), argv[3], argv[4:]
    parent = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)  # they arrive as bytes in the wake pipe

    child = _spawn(command)
    os.write(report, b"%d\n" % child)
    os.close(report)
    _drop_standard_streams()

    kill_at: float | None = None
    orphaned = False
    sources = [control, wake_read]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        ready, _, _ = select.select(sources, [], [], PARENT_CHECK_S)
        orders = b""
        if wake_read in ready and signal.SIGTERM in os.read(wake_read, 512):
            orders += b"T"
        if control in ready:
            received = os.read(control, 64)
            orders += received
            orphaned = orphaned or not received
        orphaned = orphaned or os.getppid() != parent
        if orphaned and kill_at is None:
            orders += b"T"
            kill_at = time.monotonic() + grace_s
            sources = [wake_read]
        if b"T" in orders:
            os.kill(child, signal.SIGTERM)
        if b"K" in orders or (kill_at is not None and time.monotonic() >= kill_at):
            os.kill(child, signal.SIGKILL)
    if orphaned and orphan_dir:
        shutil.rmtree(orphan_dir, ignore_errors=True)
        # The last guardian of a cluster also removes the folder around its nodes; for the others this fails, as it is
        # not empty.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(orphan_dir))
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _ignore(_number: int, _frame: object) -> None:
    """A handler must exist for the wake pipe to be written; nothing to do here."""


def _spawn(command: list[str]) -> int:
    guardian = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guardian:  # it died before prctl took effect
                os._exit(1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _drop_standard_streams() -> None:
    """Let the child be the only holder of the streams, so that readers see end of file when it closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
