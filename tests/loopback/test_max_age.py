"""`connections_max_age_ms`: old connections end, but only between two requests."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from tests.support.scripted_broker import answer, closed_reason, connect, never_answer, read_frame, through, until
from tests.support.session_tools import produce, produce_response

pytestmark = pytest.mark.usefixtures("data_path")

AGE_S = 1.0


async def test_idle_connections_end_by_their_age() -> None:
    async with through(answer, connections_max_age_s=AGE_S) as (proxy, _, _):
        began_s = trio.current_time()
        clients = [await connect(proxy) for _ in range(20)]
        for client in clients:
            await client.send_all(produce(1, 100))
            assert await read_frame(client) == produce_response(1)
        for client in clients:
            assert await client.receive_some() == b""
            assert trio.current_time() - began_s >= 0.8 * AGE_S
        await until(lambda: proxy.counters.connections_closed == {"max_age": 20})
        assert trio.current_time() - began_s <= 2 * AGE_S


async def test_expiry_has_jitter() -> None:
    async with through(answer, connections_max_age_s=100) as (proxy, _, _):
        for _ in range(20):
            await connect(proxy)
        await until(lambda: len(proxy._connections.open) == 20)
        left_s = [connection.expires_s - trio.current_time() for connection in proxy._connections.open]
        assert 79 < min(left_s) < 90 < max(left_s) <= 100
        assert len(set(left_s)) == 20


async def test_busy_connections_end_after_a_response() -> None:
    """One request after the other: each that reached the broker is answered, and the end comes in between."""
    async with through(answer, connections_max_age_s=AGE_S) as (proxy, broker, _):
        client = await connect(proxy)
        answered = 0
        try:
            while True:
                await client.send_all(produce(answered + 1, 100))
                if await read_frame(client) is None:
                    break
                answered += 1
        except trio.BrokenResourceError:
            pass  # it had closed before the request came
        await closed_reason(proxy, "max_age")
        assert answered > 100
        assert len(broker.received) == answered


async def test_requests_in_flight_do_not_keep_a_connection() -> None:
    """A client that never waits: when the drain's time has passed as well, no further request is read, and each that
    reached the broker is answered."""

    async def slow(stream: trio.SocketStream, frame: bytes) -> None:
        await trio.sleep(0.01)
        await answer(stream, frame)

    async with through(slow, connections_max_age_s=AGE_S, drain_timeout_s=0.5) as (proxy, broker, _):
        client = await connect(proxy)
        began_s = trio.current_time()
        sent = answered = 0
        with suppress(trio.BrokenResourceError):
            while True:
                with suppress(trio.BrokenResourceError):  # what was answered before can be read
                    while sent < answered + 5:
                        sent += 1
                        await client.send_all(produce(sent, 100))
                if await read_frame(client) is None:
                    break
                answered += 1
        assert 0.8 * AGE_S + 0.5 <= trio.current_time() - began_s <= AGE_S + 1.0
        await closed_reason(proxy, "max_age")
        assert answered == len(broker.received)


async def test_a_request_in_flight_is_answered_first() -> None:
    async def late(stream: trio.SocketStream, frame: bytes) -> None:
        await trio.sleep(2 * AGE_S)
        await answer(stream, frame)

    async with through(late, connections_max_age_s=AGE_S) as (proxy, _, _):
        client = await connect(proxy)
        began_s = trio.current_time()
        await client.send_all(produce(1, 100))
        assert await read_frame(client) == produce_response(1)
        assert await client.receive_some() == b""
        assert 2 * AGE_S <= trio.current_time() - began_s < 2.2 * AGE_S, "right after the answer"
        await closed_reason(proxy, "max_age")


async def test_half_a_request_is_waited_for() -> None:
    async with through(answer, connections_max_age_s=AGE_S) as (proxy, broker, _):
        client = await connect(proxy)
        await client.send_all(produce(1, 100) + produce(2, 100)[:50])
        assert await read_frame(client) == produce_response(1)
        await trio.sleep(1.5 * AGE_S)
        await client.send_all(produce(2, 100)[50:])
        assert await read_frame(client) == produce_response(2)
        assert await client.receive_some() == b""
        await closed_reason(proxy, "max_age")
        assert len(broker.received) == 2


async def test_a_muted_client_stays_until_its_mute_ends() -> None:
    """Muted for about 2 s; what it sends during the mute is answered too."""
    async with through(answer, quota=1000, connections_max_age_s=AGE_S) as (proxy, _, _):
        client = await connect(proxy)
        began_s = trio.current_time()
        await client.send_all(produce(1, 12_000))
        assert await read_frame(client) is not None
        (info,) = proxy.each_connection()
        assert info.state == "muted"
        mute_s = info.muted_for_ms / 1000
        assert mute_s > AGE_S
        assert await client.receive_some() == b""
        assert trio.current_time() - began_s >= mute_s
        await closed_reason(proxy, "max_age")


async def test_without_an_answer_nothing_ends() -> None:
    async with through(never_answer, connections_max_age_s=AGE_S, drain_timeout_s=0.2) as (proxy, _, _):
        client = await connect(proxy)
        await client.send_all(produce(1, 100))
        await trio.sleep(2 * AGE_S)
        assert not proxy.counters.connections_closed
        assert proxy.counters.connections_open == 1
