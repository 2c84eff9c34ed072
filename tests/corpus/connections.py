"""Where processes connect to, as Linux tells it: the proof that nothing goes around the sidecar.

A process is known by a mark in its environment, which its children inherit (the JVMs of Kafka's tools, too). Its
sockets are those that /proc/PID/fd names, by their inode, and the kernel's diagnosis of sockets (sock_diag(7)) tells
where they are connected to. /proc/net/tcp tells the same in ten times of the CPU time, most of it for connections that
have ended.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

SAMPLE_S = 0.05
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_SOCK_DIAG, _BY_FAMILY = 4, 20
"""NETLINK_SOCK_DIAG and SOCK_DIAG_BY_FAMILY (linux/netlink.h, linux/sock_diag.h)."""
_DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP."""
_ERROR, _DONE = 2, 3
"""NLMSG_ERROR and NLMSG_DONE."""
_TIME_WAIT, _CLOSE, _LISTEN = 6, 7, 10
_CONNECTED = 0xFFF & ~(1 << _TIME_WAIT | 1 << _CLOSE | 1 << _LISTEN)
"""All states of TCP but those in which no bytes are exchanged (any more), as bits."""
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, port."""
_REQUEST = struct.Struct("=BBBxI48x")
"""struct inet_diag_req_v2: family, protocol, extensions, states, and the socket that is meant: none."""
_SOCKET_INFO = struct.Struct("=B5x2s16x16s28xI")
"""struct inet_diag_msg: family, the remote port, the remote address, and at its end the inode."""
_ERRNO = struct.Struct("=i")
"""The beginning of struct nlmsgerr: the error, negative."""
_ANSWER_BYTES = 1 << 18
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Connection(NamedTuple):
    """A connection that some process of a marked family had."""

    mark: str
    program: str
    host: str
    port: int


def _remote(family: int, address: bytes, port: bytes) -> tuple[str, int]:
    """`\x7f\0\0\x01…`, `\x1f\x90` (network byte order) -> ("127.0.0.1", 8080)."""
    # Java's sockets are IPv6 with mapped addresses: the last word is the IPv4 address.
    word = address[:4] if family == socket.AF_INET else address[12:]
    return ".".join(map(str, word)), int.from_bytes(port, "big")


def open_sockets() -> dict[str, tuple[str, int]]:
    """Inode -> remote address of every TCP connection of this machine that is open or being opened."""
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        for family in _FAMILIES:
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _CONNECTED)
            kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
            for message in _answers(kernel):
                number, port, address, inode = _SOCKET_INFO.unpack_from(message)
                found[str(inode)] = _remote(number, address, port)
    return found


def _answers(kernel: socket.socket) -> Iterator[bytes]:
    """The messages of one answer, without their headers."""
    while True:
        data, at = kernel.recv(_ANSWER_BYTES), 0
        while at < len(data):
            size, kind, *_ = _HEADER.unpack_from(data, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                (error,) = _ERRNO.unpack_from(data, at + _HEADER.size)
                raise OSError(-error, "sock_diag")
            yield data[at + _HEADER.size : at + size]
            at += size + 3 & ~3  # messages begin at multiples of four


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
