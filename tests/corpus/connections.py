"""Where processes connect to, as Linux tells it in /proc: the proof that nothing goes around the sidecar.

A process is known by a mark in its environment, which its children inherit (the JVMs of Kafka's tools, too). Sockets
are found in /proc/net/tcp and tcp6 by their inode, which /proc/PID/fd names.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

SAMPLE_S = 0.05
NO_CONNECTION_STATES = {"06", "07", "0A"}  # TIME_WAIT, CLOSE and LISTEN: no bytes are exchanged there (any more)
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Connection(NamedTuple):
    """A connection that some process of a marked family had."""

    mark: str
    program: str
    host: str
    port: int


def _remote(hexadecimal: str) -> tuple[str, int]:
    """`0100007F:1F90` (little-endian words, as the kernel writes them) -> ("127.0.0.1", 8080)."""
    address, port = hexadecimal.split(":")
    raw = bytes.fromhex(address)
    words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
    # Java's sockets are IPv6 with mapped addresses: the last word is the IPv4 address.
    return ".".join(map(str, words[-1])), int(port, 16)


def open_sockets() -> dict[str, tuple[str, int]]:
    """Inode -> remote address of every TCP connection of this machine that is open or being opened."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] not in NO_CONNECTION_STATES:
                found[cells[9]] = _remote(cells[2])
    return found


def marked_processes(variable: str) -> dict[int, str]:
    """Process id -> value of this environment variable, of all processes that were started with it."""
    found = {}
    needle = f"{variable}=".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                environment = Path(entry.path, "environ").read_bytes()
            except OSError:  # ended meanwhile, or another user's
                continue
            for setting in environment.split(b"\0"):
                if setting.startswith(needle):
                    found[int(entry.name)] = setting.removeprefix(needle).decode()
    return found


def sockets_of(pid: int) -> Iterator[str]:
    """Inodes of the sockets that a process has open."""
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(entry.path)
            except OSError:
                continue
            if match := _SOCKET.fullmatch(target):
                yield match[1]
    except OSError:
        return


class ConnectionWatch:
    """Looks every 50 ms; clients keep their connections for as long as they live, which is longer."""

    def __init__(self, variable: str) -> None:
        """`variable`: the environment variable whose values mark families of processes."""
        self._variable = variable
        self._seen: set[Connection] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.samples = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def seen(self, mark: str) -> set[Connection]:
        """All connections that processes with this mark had."""
        return {each for each in self._seen if each.mark == mark}

    def _run(self) -> None:
        try:
            while not self._stop.wait(SAMPLE_S):
                self.look()
        except BaseException as error:
            self._error = error

    def look(self) -> None:
        """Take one sample."""
        remote: Mapping[str, tuple[str, int]] = open_sockets()
        for pid, mark in marked_processes(self._variable).items():
            addresses = {remote[inode] for inode in sockets_of(pid) if inode in remote}
            if addresses:
                program = _program(pid)
                self._seen |= {Connection(mark, program, host, port) for host, port in addresses}
        self.samples += 1


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
