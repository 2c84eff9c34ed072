"""A small, cheap Kafka wire client: small produce requests in open and closed loop, and idle connections.

Requests are built once; only the correlation id changes.
"""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from benchmarks.rig.frames import CLIENT_ID, produce_frame, record_batch
from proxy.core.wire.messages import api_versions_request

SMALL_VALUE_BYTES = 100
CONNECT_LIMIT_S = 5.0
ANSWER_LIMIT_S = 10.0
RECEIVE_BYTES = 65_536
WARMUP_SHARE = 0.1
"""Of the open loop's requests, the first ones whose latency does not count."""
MAX_OUTSTANDING_S = 2.0
"""An open loop that is this far behind will not catch up: give up."""

Address = tuple[str, int]


class BenchmarkRequestError(RuntimeError):
    """The other side did not answer as it must for the figures to mean anything."""


# ---- connections ----------------------------------------


class Wire:
    """One connection with its produce requests in flight."""

    __slots__ = ("_buffer", "_error_at", "_frame", "_sent", "correlation_id", "latencies_s", "socket", "throttled")

    def __init__(self, address: Address, topic: str, client_id: str = CLIENT_ID) -> None:
        self.socket = connected(address)
        self._frame = bytearray(produce_frame(topic, record_batch(b"x" * SMALL_VALUE_BYTES), client_id))
        # Response: size 4, correlation id 4, tags 1, topics 1, name length 1, name, partitions 1, index 4, error code.
        self._error_at = 16 + len(topic.encode())
        self._buffer = b""
        self._sent: deque[tuple[int, float]] = deque()
        self.correlation_id = 0
        self.throttled = 0
        """Responses with a throttle time; there must be none."""
        self.latencies_s: list[float] = []
        """Of the open loop's requests, the first ones left out."""

    def send(self) -> None:
        """Send one request; it is on its way when this returns."""
        self.correlation_id += 1
        struct.pack_into(">i", self._frame, 8, self.correlation_id)
        self._sent.append((self.correlation_id, time.perf_counter()))
        self.socket.sendall(self._frame)

    def receive(self) -> list[float]:
        """Read what is there; latency in seconds of each request that is answered now, in their order.

        Raises:
            BenchmarkRequestError: connection closed, wrong correlation id, or an error code.
        """
        data = self._read()
        if not data:
            return []
        now = time.perf_counter()
        buffer = self._buffer + data if self._buffer else data
        latencies = []
        while len(buffer) >= 8:
            size, correlation_id = struct.unpack_from(">ii", buffer)
            if len(buffer) < size + 4:
                break
            expected, sent_at = self._sent.popleft()
            (error,) = struct.unpack_from(">h", buffer, self._error_at)
            if correlation_id != expected or error:
                raise BenchmarkRequestError(
                    f"answer {correlation_id} with error code {error}, expected {expected} without"
                )
            (throttle_ms,) = struct.unpack_from(">i", buffer, size - 1)  # before the last tagged fields, 1 byte
            self.throttled += throttle_ms > 0
            latencies.append(now - sent_at)
            buffer = buffer[size + 4 :]
        self._buffer = buffer
        return latencies

    def _read(self) -> bytes:
        """All that is there by now."""
        try:
            data = self.socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        if not data:
            raise BenchmarkRequestError("the connection was closed with requests unanswered")
        return data

    def fileno(self) -> int:
        """For select and epoll."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def connected(address: Address, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection that sends at once and does not wait for ever; by TLS where there is a context."""
    connection = socket.create_connection(address, timeout=CONNECT_LIMIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(ANSWER_LIMIT_S)
    return connection if tls is None else tls.wrap_socket(connection, server_hostname=address[0])


@contextmanager
def _wires(address: Address, topic: str, count: int) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        wires: list[Wire] = []
        for _ in range(count):
            wire = Wire(address, topic)
            stack.callback(wire.close)
            wires.append(wire)
        yield wires


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collection, and timers as sharp as the kernel has them (the default slack is 50 µs)."""
    slack = Path("/proc/self/timerslack_ns")
    before = None
    with suppress(OSError):
        before = slack.read_text(encoding="ascii")
        slack.write_text("1", encoding="ascii")
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if before is not None:
            with suppress(OSError):
                slack.write_text(before, encoding="ascii")


# ---- loops ----------------------------------------


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What one loop has seen."""

    requests: int
    seconds: float
    latencies_s: list[float]
    """Ascending, from the send call to the answer read."""
    lateness_s: list[float]
    """Ascending, open loop only: how long after its time a request was sent, because this client was not running."""
    throttled: int


def open_loop(
    address: Address,
    topic: str,
    *,
    rate_per_s: float,
    seconds: float,
    connections: int,
    most_behind_s: float = MAX_OUTSTANDING_S,
) -> LoopResult:
    """Send at a fixed rate, round robin over the connections, whether or not earlier requests are answered.

    Raises:
        BenchmarkRequestError: an answer is wrong or missing, or the other side cannot keep up.
    """
    with _wires(address, topic, connections) as wires:
        seconds, lateness = drive(wires, rate_per_s, seconds, most_behind_s)
        return _seen(wires, seconds, lateness)


def side_by_side(
    addresses: Sequence[Address],
    topic: str,
    *,
    rate_per_s: float,
    seconds: float,
    connections: int,
) -> list[LoopResult]:
    """The open loop over several ways at once, each request by another way than the one before: what one address has
    seen, in their order. The rate is that of all of them, the connections are for each.

    Whatever stops the machine or the broker for a moment stops all ways, so that they can be compared by their slowest
    requests too. No way follows the same other one always.

    Raises:
        BenchmarkRequestError: an answer is wrong or missing, or the other side cannot keep up.
    """
    with ExitStack() as stack:
        ways = [stack.enter_context(_wires(address, topic, connections)) for address in addresses]
        orders = (deque(way[number] for way in ways) for number in range(connections))
        wires: list[Wire] = []
        for number, order in enumerate(orders):
            order.rotate(number)
            wires += reversed(order) if number % 2 else order
        seconds, lateness = drive(wires, rate_per_s, seconds, MAX_OUTSTANDING_S)
        return [_seen(way, seconds, lateness) for way in ways]


def drive(wires: Sequence[Wire], rate_per_s: float, seconds: float, most_behind_s: float) -> tuple[float, list[float]]:
    """Send and read until everything is answered: how long that took, and how late each request was sent."""
    total = max(1, round(rate_per_s * seconds))
    skip = int(total * WARMUP_SHARE)
    lateness: list[float] = []
    count = len(wires)
    with undisturbed():
        sent = answered = 0
        begin = time.perf_counter() + 0.01
        give_up = begin + seconds + max(ANSWER_LIMIT_S, most_behind_s)
        while answered < total:
            now = time.perf_counter()
            if now > give_up or sent - answered > rate_per_s * most_behind_s:
                raise BenchmarkRequestError(f"{sent} requests sent in {now - begin:.1f} s, only {answered} answered")
            while sent < total and (due := begin + sent / rate_per_s) <= now:
                wires[sent % count].send()
                sent += 1
                lateness.append(now - due)
            wait = max(0.0, due - time.perf_counter()) if sent < total else give_up - now
            # select, because epoll's timeout has whole milliseconds only; the few sockets here have low numbers.
            for wire in select.select(wires, (), (), wait)[0]:
                answers = wire.receive()
                answered += len(answers)
                if answered > skip:
                    wire.latencies_s += answers
        return time.perf_counter() - begin, lateness


def _seen(wires: Sequence[Wire], seconds: float, lateness: list[float]) -> LoopResult:
    return LoopResult(
        sum(wire.correlation_id for wire in wires),
        seconds,
        sorted(chain.from_iterable(wire.latencies_s for wire in wires)),
        sorted(lateness),
        sum(wire.throttled for wire in wires),
    )


def closed_loop(address: Address, topic: str, *, seconds: float, connections: int) -> LoopResult:
    """As fast as it goes: every connection has exactly one request in flight."""
    latencies: list[float] = []
    with _wires(address, topic, connections) as wires, select.epoll() as poller, undisturbed():
        by_number = {wire.fileno(): wire for wire in wires}
        for number in by_number:
            poller.register(number, select.EPOLLIN)
        begin = time.perf_counter()
        end = begin + seconds
        for wire in wires:
            wire.send()
        waiting = len(wires)
        while waiting:
            ready = poller.poll(ANSWER_LIMIT_S)
            if not ready:
                raise BenchmarkRequestError(f"no answer for {ANSWER_LIMIT_S:g} s")
            go_on = time.perf_counter() < end
            for number, _ in ready:
                answers = by_number[number].receive()
                latencies += answers
                if answers and go_on:
                    by_number[number].send()
                else:
                    waiting -= len(answers)
        took = time.perf_counter() - begin
        throttled = sum(wire.throttled for wire in wires)
    return LoopResult(len(latencies), took, sorted(latencies), [], throttled)


def handshake(address: Address, tls: ssl.SSLContext | None) -> str:
    """What is spoken at this address: version and cipher suite of TLS, or "plain"."""
    with connected(address, tls) as connection:
        if not isinstance(connection, ssl.SSLSocket):
            return "plain"
        suite = connection.cipher()
        return f"{connection.version()} {suite[0] if suite else 'without a cipher'}"


@dataclass(frozen=True, slots=True)
class Connects:
    """What making connections has shown."""

    connections: int
    seconds: float


def connects(address: Address, *, seconds: float, tls: ssl.SSLContext | None) -> Connects:
    """One connection after another, each of which asks ApiVersions, is answered and ends.

    Raises:
        BenchmarkRequestError: a wrong answer, or a handshake that resumed a session.
    """
    count, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        count += 1
        with connected(address, tls) as connection:
            greet(connection, count)
            if not isinstance(connection, ssl.SSLSocket):
                continue
            if connection.session_reused:
                raise BenchmarkRequestError("the handshake was resumed")
            connection.settimeout(0.0)
            with suppress(ssl.SSLWantReadError):
                connection.unwrap()  # the proxy's own goodbye is not waited for
    return Connects(count, time.perf_counter() - begin)


@contextmanager
def idle_connections(address: Address, count: int) -> Iterator[None]:
    """Connections that each have asked ApiVersions and been answered, and then say nothing more."""
    with ExitStack() as stack:
        for number in range(count):
            greet(stack.enter_context(connected(address)), number)
        yield


def greet(connection: socket.socket, number: int) -> None:
    """Ask ApiVersions, as every client does, and read the answer.

    Raises:
        BenchmarkRequestError: a wrong answer, or none.
    """
    connection.sendall(api_versions_request(0, number, CLIENT_ID))
    size, correlation_id = struct.unpack(">ii", exactly(connection, 8))
    exactly(connection, size - 4)
    if correlation_id != number:
        raise BenchmarkRequestError(f"ApiVersions {number} was answered as {correlation_id}")


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
        BenchmarkRequestError: the connection ended before.
    """
    parts = bytearray()
    while len(parts) < count:
        chunk = connection.recv(count - len(parts))
        if not chunk:
            raise BenchmarkRequestError("the connection was closed in the middle of an answer")
        parts += chunk
    return bytes(parts)
