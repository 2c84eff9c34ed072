"""TLS in transparent mode, ended and begun again with a key of its own; real brokers: test_transparent_secure."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from proxy.net.listen.server import Proxy
from proxy.net.settings import ProxySettings, TransparentSettings
from proxy.net.tls.contexts import ClientTls, KeyPair, ServerTls
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.certificates import Authority
from tests.support.namespaces import Namespace
from tests.support.scripted_broker import read_frame, until
from tests.support.session_tools import produce, produce_response
from tests.system.test_transparent import KAFKA, LISTEN, MARK, ask, connect, machine

__all__ = ["machine"]

pytestmark = pytest.mark.long

LIMIT_S = 60
BROKER = "10.77.0.11"
Stream = trio.SSLStream[trio.SocketStream]


@asynccontextmanager
async def terminating(
    authority: Authority, names: list[str | None], *, listen_tls: bool = True
) -> AsyncIterator[Proxy]:
    """A proxy with certificates of its own before a broker with TLS for `kafka-0.test` on one port and one without on
    the next; `names` gets what the broker is asked for."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.issue("broker", "kafka-0.test").both)
    server.sni_callback = lambda _sock, name, _context: names.append(name)
    own = authority.issue("sidecar", "kafka-0.test")

    async def by_tls(raw: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with trio.SSLStream(raw, server, server_side=True) as stream:
                await kafka(stream)

    async def kafka(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError):
            while await read_frame(stream) is not None:
                await stream.send_all(produce_response(7))

    settings = ProxySettings(
        "127.0.0.1",
        LISTEN,
        range(1, 2),
        (),
        drain_timeout_s=5.0,
        transparent=TransparentSettings(mark=MARK),
        listen_tls=ServerTls(KeyPair(own.chain, own.key)) if listen_tls else None,
        upstream_tls=ClientTls(authorities=authority.certificate, server_name=None if listen_tls else "kafka-0.test"),
    )
    proxy = Proxy(settings, Ledger(QuotaTable([])))
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for port, handler in ((KAFKA, by_tls), (KAFKA + 1, kafka)):
                listeners = await trio.open_tcp_listeners(port, host=BROKER)
                nursery.start_soon(trio.serve_listeners, handler, listeners)
            await nursery.start(proxy.serve)
            yield proxy
            proxy.drain()
            await until(lambda: proxy.state == "stopped")
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("tls_by")
async def test_certificates_show_requests_and_keep_the_asked_name(machine: Namespace, authority: Authority) -> None:
    names: list[str | None] = []
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(authority.certificate)
    with machine.inside():
        async with terminating(authority, names) as proxy, await connect(BROKER) as raw:
            stream = trio.SSLStream(raw, client, server_hostname="kafka-0.test")
            await stream.send_all(produce(7, 100))
            assert await read_frame(stream) == produce_response(7)
            assert names == ["kafka-0.test"]
            assert proxy.counters.requests == {0: 1}, "a Produce request"
            assert proxy.counters.passthrough_opened == 0
            assert proxy.counters.tls_handshakes == {"client": 1, "broker": 1}


@pytest.mark.usefixtures("tls_by")
async def test_with_certificates_plain_connections_go_on_in_plain(machine: Namespace, authority: Authority) -> None:
    with machine.inside():
        async with terminating(authority, []) as proxy:
            assert await ask(BROKER, KAFKA + 1) == produce_response(7)
            assert proxy.counters.tls_handshakes == {}


@pytest.mark.usefixtures("tls_by")
async def test_upstream_tls_alone_encrypts_plain_connections(machine: Namespace, authority: Authority) -> None:
    names: list[str | None] = []
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(authority.certificate)
    with machine.inside():
        async with terminating(authority, names, listen_tls=False) as proxy:
            assert await ask(BROKER) == produce_response(7)
            assert proxy.counters.tls_handshakes == {"broker": 1}
            async with await connect(BROKER) as raw:
                stream = trio.SSLStream(raw, client, server_hostname="kafka-0.test")
                await stream.send_all(produce(7, 100))
                assert await read_frame(stream) == produce_response(7)
            assert proxy.counters.tls_handshakes == {"broker": 1}
            assert proxy.counters.passthrough_opened == 1
            assert names == ["kafka-0.test"] * 2
