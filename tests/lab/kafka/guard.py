"""Guardian of a Python process's children; run as a script (`python -I -S guard.py FD`), so standard library only.

A JVM must never outlive the Python process that wanted it, not even when that one is killed with SIGKILL. The
kernel's parent-death signal cannot promise this: it fires when the *thread* that forked ends, and trio's and pytest's
worker threads do end. So this process waits for the end of its parent, then ends the children that still run.

Each message on the socket FD is a child's process id and, after a space, a directory that is deleted with it, or
nothing. The end of the socket's stream is the parent's end as well.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress

GRACE_S = 3.0
"""From SIGTERM to SIGKILL."""
MESSAGE_BYTES = 8192


def main(fd: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    children: dict[int, str] = {}
    with socket.socket(fileno=fd) as messages:
        _follow(os.pidfd_open(os.getppid()), messages, children)
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end(list(children), number)
    for folder in filter(None, children.values()):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # of a cluster: the folder around its nodes, which goes with the last one
            os.rmdir(os.path.dirname(folder))


def _follow(parent: int, messages: socket.socket, children: dict[int, str]) -> None:
    """Keep the running children by their file descriptors, until the parent is gone."""
    while True:
        ready, _, _ = select.select([parent, messages.fileno(), *children], [], [])
        for child in children.keys() & ready:
            del children[child]
            os.close(child)
        if parent in ready:
            return
        if messages.fileno() in ready:
            pid, _, folder = messages.recv(MESSAGE_BYTES).decode().partition(" ")
            if not pid:
                return
            with suppress(ProcessLookupError):  # it has ended
                children[os.pidfd_open(int(pid))] = folder


def _end(running: list[int], number: int) -> None:
    """Signal these, and wait until they have ended, or GRACE_S."""
    for child in running:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, number)
    deadline = time.monotonic() + GRACE_S
    while running and (left_s := deadline - time.monotonic()) > 0:
        ended, _, _ = select.select(running, [], [], left_s)
        running = [child for child in running if child not in ended]


if __name__ == "__main__":
    main(int(sys.argv[1]))
