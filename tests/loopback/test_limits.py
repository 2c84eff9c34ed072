"""Peers that use too much, stop half way or say what cannot be, on real sockets: their connection ends, no other one
does, and memory stays bounded. And the age of connections."""

import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from proxy.core.session.sizes import SizeLimits
from proxy.core.wire.primitives import uvarint
from proxy.net.listen.server import Proxy
from proxy.net.settings import StallLimits
from tests.support import scripted_broker as scripted
from tests.support.scripted_broker import answer, closed_reason, connect, exchange, read_frame, through, until
from tests.support.session_tools import API_VERSIONS, METADATA, metadata_response, produce, produce_response, request

QUICK = StallLimits(pre_auth_timeout_s=60.0, stall_timeout_s=0.5, min_bytes_per_s=1000.0)


async def honest(proxy: Proxy) -> None:
    stream = await connect(proxy)
    for number in range(3):
        assert await exchange(stream, produce(number, 100)) == produce_response(number)


async def ends(stream: trio.SocketStream) -> bytes:
    said = b""
    with suppress(trio.BrokenResourceError):  # reset, because not all that we sent had been read
        while part := await stream.receive_some(65_536):
            said += part
    return said


async def test_half_a_request_is_waited_for_for_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    async with through(answer, stalls=QUICK) as (proxy, _, _):
        client = await connect(proxy, produce(1, 1000)[:500])
        await honest(proxy)
        assert await ends(client) == b""
        await closed_reason(proxy, "slow_request")
    assert "slow_request" in capsys.readouterr().out


@pytest.mark.parametrize("first", [produce(1, 100), request(API_VERSIONS, 0, 1, b"")], ids=["Produce", "ApiVersions"])
async def test_a_client_that_never_comes_to_a_request_is_let_go(first: bytes) -> None:
    """One that has asked ApiVersions may have opened a connection to use it later: clients do."""
    limits = replace(QUICK, pre_auth_timeout_s=0.5)
    async with through(answer, stalls=limits) as (proxy, _, _):
        client, other = await connect(proxy), await connect(proxy)
        assert await exchange(other, first) == produce_response(1)  # whatever it is asked
        await ends(client)
        await closed_reason(proxy, "pre_auth_timeout")
        await trio.sleep(0.7)
        await other.send_all(produce(2, 100))  # idle for longer, but it has been a client
        assert await read_frame(other) == produce_response(2)


EVIL = 999
"""API key of the requests that the broker answers badly; Produce it answers well."""
MB = 1_000_000
TCP_BUFFERS = [Path(f"/proc/sys/net/ipv4/{name}").read_text().split() for name in ("tcp_rmem", "tcp_wmem")]
ON_THE_WAY_BYTES = 2 * sum(int(most) for *_, most in TCP_BUFFERS) + 4 * MB
"""What the kernel may keep of two connections, and the sidecar of one."""


def size_and_id(size: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">ii", size, correlation_id)


def evil(said: bytes, *, api_key: int = EVIL, close: bool = False) -> Callable[..., Awaitable[None]]:
    async def handler(stream: trio.SocketStream, frame: bytes) -> None:
        if scripted.frame_api(frame) != api_key:
            await answer(stream, frame)
            return
        await stream.send_all(said)
        if close:
            await stream.send_eof()
        await trio.sleep_forever()

    return handler


MANY = 270_000
METADATA_9 = request(METADATA, 9, 7, b"\0\0\0\0\0", client_id="c")


def metadata_9(body: bytes) -> bytes:
    """An answer to it: tags, throttle, then brokers as a compact array."""
    return size_and_id(9 + len(body)) + b"\0" + bytes(4) + body


SIZES = SizeLimits(max_frame_bytes=10_000, max_header_bytes=300, max_response_bytes=5_000, pre_auth_max_bytes=2_000)


class Said(NamedTuple):
    """What the broker says, to which request, and the error that is counted for it; nothing: that of the request."""

    data: bytes
    error: str = "response_malformed"
    asked: bytes = request(EVIL, 0, 7, b"")
    sizes: SizeLimits = SizeLimits()


METADATA_1 = request(METADATA, 1, 7, b"\0\0\0\0")
SAID = {
    "garbage": Said(b"\xde\xad\xbe\xef" * 16, "broker_frame_size"),
    "HTTP": Said(b"HTTP/1.1 400 Bad Request\r\n\r\n", "broker_correlation_id"),
    "negative size": Said(size_and_id(-1), "broker_frame_size"),
    "another request's answer": Said(size_and_id(10, 8) + bytes(6), "broker_correlation_id"),
    "answered twice": Said((size_and_id(10) + bytes(6)) * 2, "broker_unasked_response"),
    "a size that says too little": Said(size_and_id(4) + bytes(8), "broker_frame_size"),
    "more brokers than bytes": Said(metadata_9(uvarint(2**31) + bytes(8)), asked=METADATA_9),
    "a host longer than the frame": Said(
        metadata_9(uvarint(2) + bytes(4) + uvarint(2**30) + bytes(9)), asked=METADATA_9
    ),
    "three megabytes of nodes that do not exist": Said(  # a walk over all of them would take seconds
        metadata_9(uvarint(MANY + 1) + (struct.pack(">i", -1) + b"\1" + bytes(6)) * MANY), asked=METADATA_9
    ),
    "addresses that come after 4 MiB": Said(
        metadata_9(uvarint(2) + struct.pack(">i", 1) + uvarint(5 * MB) + bytes(5 * MB)), "broker_too_large", METADATA_9
    ),
    **{
        f"the address {host[:9]!r}:{port}": Said(metadata_response(7, (2, host, port)), "broker_address", METADATA_1)
        for host, port in (("kafka", 0), ("kafka", 65_536), ("\x1b[2J", 9092), ("x" * 300, 9092))
    },
    "more than may be": Said(size_and_id(5_001), "broker_frame_size", sizes=SIZES),
    "a large request": Said(b"", "frame_too_large", produce(1, 10_001), SIZES),
    "a large header": Said(b"", "header_too_large", request(3, 9, 1, b"\1\1\0\0", client_id="c" * 400), SIZES),
    "a large header's begin": Said(b"", "header_too_large", request(3, 9, 1, b"", client_id="c" * 9000)[:400], SIZES),
    "large ApiVersions": Said(b"", "pre_auth_too_large", request(API_VERSIONS, 3, 1, bytes(3000)), SIZES),
    "a large login": Said(b"", "sasl_too_large", request(36, 2, 1, bytes(3000)), SIZES),
}


@pytest.mark.parametrize("kind", SAID)
async def test_what_cannot_be_ends_its_connection_alone(kind: str) -> None:
    said = SAID[kind]
    handler = evil(said.data, api_key=scripted.frame_api(said.asked)) if said.data else answer
    seen_at_once = scripted.frame_api(said.asked) == EVIL and said.sizes is not SIZES
    async with through(handler, sizes=said.sizes) as (proxy, broker, _):
        client = await connect(proxy, said.asked)
        result = await ends(client)
        assert seen_at_once or result == b"", "nothing of an answer that is to be rewritten or too large"
        await closed_reason(proxy, "broker_malformed" if said.data else "client_malformed")
        assert proxy.counters.parse_errors[said.error] == 1, proxy.counters.parse_errors
        assert (said.asked in broker.received) == bool(said.data)
        await honest(proxy)


async def test_a_host_that_no_name_service_can_be_asked_for() -> None:
    """Its label is too long for a name: the client that is sent there finds no broker, and nothing breaks."""
    handler = evil(metadata_response(7, (2, "x" * 100 + ".example", 9092)), api_key=METADATA)
    async with through(handler) as (proxy, _, _):
        await until(lambda: proxy.cluster.reached)  # what it learns itself does not come in between
        await connect(proxy, METADATA_1)
        # The sidecar's own question is answered with another broker: this one has left, and its port is held.
        book = proxy.cluster.book
        await until(lambda: any(known.broker.node_id == 2 for known in book.known_ports(0.0)))
        (port,) = [known.port for known in book.known_ports(0.0) if known.broker.node_id == 2]
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(produce(1, 100))
            assert await stream.receive_some() == b"", "the end of the stream, not a reset"
        await closed_reason(proxy, "upstream_unreachable")
        assert not proxy.counters.connections.closed["internal_error"]


@pytest.mark.parametrize("throttle_ms", [-1, 2**31 - 1])
async def test_throttle_times_that_make_no_sense_mute_no_client(throttle_ms: int) -> None:
    async def throttling(stream: trio.SocketStream, frame: bytes) -> None:
        await stream.send_all(produce_response(int.from_bytes(frame[8:12], "big"), throttle_ms))

    async with through(throttling, quota=1e9) as (proxy, _, _):
        client = await connect(proxy)
        for number in range(3):
            assert await exchange(client, produce(number, 100)) == produce_response(number, throttle_ms)
        assert proxy.counters.connections.muted == 0


@pytest.mark.parametrize(
    ("api_key", "size", "piece", "pause_s", "reason"),
    [
        (EVIL, 2**31 - 1, MB, 0.0, "slow_reader"),  # as fast as it is taken; the client reads none of it
        (EVIL, 100_000, 1, 0.02, "slow_broker"),  # 50 bytes per second
        (METADATA, 100_000, 1, 0.02, "slow_broker"),
    ],
    ids=["endless", "dripping", "dripping and held"],
)
async def test_a_response_that_does_not_end(api_key: int, size: int, piece: int, pause_s: float, reason: str) -> None:
    sent = 0

    async def without_end(stream: trio.SocketStream, frame: bytes) -> None:
        nonlocal sent
        if scripted.frame_api(frame) != api_key:
            await answer(stream, frame)
            return
        await stream.send_all(size_and_id(size))
        while True:
            await stream.send_all(bytes(piece))
            sent += piece
            await trio.sleep(pause_s)

    async with through(without_end, stalls=QUICK, drain_timeout_s=0.5) as (proxy, _, _):
        client = await connect(proxy, METADATA_9 if api_key == METADATA else request(EVIL, 0, 7, b""))
        if reason == "slow_broker":
            await ends(client)
        await closed_reason(proxy, reason)
        assert sent < ON_THE_WAY_BYTES
        await honest(proxy)


async def test_closing_in_the_middle_of_a_frame() -> None:
    async with through(evil(size_and_id(1000) + bytes(100), close=True)) as (proxy, _, _):
        client = await connect(proxy, request(EVIL, 0, 7, b""))
        assert await ends(client) == size_and_id(1000) + bytes(100)
        await closed_reason(proxy, "broker_closed")
        await honest(proxy)


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Every file descriptor of this process is taken, under a limit that is low for the time being."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        with suppress(OSError):
            while True:
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


async def test_turns_clients_away_without_descriptors(capsys: pytest.CaptureFixture[str]) -> None:
    async with through(answer) as (proxy, _, _):
        await until(lambda: proxy.cluster.reached)  # its own question has given its descriptor back
        served = await connect(proxy, produce(1, 100))
        assert await read_frame(served) == produce_response(1)
        refused = [socket.socket() for _ in range(5)]  # their own descriptors, before there are none
        for each in refused:
            each.setblocking(False)
        with no_descriptors_left():
            for each in refused:
                assert each.connect_ex(("127.0.0.1", proxy.port)) in (0, 115)  # EINPROGRESS
            await until(lambda: proxy.counters.connections.closed["no_descriptors"] == 5)
            assert await exchange(served, produce(2, 100_000)) == produce_response(2)
            for each in refused:
                await trio.lowlevel.wait_readable(each)
                with suppress(ConnectionResetError):
                    assert each.recv(10) == b""  # closed, not left hanging
        for each in refused:
            each.close()
        await honest(proxy)  # it recovers by itself
        assert proxy.counters.accept_failures >= 1
    said = capsys.readouterr().out
    assert said.count("cannot accept") == 1  # not once per attempt


async def test_a_mute_without_a_descriptor_to_watch_the_client_with() -> None:
    async with through(answer, quota=1000.0) as (proxy, _, _):
        client = await connect(proxy, produce(1, 100))
        assert await read_frame(client) == produce_response(1)
        with no_descriptors_left():
            assert await exchange(client, produce(2, 11_000)) is not None
            await until(lambda: proxy.counters.connections.muted)
        assert await exchange(client, produce(3, 100)) is not None
        assert not proxy.counters.connections.closed["internal_error"]


AGE_S = 1.0


@pytest.mark.parametrize("sent_of_the_next", [0.0, 0.5, 1.0])
async def test_drained_connections_do_not_wait_for_their_mute(sent_of_the_next: float) -> None:
    """What was answered is answered; the next request was not forwarded, and the client sends it again."""
    async with through(answer, quota=1.0, drain_timeout_s=5) as (proxy, broker, _):
        client = await connect(proxy)
        following = produce(2, 1000)
        answered = await exchange(client, produce(1, 1000) + following[: round(sent_of_the_next * len(following))])
        assert int.from_bytes(answered[-4:], "big") > 29_000  # ms; the drain is much shorter, as by default
        proxy.drain()
        assert await client.receive_some() == b""
        await closed_reason(proxy, "drained")
        assert len(broker.received) == 1


async def test_idle_connections_end_by_their_age() -> None:
    async with through(answer, connections_max_age_s=AGE_S) as (proxy, _, _):
        began_s = trio.current_time()
        clients = [await connect(proxy) for _ in range(20)]
        await until(lambda: len(proxy._connections.open) == 20)
        assert len({connection.expires_s for connection in proxy._connections.open}) == 20, "not all at once"
        for client in clients:
            assert await exchange(client, produce(1, 100)) == produce_response(1)
        for client in clients:
            assert await client.receive_some() == b""
            assert trio.current_time() - began_s >= 0.8 * AGE_S
        await until(lambda: proxy.counters.connections.closed == {"max_age": 20})


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
        assert trio.current_time() - began_s >= 0.8 * AGE_S + 0.5
        await closed_reason(proxy, "max_age")
        assert answered == len(broker.received)


@pytest.mark.parametrize("kind", ["in flight", "half sent"])
async def test_a_begun_request_is_answered_first(kind: str) -> None:
    async def late(stream: trio.SocketStream, frame: bytes) -> None:
        await trio.sleep(1.3 * AGE_S if kind == "in flight" else 0)
        await answer(stream, frame)

    async with through(late, connections_max_age_s=AGE_S) as (proxy, _, _):
        client, frame = await connect(proxy), produce(1, 100)
        began_s = trio.current_time()
        if kind == "half sent":
            assert await exchange(client, frame) == produce_response(1)
            await client.send_all(frame[:50])
            await trio.sleep(1.3 * AGE_S)
        assert await exchange(client, frame[50 if kind == "half sent" else 0 :]) == produce_response(1)
        answered_s = trio.current_time()
        assert answered_s - began_s >= 1.3 * AGE_S
        assert await client.receive_some() == b""
        assert trio.current_time() - answered_s < (answered_s - began_s) / 2, "right after the answer"
        await closed_reason(proxy, "max_age")


async def test_a_muted_client_stays_until_its_mute_ends() -> None:
    async with through(answer, quota=1000, connections_max_age_s=AGE_S) as (proxy, _, _):
        client = await connect(proxy)
        began_s = trio.current_time()
        assert await exchange(client, produce(1, 11_300)) is not None
        (info,) = proxy.each_connection()
        assert info.state == "muted"
        mute_s = info.muted_for_ms / 1000
        assert mute_s > AGE_S
        assert await client.receive_some() == b""
        assert trio.current_time() - began_s >= mute_s
        await closed_reason(proxy, "max_age")
