"""What the data path costs, counted and not timed, so that a busy machine changes nothing: bytes that enter Python,
system calls and function calls per request, memory that stays."""

from __future__ import annotations

import os
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from proxy.core.session.session import Session
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.scripted_broker import answer, connect, read_frame, through, until
from tests.support.session_tools import FETCH, fetch_body, produce, produce_response, request, response

PROJECT = Path(__file__).parents[2]
OURS = tuple(f"{PROJECT / package}{os.sep}" for package in ("proxy", "quota"))
SYSTEM_CALLS = ("recv_into", "send", "sendmsg", "splice", "poll", "register", "modify", "unregister")
BUFFER_BYTES = 65_536
SPLICE_MIN_BYTES = 32_768
REQUESTS = 500
MAX_CALLS = {"pure": 180, "compiled": 16}
"""Of Python functions for a request and its response; 157 without and 162 with a quota when this was written: most are
small ones that are single instructions where they are compiled. Compiled 13, of which 9 make the frames of this test
and 4 are trio's, which waits for both ends here as well."""
MAX_CALLS_OF_A_FETCH = {"pure": 270, "compiled": 16}
"""The same for a fetch and its large response; 212 without a quota and 244 with one, 11 to 13 compiled."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls that `proxy` and `quota` make: "python" for their own functions, and each of `SYSTEM_CALLS`."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if frame.f_code.co_filename.startswith(OURS):
                calls["python"] += 1
        elif event == "c_call" and argument.__name__ in SYSTEM_CALLS and frame.f_code.co_filename.startswith(OURS):
            calls[argument.__name__] += 1

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def exchange(client: trio.SocketStream, number: int) -> None:
    await client.send_all(produce(number, 200))
    assert await read_frame(client) == produce_response(number)


@pytest.mark.parametrize("quota", [None, 1e12], ids=["no quota", "a quota"])
async def test_calls_for_a_small_request(quota: float | None, data_path: str) -> None:
    """One request at a time. The least there can be is one read and one write in each direction. (System calls of the
    compiled code: tests/broker/test_proxy_syscalls.py.)"""
    async with through(answer, quota=quota) as (proxy, _, _):
        client = await connect(proxy)
        await exchange(client, 0)  # connects to the broker
        with counted() as calls:
            for number in range(REQUESTS):
                await exchange(client, number)
        each = {name: count / REQUESTS for name, count in calls.items()}
        if data_path == "pure":
            assert 1.9 < each["recv_into"] < 2.1
            assert 1.9 < each["send"] + each.get("sendmsg", 0) < 2.1
        else:
            assert each.get("recv_into", 0) + each.get("send", 0) < 0.1
        assert each.get("splice", 0) == 0
        # A socket is registered once, not once for each wait.
        assert calls["register"] + calls["modify"] + calls["unregister"] < 10
        assert each.get("python", 0) < MAX_CALLS[data_path], each


@pytest.mark.parametrize("quota", [None, 1e12], ids=["no quota", "a quota"])
async def test_calls_for_a_fetch(quota: float | None, data_path: str) -> None:
    """Decided, charged and let through in as few functions; its records are spliced."""
    records = bytes(200_000)

    async def reply(stream: Any, frame: bytes) -> None:
        body = struct.pack(">ihi", 0, 0, 0) + records
        await stream.send_all(response(FETCH, 11, int.from_bytes(frame[8:12], "big"), body))

    ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, consumer_byte_rate=quota)] if quota else []))
    async with through(reply, ledger=ledger) as (proxy, _, _):
        client = await connect(proxy)

        async def fetch(number: int) -> None:
            await client.send_all(request(FETCH, 11, number, fetch_body(11, partitions={0: 0})))
            assert len(await read_frame(client) or b"") == len(records) + 18

        await fetch(0)
        frames = 30
        with counted() as calls:
            for number in range(1, frames + 1):
                await fetch(number)
        each = {name: count / frames for name, count in calls.items()}
        assert each.get("python", 0) < MAX_CALLS_OF_A_FETCH[data_path], each
        (account,) = ledger.accounts()
        assert account.meters[Kind.FETCH].charges == frames + 1
        assert account.meters[Kind.FETCH].amount == (frames + 1) * (len(records) + 14)
        assert ledger.reservations == 0


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
