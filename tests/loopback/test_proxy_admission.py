"""Limits of connections at the listeners: real sockets, and a clock that stands until the test moves it."""

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proxy.net.listen.server import Proxy
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.scripted_broker import answer, connect, exchange, really, through
from tests.support.session_tools import produce, produce_response

IP, USER = EntityType.IP, EntityType.USER
HERE = "127.0.0.1"


def limited(*entries: ConnectionEntry) -> QuotaTable:
    return QuotaTable(connections=ConnectionLimits(entries))


@asynccontextmanager
async def sidecar(clock: MockClock, *entries: ConnectionEntry, **settings: Any) -> AsyncIterator[tuple[Proxy, Ledger]]:
    """Kafka's test windows, 2 samples of 1 s. At the end the clock runs again, for the orderly end needs one."""
    ledger = Ledger(limited(*entries), num_samples=2, window_ms=1000)
    async with through(answer, ledger=ledger, **settings) as (proxy, _, _):
        try:
            yield proxy, ledger
        finally:
            clock.rate = 1.0


async def served(*clients: trio.SocketStream) -> bool:
    return all([await exchange(client, produce(1, 100)) == produce_response(1) for client in clients])


async def ended(*clients: trio.SocketStream) -> bool:
    for client in clients:
        with suppress(trio.BrokenResourceError):
            assert await client.receive_some() == b""
    return True


async def are_open(*clients: trio.SocketStream) -> bool:
    """Whether the peer has neither closed nor said anything, by a moment of real time."""
    await trio.to_thread.run_sync(time.sleep, 0.05)
    for client in clients:
        with pytest.raises(BlockingIOError):
            client.socket._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # type: ignore[attr-defined]
    return True


async def settled(proxy: Proxy, accepted: int) -> None:
    await really(lambda: proxy.counters.connections.opened == accepted)


async def test_mutes_connection_over_the_rate_then_closes(mock_clock: MockClock) -> None:
    async with sidecar(mock_clock, ConnectionEntry(IP, HERE, 5)) as (proxy, _):
        clients = [await connect(proxy) for _ in range(8)]
        await settled(proxy, 8)
        assert proxy.counters.connections.held == 3
        assert proxy.counters.connections.open == 5
        assert await served(*clients[:5])
        await clients[5].send_all(produce(1, 100))
        # (6 - 5) / 5 * 1000 ms = 200 ms, for each of the three, for the refused leave no trace
        mock_clock.jump(0.199)
        assert await are_open(*clients[5:])
        mock_clock.jump(0.002)
        assert await ended(*clients[5:])
        assert proxy.counters.connections.closed == {"ip_connection_rate": 3}
        assert proxy.counters.connections.held == 0
        assert await served(*clients[:5])
        mock_clock.jump(2)
        assert await served(await connect(proxy))


async def test_closes_connections_beyond_the_most_muted(mock_clock: MockClock) -> None:
    async with sidecar(mock_clock, ConnectionEntry(IP, DEFAULT, 1), max_held_connections=2) as (proxy, _):
        clients = [await connect(proxy) for _ in range(6)]
        await settled(proxy, 6)
        assert proxy.counters.connections.held == 2
        assert proxy.counters.connections.not_held == 3
        assert await ended(*clients[3:])
        assert await are_open(*clients[1:3])
        mock_clock.jump(1.001)  # the delay is at most one sample
        assert await ended(*clients[1:3])
        mock_clock.jump(2)
        late = [await connect(proxy) for _ in range(2)]
        await really(lambda: proxy.counters.connections.held == 1)
        proxy.drain()
        assert await ended(late[1]), "a drain does not wait for muted connections"


async def test_a_reload_changes_limits_and_closes_no_connection(mock_clock: MockClock) -> None:
    async with sidecar(mock_clock, ConnectionEntry(IP, DEFAULT, 1, 1, "shadow")) as (proxy, ledger):
        clients = [await connect(proxy) for _ in range(3)]
        await settled(proxy, 3)
        assert sum(ledger.connections.shadow_refused.values()) == 4  # two by the rate, two by the cap
        ledger.swap(limited(ConnectionEntry(USER, DEFAULT, None, 2)))
        assert await ended(await connect(proxy))
        assert await served(*clients)
        ledger.swap(limited(ConnectionEntry(USER, DEFAULT, None, 2), ConnectionEntry(USER, "ANONYMOUS", None, 4)))
        assert await served(await connect(proxy))
        assert proxy.counters.connections.closed == {"user_max_connections": 1}


async def test_a_storm_of_connections_leaves_others_their_turn() -> None:
    async with through(answer) as (proxy, _, _):
        established = await connect(proxy)
        assert await served(established)
        clients = [socket.create_connection((HERE, proxy.port), timeout=5) for _ in range(200)]  # by the kernel alone
        assert await served(established)
        assert proxy.counters.connections.opened < 100
        await settled(proxy, 201)
        for client in clients:
            client.close()


async def test_refused_connections_leave_no_descriptor_behind(mock_clock: MockClock) -> None:
    async with sidecar(mock_clock, ConnectionEntry(IP, DEFAULT, 1), max_held_connections=20) as (proxy, ledger):
        await really(lambda: proxy.cluster.reached)
        before = len(os.listdir("/proc/self/fd"))
        for turn in range(100):
            await (await connect(proxy)).aclose()
            await settled(proxy, turn + 1)
        mock_clock.jump(1.001)
        await really(lambda: sum(proxy.counters.connections.closed.values()) == 100)
        await really(lambda: not ledger.connections.open(IP) and len(os.listdir("/proc/self/fd")) <= before)


async def test_muted_connections_give_descriptors(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    real_accept = socket.socket.accept
    full: list[bool] = []

    def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
        if full and full.pop():
            raise OSError(24, "Too many open files")
        return real_accept(listener)

    async with sidecar(mock_clock, ConnectionEntry(IP, DEFAULT, 1)) as (proxy, _):
        clients = [await connect(proxy) for _ in range(3)]
        await settled(proxy, 3)
        assert proxy.counters.connections.held == 2
        monkeypatch.setattr("proxy.net.listen.acceptor.socket.socket.accept", accept)
        full.append(True)
        await connect(proxy)
        assert await ended(*clients[1:])
        assert proxy.counters.accept_failures == 1
