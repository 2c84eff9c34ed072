"""Clients cannot fill the log: every way to end a connection that is logged, a hundred times, with long names."""

import io
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
import trio

from proxy.app.common import logs
from proxy.core.auth.identity import IdentityPolicy
from proxy.net.io import connection
from proxy.net.tls.contexts import ServerTls
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import ANONYMOUS, DEFAULT
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support import sasl_tools as sasl
from tests.support.certificates import Issued
from tests.support.sasl_tools import authenticate, authenticate_response, handshake, handshake_response
from tests.support.scripted_broker import Handler, answer, exchange, frame_api, through, until
from tests.support.session_tools import FETCH, PRODUCE, produce, request

CONNECTIONS = 100
LONG = 30_000


@dataclass
class Flood:
    reason: str
    send: Callable[[int], list[bytes]]
    """The frames of one connection; the answer to each but the last is awaited."""
    handler: Handler = answer
    settings: dict[str, Any] = field(default_factory=dict)
    limits: tuple[ConnectionEntry, ...] = ()
    tls: bool = False


async def garbage(stream: trio.SocketStream, _: bytes) -> None:
    await stream.send_all(struct.pack(">ii", 4, -1))


async def accepts_any_login(stream: trio.SocketStream, frame: bytes) -> None:
    replies = {sasl.SASL_HANDSHAKE: handshake_response(), sasl.SASL_AUTHENTICATE: authenticate_response()}
    await stream.send_all(replies[frame_api(frame)])


def login(token: bytes) -> list[bytes]:
    return [handshake("PLAIN"), authenticate(token)]


FLOODS = {
    "not a frame": Flood("client_malformed", lambda i: [b"\xff\xff\xff" + bytes([i]) + b"garbage"]),
    "a long name": Flood("client_malformed", lambda i: [request(FETCH, 12, i, b"", "c" * LONG)]),
    "a version that is unknown": Flood("unsupported_version", lambda i: [request(PRODUCE, 99, i, b"")]),
    "TLS that is none": Flood("tls_handshake", lambda i: [b"GET / HTTP/1.1\r\n\r\n" + bytes([i])], tls=True),
    "a login without a name": Flood(
        "client_malformed", lambda i: login(b"\0" * i + b"\xff" * LONG), handler=accepts_any_login
    ),
    "a user that may not connect": Flood(
        "user_max_connections",
        lambda i: login(b"\0" + f"{i}".encode() + b"u" * LONG + b"\0secret"),
        handler=accepts_any_login,
        settings={"identity": IdentityPolicy(("sasl",))},
        limits=(
            ConnectionEntry(EntityType.USER, DEFAULT, max_connections=0),
            ConnectionEntry(EntityType.USER, ANONYMOUS, max_connections=CONNECTIONS),
        ),
    ),
    "no broker": Flood("upstream_unreachable", lambda i: [produce(i, 100)], settings={"reachable": False}),
    "a broker's garbage": Flood("broker_malformed", lambda i: [produce(i, 100)], handler=garbage),
    "a bug of ours": Flood("internal_error", lambda i: [produce(i, 100)]),
}


async def one_client(port: int, frames: list[bytes]) -> None:
    with suppress(trio.BrokenResourceError):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            for frame in frames[:-1]:
                await exchange(stream, frame)
            await stream.send_all(frames[-1])
            while await stream.receive_some(65_536):
                pass


@pytest.mark.parametrize("name", FLOODS)
async def test_no_flood_of_connections_floods_the_log(name: str, host: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("info", "json", written := io.StringIO())
    flood = FLOODS[name]
    ledger = Ledger(QuotaTable(connections=ConnectionLimits(flood.limits)))
    settings = flood.settings | ({"listen_tls": ServerTls(host.pair)} if flood.tls else {})
    async with through(flood.handler, ledger=ledger, **settings) as (proxy, _, nursery):
        if flood.reason == "internal_error":

            def broken(*_: Any) -> None:
                raise RuntimeError("x" * LONG)

            monkeypatch.setattr(connection, "endpoint_of", broken)
        for number in range(CONNECTIONS):
            nursery.start_soon(one_client, proxy.port, flood.send(number))
        await until(lambda: proxy.counters.connections.closed[flood.reason] == CONNECTIONS)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    result = [line for line in lines if line["level"] in ("warning", "error")]
    assert result, "the first ones have to be logged"
    # In ten seconds: 20 lines, and perhaps a new interval begins.
    assert len(result) <= 45
    assert max(len(json.dumps(line)) for line in lines) <= (9_000 if flood.reason == "internal_error" else 3_000)


@pytest.mark.parametrize("style", ["json", "console"])
def test_no_message_takes_more_than_its_bytes(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s)
    logs.configure("info", style, out := io.StringIO())
    log = structlog.get_logger("kquota.test")
    for _ in range(1000):
        log.warning("one of many", name="n" * 100_000)
    log.warning("another")
    flood_bytes = len(out.getvalue())
    assert flood_bytes <= logs.MAX_MESSAGE_BYTES + 3_000
    assert "another" in out.getvalue()
    now_s += logs.INTERVAL_S
    log.warning("one of many", name="n")
    last = out.getvalue()[flood_bytes:]
    assert "left_out" in last
    assert int("".join(filter(str.isdigit, last.split("left_out")[1]))[:3]) > 800
