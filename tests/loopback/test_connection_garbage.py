"""Connections take themselves apart when they end: nothing of them is left to the garbage collector, whose full runs
stop the event loop for as long as there is much to look at."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio

from tests.support.sasl_tools import authenticate, handshake
from tests.support.scripted_broker import answer, connect, read_frame, through, until
from tests.support.session_tools import produce, produce_response

CONNECTIONS = 10
OURS = ("proxy.", "quota.")


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """What of ours only a collection finds, by class."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(
            f"{type(one).__module__}.{type(one).__qualname__}"
            for one in gc.garbage
            if type(one).__module__.startswith(OURS)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def quiet(client: trio.SocketStream) -> None:
    """It asks, is answered, and goes."""
    await client.send_all(produce(1, 200))
    assert await read_frame(client) == produce_response(1)


async def unasked(_client: trio.SocketStream) -> None:
    """It says nothing, so that no broker is connected to."""


async def in_flight(client: trio.SocketStream) -> None:
    """It goes in the middle of its second request."""
    await quiet(client)
    await client.send_all(produce(2, 50_000)[:20_000])


async def muted(client: trio.SocketStream) -> None:
    """20 KB at 1 KB/s: the first one is muted when it goes, the others wait for what it owes (ADR 0026)."""
    await client.send_all(produce(1, 20_000))


async def in_a_login(client: trio.SocketStream) -> None:
    """It goes before the login is over."""
    await client.send_all(handshake("PLAIN") + authenticate(b"\0alice\0secret"))


async def hostile(client: trio.SocketStream) -> None:
    """It is thrown out."""
    await client.send_all(b"\x7f\xff\xff\xff garbage")


@asynccontextmanager
async def ended(behave: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[Counter[str]]:
    """What `CONNECTIONS` connections that behave like this leave behind, once all have ended."""
    async with through(answer, quota=1000.0 if behave is muted else 1e9) as (proxy, _, _):
        with garbage() as found:
            for _ in range(CONNECTIONS):
                client = await connect(proxy)
                await behave(client)
                await client.aclose()
                del client
            await until(lambda: not proxy.connections())
            for _ in range(10):  # their tasks end
                await trio.lowlevel.checkpoint()
        yield found


@pytest.mark.parametrize(
    "behave", [quiet, unasked, in_flight, muted, in_a_login, hostile], ids=lambda behave: behave.__name__
)
async def test_nothing_is_left_to_the_garbage_collector(
    behave: Callable[[trio.SocketStream], Awaitable[None]], data_path: str
) -> None:
    async with ended(behave) as found:
        assert dict(found) == {}, data_path
