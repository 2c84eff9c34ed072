"""A Python that has imported what `kquota run` imports, and forks a process for each sidecar that tests ask for."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1
REQUEST_BYTES = 1 << 20


def main() -> None:
    """Serve until the parent is gone; in the processes forked, run what was asked for."""
    from proxy.app.cli.main import main as command_line
    from proxy.app.common.start import blocked_imports

    with blocked_imports():
        import proxy.app.run  # noqa: F401
        from proxy.net.listen import cluster_brokers
    cluster_brokers.REFRESH_S = cluster_brokers.LAST_RETRY_S = 1.0  # type: ignore[misc] # brokers' changes are seen soon
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        gc.collect()
        gc.freeze()  # what is shared stays shared
        arguments = _serve(requests)
    if arguments is not None:
        gc.unfreeze()
        sys.argv[1:] = arguments
        command_line()


def _serve(requests: socket.socket) -> list[str] | None:
    """In each process that is forked, its arguments; None in this one, at the end."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        text, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
        if not text:
            return None
        if os.fork() == 0:
            os.close(requests.detach())
            return _watch(json.loads(text), *fds)
        for fd in fds:
            os.close(fd)


def _watch(request: dict[str, Any], log: int, report: int) -> list[str]:
    """In the process that watches a sidecar: fork it, report its id, later its exit code. Returns in the sidecar."""
    _end_with(os.getppid())
    os.setsid()
    os.sched_setaffinity(0, request["cores"])
    os.sched_setscheduler(0, request["policy"], os.sched_param(request["priority"]))
    watcher = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(watcher)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        return [str(argument) for argument in request["arguments"]]
    os.close(log)
    said = Connection(report, readable=False)
    said.send(child)
    said.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _end_with(parent: int) -> None:
    """SIGKILL when the parent ends, which has no threads that could end before it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
