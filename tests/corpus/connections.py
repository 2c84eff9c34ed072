"""Where processes connect to, as Linux reports it: the proof that nothing goes around the sidecar."""

import threading
import time
from contextlib import suppress
from typing import NamedTuple, Self

import psutil

from tests.support.waiting import in_background

SAMPLE_S = 0.1
OVER = (psutil.CONN_LISTEN, psutil.CONN_TIME_WAIT, psutil.CONN_CLOSE)
"""States in which no bytes are exchanged (any more)."""
STARTED_S = 2.0
"""A process that is as old runs its own program, with an environment that stays."""


class Connection(NamedTuple):
    mark: str
    program: str
    host: str
    port: int


class ConnectionWatch:
    """Looks ten times a second; clients keep their connections for as long as they live, which is longer."""

    def __init__(self, variable: str) -> None:
        """`variable`: the environment variable whose values mark families of processes."""
        self._variable = variable
        self._seen: set[Connection] = set()
        self._others: set[psutil.Process] = set()
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._ended = in_background(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._ended.result()

    def seen(self, mark: str) -> set[Connection]:
        return {each for each in self._seen if each.mark == mark}

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for process in psutil.process_iter():
                with suppress(psutil.Error):  # ended meanwhile, or another user's
                    self._look(process)

    def _look(self, process: psutil.Process) -> None:
        if process in self._others:
            return
        if mark := process.environ().get(self._variable):
            for one in process.net_connections("tcp"):
                if one.raddr and one.status not in OVER:
                    # Java's sockets are IPv6 with mapped addresses.
                    host = one.raddr.ip.removeprefix("::ffff:")
                    self._seen.add(Connection(mark, process.name(), host, one.raddr.port))
        elif time.time() - process.create_time() > STARTED_S:
            self._others.add(process)
