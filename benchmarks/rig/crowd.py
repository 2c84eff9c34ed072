"""Very many connections in one small process: each always has one request under way, as fast as it is answered.

Started by `clients` with a plan on stdin; says how many connections it has, works, and says who got how many bytes at
which moment. Times are CLOCK_MONOTONIC's, which both processes share.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.rig.frames import fetch_frame, produce_frame, record_batch
from benchmarks.rig.rawclient import Address, greet

FETCHED_BATCHES = 16
MAX_FETCHED_BYTES = 4_000_000
EMPTY_BYTES = 200
"""Fetch answers up to this size hold no records: the response to a throttled consumer. Quotas do not count them."""
TICK_S = 0.1
"""The cumulative bytes of each group are noted so often."""
CONNECT_LIMIT_S = 60.0
_READ_BYTES = 1 << 20
_HEAD_BYTES = 16


@dataclass
class Cell:
    """One group: a limit and the connections that share it."""

    client_id: str
    kind: Literal["produce", "fetch"]
    limit: float
    """bytes/s"""
    connections: int
    topic: str
    batch_bytes: int


@dataclass
class Seen:
    """What one group got."""

    cell: Cell
    at_s: list[float] = field(default_factory=list)
    total_bytes: list[int] = field(default_factory=list)
    """At each moment of `at_s`, since the start."""
    throttled: list[int] = field(default_factory=list)
    """Answers with a throttle time until then."""
    per_connection: dict[str, list[int]] = field(default_factory=dict)
    """By the moment that was asked for."""
    dropped: int = 0
    """Connections that were closed."""


def quotas(cells: Sequence[Cell], factor: float = 1.0) -> list[dict[str, Any]]:
    """An entry for each cell, with its limit times a factor."""
    names = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate"}
    return [{"client-id": cell.client_id, names[cell.kind]: int(cell.limit * factor)} for cell in cells]


def request_of(cell: Cell) -> bytes:
    """What each connection of a cell sends again and again."""
    if cell.kind == "produce":
        return produce_frame(cell.topic, record_batch(b"x" * cell.batch_bytes), cell.client_id)
    most = min(FETCHED_BATCHES * cell.batch_bytes, MAX_FETCHED_BYTES)
    return fetch_frame(4, cell.topic, uuid.UUID(int=0), most, cell.client_id)


class Member:
    """One connection."""

    __slots__ = (
        "_fetch",
        "_frame",
        "_head",
        "_left",
        "_out",
        "_read",
        "_size",
        "_tail",
        "bytes",
        "socket",
        "throttled",
    )

    def __init__(self, address: Address, cell: Cell, frame: bytes) -> None:
        self.socket = socket.create_connection(address, timeout=CONNECT_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fetch = cell.kind == "fetch"
        self._frame = memoryview(frame)
        self._out = self._frame
        self._head = b""
        """The beginning of the answer, until it is known how long it is."""
        self._left = 0
        self._size = 0
        self._tail = b""
        self._read = bytearray(_READ_BYTES)
        self.bytes = 0
        """Requests answered (produce), answers with records (fetch)."""
        self.throttled = 0
        self._greet()

    def _greet(self) -> None:
        greet(self.socket, 1)
        self.socket.setblocking(False)

    def write(self) -> bool:
        """Send what can be sent of the request; True when all of it is on its way."""
        try:
            sent = self.socket.send(self._out)
        except BlockingIOError:
            return False
        self._out = self._out[sent:]
        return not self._out

    def read(self) -> bool:
        """Read what is there; True when the answer is complete and the next request may follow."""
        try:
            return self._read_head() if not self._left else self._read_body()
        except BlockingIOError:
            return False

    def _read_head(self) -> bool:
        data = self.socket.recv(_HEAD_BYTES - len(self._head))
        if not data:
            raise ConnectionResetError("closed")
        self._head += data
        if len(self._head) < _HEAD_BYTES:
            return False
        self._size = 4 + int.from_bytes(self._head[:4], "big")
        self._left = self._size - _HEAD_BYTES
        if self._fetch:
            self.throttled += self._head[8:12] > b"\0\0\0\0"
        return self._read_body() if self._left else self._answered()

    def _read_body(self) -> bool:
        if self._fetch:  # records are counted, not looked at: the kernel throws them away
            count = self.socket.recv_into(self._read, min(self._left, _READ_BYTES), socket.MSG_TRUNC)
        else:
            data = self.socket.recv(self._left)
            self._tail, count = (self._tail + data)[-5:], len(data)
        if not count:
            raise ConnectionResetError("closed")
        self._left -= count
        if self._size > EMPTY_BYTES and self._fetch:
            self.bytes += count + (_HEAD_BYTES if self._left + count == self._size - _HEAD_BYTES else 0)
        return not self._left and self._answered()

    def _answered(self) -> bool:
        if not self._fetch:
            self.bytes += len(self._frame)
            self.throttled += self._tail[:4] > b"\0\0\0\0"  # the last byte is the number of tagged fields
        self._head = self._tail = b""
        self._out = self._frame
        return True


class Crowd:
    """All of them."""

    def __init__(self, address: Address, cells: list[Cell]) -> None:
        self.groups: list[tuple[Seen, list[Member]]] = []
        self._poll = select.epoll()
        self._by_fd: dict[int, tuple[Member, Seen]] = {}
        for cell in cells:
            frame = request_of(cell)
            members = [Member(address, cell, frame) for _ in range(cell.connections)]
            self.groups.append((seen := Seen(cell), members))
            self._by_fd |= {member.socket.fileno(): (member, seen) for member in members}

    def run(self, seconds: float, marks: list[float]) -> list[Seen]:
        """Work; what was seen. `marks`: seconds after the start at which each connection's bytes are noted."""
        start = time.monotonic()
        for fd, (member, _) in self._by_fd.items():
            self._poll.register(fd, select.EPOLLIN if member.write() else select.EPOLLIN | select.EPOLLOUT)
        next_tick, open_marks = start, sorted(marks)
        while (now := time.monotonic()) < start + seconds:
            if now >= next_tick:
                self._note(now)
                next_tick += TICK_S * (1 + int((now - next_tick) / TICK_S))
            while open_marks and now >= start + open_marks[0]:
                mark = open_marks.pop(0)
                for seen, members in self.groups:
                    seen.per_connection[str(mark)] = [member.bytes for member in members]
            for fd, events in self._poll.poll(max(next_tick - now, 0)):
                self._serve(fd, events)
        self._note(time.monotonic())
        return [seen for seen, _ in self.groups]

    def _serve(self, fd: int, events: int) -> None:
        member, seen = self._by_fd[fd]
        try:
            if events & select.EPOLLOUT and member.write():
                self._poll.modify(fd, select.EPOLLIN)
            if events & ~select.EPOLLOUT and member.read() and not member.write():
                self._poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        except OSError:
            seen.dropped += 1
            self._poll.unregister(fd)
            member.socket.close()

    def _note(self, now: float) -> None:
        for seen, members in self.groups:
            seen.at_s.append(now)
            seen.total_bytes.append(sum(member.bytes for member in members))
            seen.throttled.append(sum(member.throttled for member in members))


def fill(address: Address, topic: str, batch_bytes: int, batches: int) -> None:
    """Produce batches to a topic, one after the other."""
    cell = Cell("fill", "produce", 0, 1, topic, batch_bytes)
    member = Member(address, cell, request_of(cell))
    member.socket.settimeout(CONNECT_LIMIT_S)
    for _ in range(batches):
        member.write()
        while not member.read():
            pass
    member.socket.close()


@contextmanager
def clients(
    port: int, cells: Sequence[Cell], seconds: float, marks: Sequence[float]
) -> Iterator[Callable[[], list[Seen]]]:
    """A process with the connections of these cells, at work for so long; a function that waits for what they saw."""
    work = {"port": port, "cells": [vars(cell) for cell in cells], "seconds": seconds, "marks": marks}
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdout

        def finish() -> list[Seen]:
            return [Seen(**{**seen, "cell": Cell(**seen["cell"])}) for seen in json.loads(lines.readline())]

        try:
            process.stdin.write(json.dumps(work) + "\n")
            process.stdin.flush()
            if lines.readline() != f"{sum(cell.connections for cell in cells)}\n":
                raise RuntimeError("the clients did not get their connections")
            yield finish
        finally:
            process.kill()


def main() -> int:
    """The command: plan on stdin, the number of connections and then the result on stdout."""
    plan: dict[str, Any] = json.loads(sys.stdin.readline())
    crowd = Crowd(("127.0.0.1", plan["port"]), [Cell(**cell) for cell in plan["cells"]])
    print(sum(len(members) for _, members in crowd.groups), flush=True)
    found = crowd.run(plan["seconds"], plan["marks"])
    print(json.dumps([{**vars(seen), "cell": vars(seen.cell)} for seen in found]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
