"""The trio shell on real sockets: a scripted broker for what a real one will not do on request: stall, die, flood."""

import errno
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proxy.core.wire import requests
from proxy.net.io import host
from proxy.net.io.loop import EventLoop
from proxy.net.listen.listeners import bind
from proxy.net.upstream.cluster import Access, ClusterError, ask_brokers
from quota.entity import ANONYMOUS, Kind
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support import scripted_broker as scripted
from tests.support.scripted_broker import answer, closed_reason, connect, exchange, read_frame, through, until
from tests.support.session_tools import METADATA, produce, produce_response, request, response

RATE = 1000
UNKNOWN_API = 999


async def test_drain_refuses_new_clients_and_finishes_requests() -> None:
    go = trio.Event()

    async def slow(stream: trio.SocketStream, frame: bytes) -> None:
        await go.wait()
        await answer(stream, frame)

    async with through(slow) as (proxy, broker, _):
        client, idle = await connect(proxy, produce(1, 100)), await connect(proxy)
        await until(lambda: broker.received)
        proxy.drain()
        assert await idle.receive_some() == b""  # nothing in flight: closed at once
        with pytest.raises(OSError, match="failed"):
            await connect(proxy)
        assert proxy.state == "draining"
        go.set()
        assert await read_frame(client) == produce_response(1)
        assert await client.receive_some() == b""
        await closed_reason(proxy, "drained")


async def test_half_close_delivers_buffered_responses() -> None:
    """A client that reads late gets the end of the last response too, which waited here for room in its socket."""
    sizes = [8_000_000, *[30_000] * 8]

    async def large(stream: trio.SocketStream, frame: bytes) -> None:
        await stream.send_all(response(999, 0, int.from_bytes(frame[8:12], "big"), bytes(sizes.pop(0))))

    async with through(large) as (proxy, broker, _):
        expected = sum(8 + size for size in sizes)
        client = await connect(proxy, b"".join(request(999, 0, number, b"") for number in range(len(sizes))))
        await client.send_eof()
        await until(lambda: broker.received)
        taken = 0
        while part := await client.receive_some(16_384):
            taken += len(part)
            await trio.sleep(0.001)  # slower than the broker: the sidecar waits for room to the last
        assert taken == expected
        await closed_reason(proxy, "client_closed")


@pytest.mark.parametrize("pipes", [True, False])
async def test_large_frames_pass_whole(pipes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through the buffer, when the kernel has no pipes left."""

    def no_descriptors(_flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    if not pipes:
        monkeypatch.setattr(os, "pipe2", no_descriptors)
    body = os.urandom(1 << 20) * 8

    async def echo(stream: trio.SocketStream, frame: bytes) -> None:
        await stream.send_all(struct.pack(">ii", len(frame), int.from_bytes(frame[8:12], "big")) + frame[4:])

    async with through(echo) as (proxy, broker, _):
        frame = request(999, 0, 7, body)
        got = await exchange(await connect(proxy), frame)
        assert broker.received == [frame]
        assert got is not None
        assert got[8:] == frame[4:]
        assert proxy.pipes_open <= 2  # pooled, not one for each frame


async def test_requests_reach_a_slow_broker_as_they_were_sent() -> None:
    """Bytes in a pipe come before whatever is read next, however few they are when the sink takes no more."""
    first, *others = (produce(number, 100_001) for number in range(150))
    rest, got, dice = b"".join(others), bytearray(), random.Random(1)
    async with through(scripted.flood_reader, splice_min_bytes=32_768, drain_timeout_s=0.1) as (proxy, broker, nursery):
        broker.listeners[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client = await connect(proxy, first)
        await until(lambda: broker.streams)
        nursery.start_soon(client.send_all, rest)
        while len(got) < len(rest):
            part = await broker.streams[0].receive_some(dice.randrange(1, 30_000))
            assert part, "closed"
            got += part
        assert got == rest


async def stalled(write: Callable[[bytes], Awaitable[None]]) -> int:
    taken = 0
    chunk = b"x" * 65_536
    while True:
        with trio.move_on_after(0.5) as scope:
            await write(chunk)
        if scope.cancelled_caught:
            return taken
        taken += len(chunk)


def kernel_buffers_bytes() -> int:
    """What the kernel may hold on a path: two receive buffers and two send buffers, and the pipe between them. Without
    back-pressure the 100 MB or more that are announced would all be taken."""
    largest = [int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[-1]) for name in ("tcp_rmem", "tcp_wmem")]
    return min(2 * sum(largest) + 4_000_000, 90_000_000)


async def test_back_pressure_goes_both_ways() -> None:
    taken: list[int] = []

    async def flood(stream: trio.SocketStream, frame: bytes) -> None:
        if scripted.frame_api(frame) == 999:
            await stream.send_all(struct.pack(">ii", 200_000_000, int.from_bytes(frame[8:12], "big")))
            taken.append(await stalled(stream.send_all))
        else:
            await trio.sleep_forever()  # it reads no more

    async with through(flood, drain_timeout_s=0.1) as (proxy, _, _):
        unread = await connect(proxy, request(999, 0, 7, b""))
        writer = await connect(proxy, request(998, 0, 7, b"") + struct.pack(">ihhih", 100_000_000, 999, 0, 8, -1))
        taken.append(await stalled(writer.send_all))
        await until(lambda: len(taken) == 2)
        assert max(taken) < kernel_buffers_bytes()
        await unread.aclose()
        await closed_reason(proxy, "client_reset")
        await writer.aclose()


@pytest.mark.parametrize("muted", [False, True])
async def test_idle_connections_are_closed_also_while_muted(muted: bool) -> None:
    async with through(answer, connections_max_idle_s=1.0, quota=10.0) as (proxy, _, _):
        client = await connect(proxy)
        first = await exchange(client, produce(1, 1000 if muted else 60))
        assert first is not None
        assert (int.from_bytes(first[-4:], "big") > 5_000) == muted
        assert await client.receive_some() == b""
        await closed_reason(proxy, "idle")


@pytest.mark.parametrize(
    ("listen_host", "host"), [("::", "127.0.0.1"), ("::", "::1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1")]
)
async def test_advertises_the_address_of_the_connection(listen_host: str, host: str) -> None:
    async with through(answer, listen_host=listen_host) as (proxy, broker, _):
        (node,) = (await ask_brokers(host, proxy.port, Access(5.0))).brokers
        assert (node.host, node.port) == (host, proxy.cluster.all()[0][3])
        assert node.port != broker.node_port


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (None, "has versions 14 to 20 of Metadata, the sidecar supports 1 to 13"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Kafka's protocol"),
        (struct.pack(">iii", 8, 1, 1_000_000), "an array declares 1000000 elements"),
        (struct.pack(">iiiii", 16, 1, 0, -1, 0), "knows of no brokers yet"),
    ],
)
async def test_nonsense_from_the_cluster_harms_no_client(said: bytes | None, error: str) -> None:
    async with through(answer, offered={METADATA: (0, 1) if said else (14, 20)}) as (proxy, broker, _):
        broker.metadata = lambda _frame: said or b""  # type: ignore[method-assign]
        with pytest.raises(ClusterError, match=error):
            await ask_brokers("127.0.0.1", broker.node_port, Access(2.0))
        client = await connect(proxy, produce(1, 100))
        assert await read_frame(client) == produce_response(1)


@pytest.mark.parametrize("versions", [(0, 1), (1, 3), (9, 13), (12, 20)])
async def test_asks_in_a_version_that_the_broker_has(versions: tuple[int, int]) -> None:
    async with through(answer, offered={METADATA: versions}) as (proxy, broker, _):
        await until(lambda: proxy.cluster.reached)
        (node,) = (await ask_brokers("127.0.0.1", broker.node_port, Access(2.0))).brokers
        assert node.port == broker.node_port
        # As on another listener of the cluster: the client needs no login, although logins are expected.
        proxy.cluster.login_expected = True
        client = await connect(proxy, produce(1, 100))
        assert await read_frame(client) == produce_response(1)
        assert not proxy.counters.connections.closed["login_missing"]


async def test_request_in_pieces_reaches_the_broker_at_once() -> None:
    """As Java's TLS clients write it. The kernel keeps the pieces (MSG_MORE)."""
    async with through(scripted.flood_reader, drain_timeout_s=0.1) as (proxy, broker, _):
        client = await connect(proxy, produce(1, 100))
        await until(lambda: broker.streams)
        frame = produce(2, 16_384)
        for piece in (frame[:200], frame[200:16_300], frame[16_300:]):
            await client.send_all(piece)
            await trio.sleep(0.01)
        assert await broker.streams[0].receive_some() == frame


LATE_S = 0.1


def charged_ms(ledger: Ledger) -> float:
    return ledger.account(ANONYMOUS, "c").meters[Kind.REQUEST].amount


def test_does_not_charge_late_reads_of_the_loop() -> None:
    async def answer_and_hold_up(stream: trio.SocketStream, frame: bytes) -> None:
        await answer(stream, frame)
        time.sleep(LATE_S)  # noqa: ASYNC251 - the sidecar's loop is this one: it has other things to do

    async def main() -> None:
        ledger = Ledger(QuotaTable())
        async with through(answer_and_hold_up, ledger=ledger, loop=loop) as (proxy, _, _nursery):
            client = await connect(proxy)
            charges = []
            for number in range(10):
                before_ms = charged_ms(ledger)
                await exchange(client, produce(number, 100))
                charges.append(charged_ms(ledger) - before_ms)
            # On a machine with much to do the loop may seem to have waited, now and then, and to be in time.
            assert sorted(charges)[len(charges) // 2] < LATE_S * 1000 / 2

    loop = EventLoop()
    host.run(main, loop)


def test_both_families_are_ipv4_where_there_is_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without IPv6 refuses even the socket."""
    usual = socket.socket.__init__

    def refusing(self: socket.socket, family: int = -1, *more: Any, **given: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        usual(self, family, *more, **given)

    monkeypatch.setattr(socket.socket, "__init__", refusing)
    with bind("::", 0) as listener:
        assert listener.family == socket.AF_INET
    with pytest.raises(OSError, match="not supported"):
        bind("::1", 0)


async def test_brokers_may_change_during_a_drain() -> None:
    """Listeners are closed then, and none is opened: the drain goes on."""
    async with through(scripted.never_answer, drain_timeout_s=1.5) as (proxy, broker, _):
        await connect(proxy, produce(1, 100))
        await until(lambda: broker.received and proxy.cluster.reached)
        proxy.drain()
        broker.node_id += 4  # of four ports it has the same
        proxy.cluster._look_again.set()
        await until(lambda: [number for number, *_ in proxy.cluster.all()] == [5])
        assert proxy.state == "draining"
        await closed_reason(proxy, "drain_timeout")


async def test_the_same_memory_after_many_requests() -> None:
    async with through(answer) as (proxy, broker, _):
        client = await connect(proxy)

        async def ask(count: int) -> None:
            for number in range(count):
                assert await exchange(client, produce(number, 200)) == produce_response(number)
            broker.received.clear()

        await ask(500)
        before = sys.getallocatedblocks()
        await ask(2000)
        assert sys.getallocatedblocks() - before < 500


DELAYS_MS = {"a": 10, "b": 30, "c": 30, "d": 20}


def client_id(frame: bytes) -> str:
    header = requests.parse_request_header(memoryview(frame), 0, len(frame), 1 << 20)
    assert header is not None
    return header.client_id


async def test_four_connections_come_back_each_at_its_own_deadline(mock_clock: MockClock) -> None:
    """F1: delays of 10, 30, 30 and 20 ms: four are muted, then three, two, none, and none stays behind."""
    async with through(answer, quota=RATE) as (proxy, broker, _):
        for name, delay_ms in DELAYS_MS.items():
            client = await connect(proxy)
            # 10 000 + d bytes in the first window of 10 s: ((10 000 + d) / 10 - 1000) / 1000 * 10 000 = d ms
            await client.send_all(produce(1, 10_000 + delay_ms, client_id=name))
            await client.send_all(request(UNKNOWN_API, 0, 2, b"", client_id=name))  # under no quota of bytes
            first = await read_frame(client)
            assert first == produce_response(1, throttle_ms=delay_ms)  # answered at once, with its own delay
        counters = proxy.counters
        await scripted.really(lambda: counters.connections.muted == 4)
        passed = [client_id(frame) for frame in broker.received]
        assert passed == ["a", "b", "c", "d"]  # the second requests wait unread

        def settled(muted: int, requests: int) -> bool:
            return counters.connections.muted <= muted and len(broker.received) >= requests

        steps: list[tuple[float, int, set[str]]] = [(9.5, 4, set()), (1, 3, {"a"}), (10, 2, {"d"}), (10, 0, {"b", "c"})]
        for step_ms, still_muted, released in steps:
            before = len(broker.received)
            mock_clock.jump(step_ms / 1000)
            await scripted.really(partial(settled, still_muted, before + len(released)))
            assert {client_id(frame) for frame in broker.received[before:]} == released
        assert counters.connections.muted == 0
        mock_clock.rate = 1.0


@pytest.mark.parametrize(("acks", "watched"), [(1, 1), (0, 0)])
async def test_mute_is_ignored_only_after_its_announcement(acks: int, watched: int) -> None:
    """A mute of 1 s, in whose second half more comes. Without an answer (acks=0) the client cannot know of it."""
    handler = answer if acks else scripted.never_answer
    for _attempt in range(5):  # a look that comes late on a busy machine does not count
        async with through(handler, quota=RATE, drain_timeout_s=0.1) as (proxy, _, _):
            client = await connect(proxy, produce(1, 11_000, acks=acks))
            await trio.sleep(0.7)
            await client.send_all(request(UNKNOWN_API, 0, 2, b""))
            await scripted.really(lambda: proxy.counters.counted.by_api().get(-1) == 1)  # read after the mute
            seen = [(one.mutes, one.ignored) for one in proxy.counters.libraries]
        if len(seen) == watched:
            break
    assert seen == [(1, 1)] * watched
