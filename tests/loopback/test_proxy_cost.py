"""What the data path costs, counted and not timed: bytes that enter Python, memory that stays."""

from __future__ import annotations

import os
import struct
import sys
from collections import Counter
from typing import Any

import pytest
import trio

from proxy.core.session.session import Session
from tests.support.scripted_broker import answer, connect, read_frame, through, until
from tests.support.session_tools import produce, produce_response, request

BUFFER_BYTES = 65_536
SPLICE_MIN_BYTES = 32_768
REQUESTS = 500


async def exchange(client: trio.SocketStream, number: int) -> None:
    await client.send_all(produce(number, 200))
    assert await read_frame(client) == produce_response(number)


async def test_the_same_memory_after_many_requests() -> None:
    async with through(answer) as (proxy, broker, _):
        client = await connect(proxy)
        for number in range(REQUESTS):
            await exchange(client, number)
        broker.received.clear()
        before = sys.getallocatedblocks()
        for number in range(REQUESTS * 4):
            await exchange(client, number)
        broker.received.clear()
        assert sys.getallocatedblocks() - before < REQUESTS


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_large_bodies_do_not_enter_python(
    direction: str, monkeypatch: pytest.MonkeyPatch, data_path: str
) -> None:
    """8 MB: what is read along with the head, and after that the kernel moves them."""
    if data_path == "compiled":
        pytest.skip(
            "methods of compiled classes cannot be replaced: tests/broker/test_proxy_syscalls.py counts splices"
        )
    body = os.urandom(1 << 20) * 8
    entered: Counter[str] = Counter()

    def watched(door: str, name: str) -> None:
        take = getattr(Session, door)

        def counting(self: Any, view: memoryview, count: int, *more: Any) -> Any:
            entered[name] += count
            return take(self, view, count, *more)

        monkeypatch.setattr(Session, door, counting)

    watched("on_client_bytes", "up")
    watched("on_broker_bytes", "down")
    size = {"up": len(body), "down": 100}

    async def reply(stream: Any, frame: bytes) -> None:
        """Little for much, much for little."""
        back = body if direction == "down" else b"ok"
        await stream.send_all(struct.pack(">i", 4 + len(back)) + frame[8:12] + back)

    async with through(reply) as (proxy, broker, nursery):
        client = await connect(proxy)
        got: list[bytes | None] = []

        async def read() -> None:
            got.append(await read_frame(client))

        rounds = 3
        for number in range(rounds):
            frame = request(999, 0, number, body[: size["up"]] if direction == "up" else b"x" * 100)
            nursery.start_soon(read)
            await client.send_all(frame)
            await until(lambda number=number: len(got) > number)  # type: ignore[misc]
            assert broker.received[-1] == frame
            assert got[-1] is not None
            assert got[-1][8:] == (body if direction == "down" else b"ok")
        # One read with the head, and a tail that is shorter than what is worth a pipe.
        assert entered[direction] <= rounds * (BUFFER_BYTES + SPLICE_MIN_BYTES)
