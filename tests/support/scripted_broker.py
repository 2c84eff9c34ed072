"""A scripted broker and a proxy before it, both in this process: for what a real broker will not do on request."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

import trio

from proxy.core.interceptors.intercept import NO_INTERCEPTORS, Interceptors
from proxy.core.wire.throttle import REBOOTSTRAP_REQUIRED, UNSUPPORTED_VERSION
from proxy.net.io.loop import EventLoop
from proxy.net.listen.server import Proxy
from proxy.net.settings import ConnectionBounds, ProxySettings
from quota.entity import DEFAULT
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.lab.kafka.ports import free_ports
from tests.support.session_tools import API_VERSIONS, METADATA, produce_response
from tests.support.wire_tools import kafka_python_frame, kafka_python_messages

LIMIT_S = 20

Handler = Callable[[Any, bytes], Awaitable[None]]


async def read_frame(stream: trio.abc.ReceiveStream) -> bytes | None:
    """A whole frame with its size; None at the end of the stream."""
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        part = await stream.receive_some(min(wanted - len(data), 1 << 20))
        if not part:
            return None
        data += part
        if len(data) == 4:
            wanted = 4 + int.from_bytes(data, "big")
    return bytes(data)


@dataclass
class ScriptedBroker:
    """Answers the sidecar's own questions, ApiVersions and Metadata; all else goes to `handler(stream, frame)`."""

    handler: Handler
    node_port: int = 0
    received: list[bytes] = field(default_factory=list)
    streams: list[trio.SocketStream] = field(default_factory=list)
    listeners: list[trio.SocketListener] = field(default_factory=list)
    accepted: int = 0
    tls: ssl.SSLContext | None = None
    offered: dict[int, tuple[int, int]] = field(default_factory=lambda: {METADATA: (0, 13), API_VERSIONS: (0, 4)})
    """API key -> (lowest, highest version) of the APIs that it offers."""
    cluster_id: str = "scripted"
    node_id: int = 1
    others: list[tuple[int, int]] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    """(cluster id, node id) that it was asked to be (ApiVersions 5)."""

    async def listen(self, nursery: trio.Nursery, host: str = "127.0.0.1", port: int = 0) -> Callable[[], None]:
        """Serve at this address, which becomes the one in Metadata. Returns what ends it."""
        (listener,) = await trio.open_tcp_listeners(port, host=host)
        self.listeners.append(listener)
        self.node_port = listener.socket.getsockname()[1]
        scope = trio.CancelScope()

        async def serve() -> None:
            with scope:
                await trio.serve_listeners(self.serve_quietly, [listener])

        nursery.start_soon(serve)
        return scope.cancel

    async def serve_quietly(self, stream: trio.SocketStream) -> None:
        """As `serve`; that the sidecar hangs up in the middle is part of some tests."""
        self.accepted += 1
        secured = self.tls and trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError):
            await self.serve(secured or stream)

    async def serve(self, stream: Any) -> None:
        async with stream:
            while (frame := await read_frame(stream)) is not None:
                if frame_api(frame) == API_VERSIONS and b"kquota" in frame[:30]:
                    await stream.send_all(self.versions(frame))
                elif frame_api(frame) == METADATA and b"kquota" in frame[:30]:
                    if not (answer := self.metadata(frame)):
                        return
                    await stream.send_all(answer)
                elif self.handler is flood_reader:
                    self.streams.append(stream)
                    await trio.sleep_forever()
                else:
                    self.received.append(frame)
                    await self.handler(stream, frame)

    def versions(self, frame: bytes) -> bytes:
        """What it offers; in the layout of version 0 where the version that is asked for is not among it (KIP-511)."""
        version, number = (int.from_bytes(frame[at : at + size], "big") for at, size in ((6, 2), (8, 4)))
        known = self.offered[API_VERSIONS][0] <= version <= self.offered[API_VERSIONS][1]
        offered = self.offered if known else {API_VERSIONS: self.offered[API_VERSIONS]}
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in offered.items()]
        error = 0 if known else UNSUPPORTED_VERSION
        if version == 5 and known:
            wanted, node_id = frame[frame.rindex(b"\x020") + 2 : -5], int.from_bytes(frame[-5:-1], "big", signed=True)
            if wanted != b"\0":  # a compact string; null: whichever broker it is
                self.asked.append((wanted[1:].decode(), node_id))
                error = 0 if self.asked[-1] == (self.cluster_id, self.node_id) else REBOOTSTRAP_REQUIRED
                keys = keys if error == 0 else []
            version = 4  # kafka-python ends with 4, whose response is the same
        cls = _kafka_python("ApiVersionsResponse")
        return kafka_python_frame(cls, version if known else 0, number, error_code=error, api_keys=keys)

    def metadata(self, frame: bytes) -> bytes:
        """This broker and the others; nothing in a version that it does not offer: the connection is closed."""
        version, number = (int.from_bytes(frame[at : at + size], "big") for at, size in ((6, 2), (8, 4)))
        if not self.offered[METADATA][0] <= version <= self.offered[METADATA][1]:
            return b""
        nodes = [(self.node_id, self.node_port), *self.others]
        brokers = [{"node_id": node, "host": "127.0.0.1", "port": port, "rack": None} for node, port in nodes]
        result = {"brokers": brokers, "controller_id": 1, "topics": []}
        result |= {"cluster_id": self.cluster_id} if version >= 2 else {}
        return kafka_python_frame(_kafka_python("MetadataResponse"), version, number, **result)


def _kafka_python(name: str) -> Any:
    return next(cls for cls in kafka_python_messages() if cls.name == name)


def frame_api(frame: bytes) -> int:
    return int.from_bytes(frame[4:6], "big")


async def answer(stream: trio.SocketStream, frame: bytes) -> None:
    """An empty Produce response to whatever came."""
    await stream.send_all(produce_response(int.from_bytes(frame[8:12], "big")))


async def never_answer(_stream: trio.SocketStream, _frame: bytes) -> None:
    """Take requests, say nothing."""


async def flood_reader(_stream: trio.SocketStream, _frame: bytes) -> None:
    """Marker: after one head the broker reads nothing more."""


def proxy_before(
    *bootstrap: tuple[str, int],
    ledger: Ledger | None = None,
    interceptors: Interceptors = NO_INTERCEPTORS,
    listen_host: str = "127.0.0.1",
    loop: EventLoop | None = None,
    **more: Any,
) -> Proxy:
    """A proxy on free ports, not served yet; without a ledger, one that limits nothing."""
    port, first = free_ports(2)
    bounds = {one.name: more.pop(one.name) for one in fields(ConnectionBounds) if one.name in more}
    more |= {"bounds": ConnectionBounds(**bounds)}
    settings = ProxySettings(listen_host, port, range(first, first + 4), bootstrap, **more)
    return Proxy(settings, ledger or Ledger(QuotaTable()), interceptors=interceptors, loop=loop)


@asynccontextmanager
async def through(
    handler: Handler,
    *,
    quota: float | None = None,
    ledger: Ledger | None = None,
    reachable: bool = True,
    broker_tls: ssl.SSLContext | None = None,
    offered: dict[int, tuple[int, int]] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Proxy, ScriptedBroker, trio.Nursery]]:
    """A proxy in this process before a scripted broker; drained at the end."""
    broker = ScriptedBroker(handler, tls=broker_tls)
    broker.offered |= offered or {}
    entries = [Entry(client_id=DEFAULT, producer_byte_rate=quota)] if quota else []
    async with limited() as nursery:
        if reachable:
            await broker.listen(nursery)
        else:
            (broker.node_port,) = free_ports(1)
        settings = {"drain_timeout_s": 5.0, "connect_timeout_s": 2.0} | more
        proxy = proxy_before(("127.0.0.1", broker.node_port), ledger=ledger or Ledger(QuotaTable(entries)), **settings)
        await nursery.start(proxy.serve)
        yield proxy, broker, nursery
        for client in _clients:
            await client.aclose()
        _clients.clear()
        await drained(proxy)
        assert proxy.pipes_open == 0


_clients: list[trio.SocketStream] = []


@asynccontextmanager
async def limited(limit_s: float = LIMIT_S) -> AsyncIterator[trio.Nursery]:
    """What is started in it ends with the block, which fails when it takes longer than this."""
    with trio.fail_after(limit_s):
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()


async def drained(proxy: Proxy) -> None:
    proxy.drain()
    await until(lambda: proxy.state == "stopped")


@asynccontextmanager
async def background(run: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is watched sets no event
        await trio.sleep(0.01)


async def really(condition: Callable[[], object]) -> None:
    """Wait in real time, where the test's own clock stands."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "never came"
        await trio.to_thread.run_sync(time.sleep, 0.002)


async def connect(proxy: Proxy, first: bytes = b"") -> trio.SocketStream:
    _clients.append(await trio.open_tcp_stream("127.0.0.1", proxy.port))
    await _clients[-1].send_all(first)
    return _clients[-1]


async def exchange(stream: trio.abc.Stream, request: bytes) -> bytes | None:
    await stream.send_all(request)
    return await read_frame(stream)


async def closed_reason(proxy: Proxy, reason: str) -> None:
    """Wait until a connection has been counted as closed for this reason."""
    await until(lambda: proxy.counters.connections.closed[reason])
