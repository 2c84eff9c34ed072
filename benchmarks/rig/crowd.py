"""Very many connections in one small process: each with one request in flight, as fast as it is answered.

Run by `benchmarks.suites.load`: `python -m benchmarks.rig.crowd HOST PORT TOPIC WRITERS READERS`. It connects, asks
ApiVersions on each connection, says `{"connected": n}`, and then obeys lines on its standard input: `run WARMUP_S
SECONDS` measures and answers with a line of JSON, `quit` or the end of input closes everything.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
import sys
import time

from benchmarks.rig.rawclient import RECEIVE_BYTES, Address, api_versions_frame, produce_frame

WRITERS, READERS = b"crowd-write", b"crowd-read"
"""Client ids."""
WRITE_BYTES = 1000
READ_BYTES = 10_000
FETCH, FETCH_VERSION = 1, 4
SPARE_DESCRIPTORS = 100
ANSWER_LIMIT_S = 60.0
"""To be greeted: hundreds come at once."""


def fetch_frame(topic: str) -> bytearray:
    """A Fetch request of version 4 for partition 0 from its beginning; its correlation id stands at bytes 8 to 11."""
    name = topic.encode()
    header = struct.pack(">hhih", FETCH, FETCH_VERSION, 0, len(READERS)) + READERS
    # replica id, max wait in ms, min bytes, max bytes, isolation level
    body = struct.pack(">iiiib", -1, 0, 0, READ_BYTES, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, 0, 0, READ_BYTES)
    return bytearray(struct.pack(">i", len(header) + len(body)) + header + body)


class Member:
    """One connection. Answers are counted, not read."""

    __slots__ = ("answered_bytes", "done", "frame", "got", "socket", "wanted")

    def __init__(self, address: Address, frame: bytearray) -> None:
        self.socket = socket.create_connection(address, timeout=ANSWER_LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame = frame
        self.done = 0
        """Requests answered."""
        self.answered_bytes = 0
        self.got = b""
        self.wanted = 0
        """Bytes of the answer still to come, once its size is known."""

    def greet(self) -> None:
        """ApiVersions, as every client does."""
        self.socket.sendall(api_versions_frame(1))
        size = struct.unpack(">i", self._exactly(4))[0]
        self._exactly(size)
        self.socket.setblocking(False)

    def ask(self) -> None:
        """Send the request; it is small and the only one, so that the kernel takes it whole."""
        self.socket.send(self.frame)

    def receive(self) -> bool:
        """Read what is there; True when an answer is complete. Raises ConnectionError when the connection ended."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError("closed")
        if not self.wanted:
            data = self.got + data
            if len(data) < 4:
                self.got = data
                return False
            self.got = b""
            self.wanted = 4 + int.from_bytes(data[:4], "big")
            self.answered_bytes += self.wanted
        self.wanted -= len(data)
        if self.wanted:
            return False
        self.done += 1
        return True

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("closed")
            parts += part
        return parts


class Crowd:
    """All of them."""

    def __init__(self, address: Address, topic: str, writers: int, readers: int) -> None:
        _allow_descriptors(writers + readers + SPARE_DESCRIPTORS)
        write, read = produce_frame(topic, WRITE_BYTES, WRITERS), fetch_frame(topic)
        self.writers: list[Member] = []
        self.readers: list[Member] = []
        self.dropped = 0
        self._by_number: dict[int, Member] = {}
        self._poller = select.epoll()
        for number in range(writers + readers):
            member = Member(address, write if number < writers else read)
            (self.writers if number < writers else self.readers).append(member)
            member.greet()
            self._by_number[member.socket.fileno()] = member
            self._poller.register(member.socket.fileno(), select.EPOLLIN)
            member.ask()  # at once: one that asks for nothing is taken for a scanner after half a minute
            self._go_on(0.0)

    def run(self, warmup_s: float, seconds: float) -> dict[str, object]:
        """Traffic; what each connection got done in the time after the warm-up."""
        self._go_on(warmup_s)
        writes, reads = [one.done for one in self.writers], [one.answered_bytes for one in self.readers]
        began = time.perf_counter()
        self._go_on(seconds)
        return {
            "seconds": time.perf_counter() - began,
            "connected": len(self._by_number),
            "dropped": self.dropped,
            "writes": [one.done - before for one, before in zip(self.writers, writes, strict=True)],
            "read_bytes": [one.answered_bytes - before for one, before in zip(self.readers, reads, strict=True)],
        }

    def _go_on(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while True:
            left = max(end - time.perf_counter(), 0.0)
            for number, _ in self._poller.poll(left):
                member = self._by_number[number]
                try:
                    if member.receive():
                        member.ask()
                except OSError:
                    self.dropped += 1
                    self._poller.unregister(number)
                    del self._by_number[number]
                    member.socket.close()
            if not left:
                return


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            sys.exit(f"{count} open files are needed, the limit (ulimit -Hn) is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def main() -> int:
    """The program."""
    host, port, topic, writers, readers = sys.argv[1:]
    crowd = Crowd((host, int(port)), topic, int(writers), int(readers))
    print(json.dumps({"connected": int(writers) + int(readers)}), flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "quit":
            break
        warmup_s, seconds = map(float, numbers)
        print(json.dumps(crowd.run(warmup_s, seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
