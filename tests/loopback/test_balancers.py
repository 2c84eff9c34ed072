"""Connections from balancers: PROXY headers on real sockets, and what is no client."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from proxy.net.listen.server import Proxy
from proxy.net.settings import StallLimits
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.proxy_headers import CLIENT, LOCAL, v1, v2
from tests.support.scripted_broker import answer, connect, exchange, read_frame, through, until
from tests.support.session_tools import produce, produce_response

HERE = ("127.0.0.0/8",)
OWN = b"own"
"""In place of a header with the address of the socket itself."""
PEER = f"{CLIENT[0]}:{CLIENT[1]}"


@asynccontextmanager
async def behind(networks: tuple[str, ...] = HERE, **more: Any) -> AsyncIterator[Proxy]:
    settings = {"stalls": StallLimits(pre_auth_timeout_s=5)} | more
    async with through(answer, proxy_protocol_from=networks, **settings) as (proxy, _, _):
        yield proxy


@pytest.mark.parametrize("header", [v1(), v2(), v2(more=b"\x04\0\x05hello" * 4)], ids=["v1", "v2", "v2 with TLVs"])
async def test_client_is_the_one_of_the_header(header: bytes) -> None:
    """Split at each byte, and in one piece with the request behind it."""
    request = produce(1, 100)
    async with behind() as proxy:
        for place in range(len(header) + 1):
            client = await connect(proxy)
            await client.send_all(header[:place] or header)
            if 0 < place < len(header):
                await trio.sleep(0.002)  # so that it is read by itself
                await client.send_all(header[place:] + request)
            else:
                await client.send_all(request)
            assert await read_frame(client) == produce_response(1)
            (info,) = proxy.each_connection()
            assert info.peer == PEER
            await client.aclose()
            await until(lambda: not list(proxy.each_connection()))
        assert proxy.counters.proxy_headers == {"client": len(header) + 1}


REFUSED = {"no header": produce(1, 100), "cut": v2()[:20], "nothing more": v1()[:9] + b"never"}


@pytest.mark.parametrize("case", REFUSED)
async def test_refuses_a_balancer_without_header(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with behind(stalls=StallLimits(pre_auth_timeout_s=0.3)) as proxy:
        client = await connect(proxy)
        await client.send_all(REFUSED[case])
        if case == "cut":
            await client.send_eof()
        await until(lambda: proxy.counters.connections.closed["proxy_header"] == 1)
        assert proxy.counters.proxy_headers == {"refused": 1}
        assert proxy.counters.connections.opened == 1
        with suppress(trio.BrokenResourceError):
            assert await client.receive_some() == b""
    assert "PROXY header" in capsys.readouterr().out


async def test_header_from_elsewhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for networks in ((), ("10.0.0.0/8", "::1/128")):
        for header in (v1(), v2()):
            async with behind(networks) as proxy:
                client = await connect(proxy)
                await client.send_all(header + produce(1, 100))
                await until(lambda: proxy.counters.connections.closed["client_malformed"] == 1)
                assert proxy.counters.parse_errors == {"proxy_protocol_on_kafka_port": 1}
                other = await connect(proxy)
                assert await exchange(other, produce(1, 100)) == produce_response(1)
    assert "listen.proxy_protocol_from" in capsys.readouterr().out


@pytest.mark.parametrize(
    "sent", [b"", LOCAL, b"PROXY UNKNOWN\r\n", OWN], ids=["nothing", "LOCAL", "UNKNOWN", "own address"]
)
@pytest.mark.parametrize("way", ["end", "reset"])
async def test_health_checks_are_no_clients(sent: bytes, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(QuotaTable(connections=ConnectionLimits([ConnectionEntry(EntityType.IP, "127.0.0.1", None, 0)])))
    async with behind(ledger=ledger) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as check:
            check.sendall(v1(*check.getsockname()) if sent is OWN else sent)
            if way == "reset":
                check.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: proxy.counters.proxy_headers["health_check"] == 1)
        assert proxy.counters.connections.opened == 0
        assert not proxy.counters.connections.closed
    assert "connection" not in capsys.readouterr().out.replace("connections=0", "")


async def test_silent_balancers_take_room_for_a_time() -> None:
    """A connection whose header is awaited is one of `limits.max_connections`, until its time is over."""
    async with behind(max_connections=2, stalls=StallLimits(pre_auth_timeout_s=0.5)) as proxy:
        silent = [await connect(proxy), await connect(proxy)]
        await silent[1].send_all(LOCAL)
        more = await connect(proxy)
        await until(lambda: proxy.counters.connections.closed["max_connections"] == 1)
        await until(lambda: proxy.counters.proxy_headers == {"refused": 1, "health_check": 1})
        assert await more.receive_some() == b""
        again = await connect(proxy)
        assert await exchange(again, LOCAL + produce(1, 100)) == produce_response(1)
        assert [info.peer.rpartition(":")[0] for info in proxy.each_connection()] == ["127.0.0.1"]
        last = await connect(proxy)
        await until(lambda: proxy._connections.count() == 2)
        proxy.drain()
        assert await last.receive_some() == b"", "a drain ends those without a header"
