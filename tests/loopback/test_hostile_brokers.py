"""A broker that means no good, scripted: its connection ends with a reason, no other one does, memory stays bounded."""

import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest
import trio

from proxy.core.wire.primitives import uvarint
from tests.loopback.test_limits import QUICK, ends, honest
from tests.support.scripted_broker import answer, closed_reason, connect, exchange, frame_api, through, until
from tests.support.session_tools import METADATA, metadata_response, produce, produce_response, request

EVIL = 999
"""API key of the requests that the broker answers badly; Produce it answers well."""
MB = 1_000_000
KERNEL_BYTES = 24 * MB


def size_and_id(size: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">ii", size, correlation_id)


def evil(said: bytes, *, api_key: int = EVIL, close: bool = False) -> Callable[..., Awaitable[None]]:
    async def handler(stream: trio.SocketStream, frame: bytes) -> None:
        if frame_api(frame) != api_key:
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


class Said(NamedTuple):
    """What the broker says, to which request, and the error that is counted for it."""

    data: bytes
    error: str = "response_malformed"
    asked: bytes = request(EVIL, 0, 7, b"")


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
}


@pytest.mark.parametrize("kind", SAID)
async def test_an_answer_that_cannot_be_ends_its_connection_alone(kind: str) -> None:
    said = SAID[kind]
    async with through(evil(said.data, api_key=frame_api(said.asked))) as (proxy, _, _):
        client = await connect(proxy, said.asked)
        result = await ends(client)
        assert frame_api(said.asked) == EVIL or result == b"", "nothing of an answer that is to be rewritten"
        await closed_reason(proxy, "broker_malformed")
        assert proxy.counters.parse_errors[said.error] == 1, proxy.counters.parse_errors
        await honest(proxy)


async def test_a_host_that_no_name_service_can_be_asked_for() -> None:
    """Its label is too long for a name: the client that is sent there finds no broker, and nothing breaks."""
    async with through(evil(metadata_response(7, (2, "x" * 100 + ".example", 9092)), api_key=METADATA)) as (
        proxy,
        _,
        _,
    ):
        await until(lambda: proxy.cluster.reached)  # what it learns itself does not come in between
        await connect(proxy, METADATA_1)
        # The sidecar's own question is answered with another broker: this one has left, and its port is held.
        await until(lambda: any(known.broker.node_id == 2 for known in proxy.cluster.known_ports()))
        (port,) = [known.port for known in proxy.cluster.known_ports() if known.broker.node_id == 2]
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
        if frame_api(frame) != api_key:
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
        assert sent < KERNEL_BYTES
        await honest(proxy)


async def test_closing_in_the_middle_of_a_frame() -> None:
    async with through(evil(size_and_id(1000) + bytes(100), close=True)) as (proxy, _, _):
        client = await connect(proxy, request(EVIL, 0, 7, b""))
        assert await ends(client) == size_and_id(1000) + bytes(100)
        await closed_reason(proxy, "broker_closed")
        await honest(proxy)
