"""A client that fetches and throws away: what a way to a broker carries when neither of its ends has much to do.

Each connection has one fetch under way, as a consumer has. Of a response the first 13 bytes are read and judged; the
rest the kernel drops without copying it (recv with MSG_TRUNC on TCP, see tcp(7)). The very first response on each
connection is read whole and compared.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.rig.answerer import THROTTLE_AT, fetch_request
from benchmarks.rig.rawclient import ANSWER_LIMIT_S, Address, BenchmarkRequestError, connected, exactly, undisturbed

_HEAD_BYTES = THROTTLE_AT + 4
_NOWHERE = bytearray(4 * 1024 * 1024)
"""Never written to: it only tells the kernel how much may be dropped at once."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What came in one run."""

    responses: int
    moved_bytes: int
    """Whole response frames."""
    seconds: float


class Fetcher:
    """One connection with at most one request under way."""

    __slots__ = ("_asked", "_head", "_left", "_request", "_socket")

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._request = fetch_request()
        self._asked = 0
        self._head = b""
        self._left = 0
        """Bytes still to come of the response whose head has come."""

    def ask(self) -> None:
        """Send a request; it is small and the only one, so that the kernel takes it whole."""
        self._asked += 1
        struct.pack_into(">i", self._request, 8, self._asked)
        self._socket.send(self._request)

    def check(self, expected: bytes) -> None:
        """Fetch once and compare all of the response, its correlation id aside; from then on, never wait.

        Raises:
            BenchmarkRequestError: it is another one.
        """
        self.ask()
        frame = exactly(self._socket, len(expected))
        if frame[:4] + frame[8:] != expected[:4] + expected[8:] or frame[4:8] != struct.pack(">i", self._asked):
            raise BenchmarkRequestError("the response that came is not the one that was sent")
        self._socket.setblocking(False)

    def receive(self) -> int:
        """Read what is there; bytes of the response that ended with it, 0 if none did.

        Raises:
            BenchmarkRequestError: the connection was closed, or the response is another's or has a throttle time.
        """
        try:
            if not self._left:
                data = self._socket.recv(_HEAD_BYTES - len(self._head))
                if not data:
                    raise BenchmarkRequestError("the connection was closed before a response")
                self._head += data
                if len(self._head) < _HEAD_BYTES:
                    return 0
                self._left = self._judge()
            got = self._socket.recv_into(_NOWHERE, min(self._left, len(_NOWHERE)), socket.MSG_TRUNC)
        except BlockingIOError:
            return 0
        if not got:
            raise BenchmarkRequestError("the connection was closed in the middle of a response")
        self._left -= got
        if self._left:
            return 0
        (size,) = struct.unpack_from(">i", self._head)
        self._head = b""
        return int(size) + 4

    def _judge(self) -> int:
        """Bytes behind the head."""
        size, correlation_id, _, throttle_ms = struct.unpack(">iibi", self._head)
        behind = int(size) + 4 - _HEAD_BYTES
        if correlation_id != self._asked or throttle_ms or behind <= 0:
            raise BenchmarkRequestError(
                f"response {correlation_id} of {size} bytes, throttled for {throttle_ms} ms, "
                f"expected {self._asked} without"
            )
        return behind

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()


def run(fetchers: list[Fetcher], seconds: float) -> Drained:
    """Fetch for so long; ends with the last response.

    Raises:
        BenchmarkRequestError: see `Fetcher.receive`, or nothing comes.
    """
    responses = moved = 0
    by_number = {fetcher.fileno(): fetcher for fetcher in fetchers}
    with select.epoll() as poller, undisturbed():
        for number in by_number:
            poller.register(number, select.EPOLLIN)
        begin = time.perf_counter()
        end = begin + seconds
        for fetcher in fetchers:
            fetcher.ask()
        waiting = len(fetchers)
        while waiting:
            ready = poller.poll(ANSWER_LIMIT_S)
            if not ready:
                raise BenchmarkRequestError(f"no response for {ANSWER_LIMIT_S:g} s")
            for number, _ in ready:
                fetcher = by_number[number]
                ended = fetcher.receive()
                if not ended:
                    continue
                responses += 1
                moved += ended
                if time.perf_counter() < end:
                    fetcher.ask()
                else:
                    waiting -= 1
        took = time.perf_counter() - begin
    return Drained(responses, moved, took)


@contextmanager
def fetching(address: Address, count: int, expected: bytes) -> Iterator[list[Fetcher]]:
    """So many connections, each of which has been given the right response once.

    Raises:
        BenchmarkRequestError: see `Fetcher.check`.
    """
    with ExitStack() as stack:
        fetchers = [Fetcher(stack.enter_context(connected(address))) for _ in range(count)]
        for fetcher in fetchers:
            fetcher.check(expected)
        yield fetchers
