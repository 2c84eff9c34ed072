"""Two requests for one wake-up (ADR 0025): paired when several are under way, no long waits, all answered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from proxy.io.pairing import FIRST_TRY, PAIR_BYTES
from tests.support.scripted_broker import proxy_before
from tests.support.session_tools import produce, produce_response

LIMIT_S = 20.0
SIZE_BYTES = 1_000
ROUND_BYTES = len(produce_response(0))


@dataclass
class Client:
    """A producer's connection, and what its sidecar does with it."""

    connection: socket.socket
    pairing_of: Callable[[], Any]
    sent: int = 0
    answered: int = 0
    rest: bytes = b""

    def send(self, size_bytes: int = SIZE_BYTES) -> None:
        self.connection.sendall(produce(self.sent, size_bytes))
        self.sent += 1

    def take(self, wanted: int | None = None) -> None:
        """Read answers, in order, until so many have come in all: to everything, if nothing is said."""
        while self.answered < (self.sent if wanted is None else wanted):
            self.rest += self.connection.recv(65_536)
            while len(self.rest) >= ROUND_BYTES:
                assert self.rest[:ROUND_BYTES] == produce_response(self.answered)
                self.rest = self.rest[ROUND_BYTES:]
                self.answered += 1

    @property
    def waits_for_bytes(self) -> int:
        """More than how many bytes the kernel is to tell of; 0: of any."""
        return int(self.pairing_of().waits_for_bytes)

    def until_paired(self, size_bytes: int = SIZE_BYTES) -> None:
        """Requests 50 µs apart, three under way, until the sidecar waits for two of this size."""
        deadline = time.monotonic() + LIMIT_S
        while self.waits_for_bytes < size_bytes:
            assert time.monotonic() < deadline, f"never, in {self.sent} requests"
            self.send(size_bytes=size_bytes)
            again = time.perf_counter() + 50e-6
            while time.perf_counter() < again:
                pass
            self.take(self.sent - 3)

    def until_parted(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.waits_for_bytes:
            assert time.monotonic() < deadline
            time.sleep(0.001)  # asks again soon; how soon is not what is tested


def answer(listener: socket.socket) -> None:
    """A broker that answers each Produce request as it comes."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer_one, args=[peer], daemon=True).start()


def answer_one(peer: socket.socket) -> None:
    with peer, peer.makefile("rb") as stream:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while len(head := stream.read(4)) == 4:
            body = stream.read(int.from_bytes(head, "big"))
            if body[:2] != b"\0\0":
                return  # the sidecar's own question: it does without the answer
            peer.sendall(produce_response(int.from_bytes(body[4:8], "big")))


async def through_sidecar(script: Callable[[Client], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=[listener], daemon=True).start()
        proxy = proxy_before(listener.getsockname()[:2])

        def pairing_of() -> Any:
            (connection,) = proxy._connections.open
            return connection._io._pairing

        def run() -> None:
            with socket.create_connection(("127.0.0.1", proxy.port), LIMIT_S) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = Client(connection, pairing_of)
                client.send()
                client.take()
                script(client)

        with trio.fail_after(2 * LIMIT_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(proxy.serve)
                await trio.to_thread.run_sync(run)
                proxy.drain()


async def test_who_has_several_requests_under_way_pairs_and_the_last_one_is_answered() -> None:
    def script(client: Client) -> None:
        client.until_paired()
        assert client.sent > FIRST_TRY
        # Of more than the latest request: a second one, of whatever size, makes it more.
        assert client.waits_for_bytes in (len(produce(0, SIZE_BYTES)), 0)
        client.take()  # whether one or two were left
        client.until_parted()
        client.send()
        client.take()

    await through_sidecar(script)


async def test_a_single_request_and_half_a_one_are_not_kept() -> None:
    def script(client: Client) -> None:
        for cut in (5, 300):
            client.until_paired()
            client.take()
            frame = produce(client.sent, SIZE_BYTES)
            client.sent += 1
            client.connection.sendall(frame[:cut])
            client.until_parted()
            client.connection.sendall(frame[cut:])
            client.take()

    await through_sidecar(script)


async def test_requests_that_grow_are_still_paired() -> None:
    def script(client: Client) -> None:
        for size_bytes in (100, 1_000, 10_000):
            client.until_paired(size_bytes)
        client.take()

    await through_sidecar(script)


async def test_who_waits_for_each_answer_is_tried_less_and_less_often() -> None:
    """Tries after 16 requests close to each other, then 2 * 16 + 2 = 34, then 70, 142, ...: four at most in 300."""

    def script(client: Client) -> None:
        for _ in range(300):
            client.send()
            client.take()
        assert client.pairing_of().apart in (16, 34, 70, 142, 286)
        assert client.pairing_of().apart <= 286

    await through_sidecar(script)


async def test_requests_of_more_than_32_kb_do_not_wait() -> None:
    def script(client: Client) -> None:
        for _ in range(300):
            client.send(size_bytes=PAIR_BYTES + 1_000)
            client.take(client.sent - 3)
            assert client.waits_for_bytes == 0
        client.take()
        assert client.pairing_of().apart == FIRST_TRY  # not even tried

    await through_sidecar(script)


async def test_what_a_client_sends_before_it_closes_arrives() -> None:
    def script(client: Client) -> None:
        client.until_paired()
        client.send()
        client.connection.shutdown(socket.SHUT_WR)
        client.take()
        assert client.connection.recv(1) == b""

    await through_sidecar(script)
