"""Limits of what peers may use, on real sockets before a scripted broker: each has its close reason."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import trio

from proxy.core.session.sizes import SizeLimits
from proxy.net.io.kernel import send_queue
from proxy.net.listen.server import Proxy
from proxy.net.listen.spare_fd import KEPT_FREE, SpareFd, most_connections
from proxy.net.settings import StallLimits
from tests.support.scripted_broker import answer, closed_reason, connect, never_answer, read_frame, through, until
from tests.support.session_tools import API_VERSIONS, produce, produce_response, request

QUICK = StallLimits(pre_auth_timeout_s=60.0, stall_timeout_s=0.5, min_bytes_per_s=1000.0)
PATIENT = replace(QUICK, stall_timeout_s=2.0)
"""For clients that must not be cut off: as long as this process is not stopped for two seconds, they are not."""
MB = 1_000_000


async def honest(proxy: Proxy, rounds: int = 3) -> None:
    """Another client of the same sidecar is served."""
    stream = await connect(proxy)
    for number in range(rounds):
        await stream.send_all(produce(number, 100))
        assert await read_frame(stream) == produce_response(number)


async def ends(stream: trio.SocketStream) -> bytes:
    """What comes until the sidecar closes the connection."""
    said = b""
    try:
        while part := await stream.receive_some(65_536):
            said += part
    except trio.BrokenResourceError:
        pass  # reset, because not all that we sent had been read
    return said


# ---- times ----------------------------------------------------------------------------------------------------------


async def test_half_a_request_is_not_waited_for_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    async with through(answer, stalls=QUICK) as (proxy, _, _):
        client = await connect(proxy)
        await client.send_all(produce(1, 1000)[:500])
        await honest(proxy)
        assert await ends(client) == b""
        await closed_reason(proxy, "slow_request")
    assert "slow_request" in capsys.readouterr().out


async def test_a_request_over_a_slow_line_has_all_the_time_it_needs() -> None:
    async with through(answer, stalls=PATIENT) as (proxy, _, _):
        client = await connect(proxy)
        frame = produce(1, 80_000)
        for at in range(0, len(frame), 1000):  # 10 000 bytes per second, 8 s in all: four times the timeout
            await client.send_all(frame[at : at + 1000])
            await trio.sleep(0.1)
        assert await read_frame(client) == produce_response(1)
        assert not proxy.counters.connections_closed["slow_request"]


async def test_a_muted_client_is_no_slow_one() -> None:
    """Throttled for longer than the timeout, with half of its next request on its way."""
    async with through(answer, stalls=PATIENT, quota=1000.0) as (proxy, _, _):
        client = await connect(proxy)
        await client.send_all(produce(1, 16_000) + produce(2, 200)[:100])
        first = await read_frame(client)
        assert first is not None
        assert int.from_bytes(first[-4:], "big") > 5000  # the mute, in ms
        await trio.sleep(3.0)
        assert proxy.counters.connections_muted == 1
        await client.send_all(produce(2, 200)[100:])
        second = await read_frame(client)
        assert second is not None
        assert second[4:8] == (2).to_bytes(4, "big")


async def test_a_broker_may_take_its_time_before_it_answers() -> None:
    async def later(stream: trio.SocketStream, frame: bytes) -> None:
        await trio.sleep(1.5)
        await answer(stream, frame)

    async with through(later, stalls=QUICK) as (proxy, _, _):
        client = await connect(proxy)
        await client.send_all(produce(1, 100))
        assert await read_frame(client) == produce_response(1)


@pytest.mark.parametrize("first", [produce(1, 100), request(API_VERSIONS, 0, 1, b"")], ids=["Produce", "ApiVersions"])
async def test_a_client_that_never_comes_to_a_request_is_let_go(first: bytes) -> None:
    """One that has asked ApiVersions may have opened a connection to use it later: clients do."""
    limits = replace(QUICK, pre_auth_timeout_s=0.5)
    async with through(answer, stalls=limits) as (proxy, _, _):
        client, other = await connect(proxy), await connect(proxy)
        await other.send_all(first)
        assert await read_frame(other) == produce_response(1)  # whatever it is asked
        await ends(client)
        await closed_reason(proxy, "pre_auth_timeout")
        await trio.sleep(2.0)
        await other.send_all(produce(2, 100))  # idle for longer, but it has been a client
        assert await read_frame(other) == produce_response(2)


# ---- sizes ----------------------------------------------------------------------------------------------------------

SIZES = SizeLimits(max_frame_bytes=10_000, max_header_bytes=300, max_response_bytes=5_000, pre_auth_max_bytes=2_000)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (produce(1, 10_001), "frame_too_large"),
        (request(3, 9, 1, b"\1\1\0\0", client_id="c" * 400), "header_too_large"),
        (request(API_VERSIONS, 3, 1, bytes(3000)), "pre_auth_too_large"),
        (request(36, 2, 1, bytes(3000)), "sasl_too_large"),
    ],
)
async def test_what_is_too_large_ends_only_its_own_connection(frame: bytes, kind: str) -> None:
    async with through(answer, sizes=SIZES) as (proxy, broker, _):
        client = await connect(proxy)
        await client.send_all(frame)
        assert await ends(client) == b""
        await closed_reason(proxy, "client_malformed")
        assert proxy.counters.parse_errors[kind] == 1
        assert frame not in broker.received
        await honest(proxy)


async def test_refuses_dripping_oversized_header_at_once() -> None:
    """Its client-id announces 30 000 bytes; the limit is 300."""
    async with through(answer, sizes=SIZES) as (proxy, _, _):
        client = await connect(proxy)
        await client.send_all(request(3, 9, 1, b"", client_id="c" * 9000)[:400])
        assert await ends(client) == b""
        assert proxy.counters.parse_errors["header_too_large"] == 1


async def test_a_response_above_the_limit_is_not_passed_on() -> None:
    async def large(stream: trio.SocketStream, frame: bytes) -> None:
        await stream.send_all(struct.pack(">ii", 5_001, int.from_bytes(frame[8:12], "big")))

    async with through(large, sizes=SIZES) as (proxy, _, _):
        client = await connect(proxy)
        await client.send_all(request(999, 0, 7, b""))
        assert await ends(client) == b""
        await closed_reason(proxy, "broker_malformed")
        assert proxy.counters.parse_errors["broker_frame_size"] == 1


# ---- numbers --------------------------------------------------------------------------------------------------------


async def test_more_connections_than_allowed_are_closed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    async with through(answer, max_connections=2) as (proxy, _, _):
        first, second = await connect(proxy), await connect(proxy)
        await until(lambda: len(list(proxy.each_connection())) == 2)
        third = await connect(proxy)
        assert await ends(third) == b""
        await closed_reason(proxy, "max_connections")
        await first.aclose()
        await until(lambda: len(list(proxy.each_connection())) == 1)
        await honest(proxy)
        await second.aclose()
    assert "max_connections" in capsys.readouterr().out


def test_no_more_connections_than_descriptors_allow() -> None:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections(2**31 - 1, listeners=0) == (descriptors - KEPT_FREE) // 2
    assert most_connections(2**31 - 1, listeners=100) == (descriptors - KEPT_FREE - 100) // 2
    assert most_connections(2**31 - 1, listeners=descriptors) == 0
    assert most_connections(3, listeners=100) == 3


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Every file descriptor of this process is taken, under a limit that is low for the time being."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_turns_clients_away_without_descriptors(capsys: pytest.CaptureFixture[str]) -> None:
    async with through(answer) as (proxy, _, _):
        await until(lambda: proxy.cluster_reached)  # its own question has given its descriptor back
        served = await connect(proxy)
        await served.send_all(produce(1, 100))
        assert await read_frame(served) == produce_response(1)
        refused = [socket.socket() for _ in range(5)]  # their own descriptors, before there are none
        for each in refused:
            each.setblocking(False)
        with no_descriptors_left():
            for each in refused:
                assert each.connect_ex(("127.0.0.1", proxy.port)) in (0, 115)  # EINPROGRESS
            await until(lambda: proxy.counters.connections_closed["no_descriptors"] == 5)
            await served.send_all(produce(2, 100_000))
            assert await read_frame(served) == produce_response(2)
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
        client = await connect(proxy)
        await client.send_all(produce(1, 100))
        assert await read_frame(client) == produce_response(1)
        with no_descriptors_left():
            await client.send_all(produce(2, 13_000))
            assert await read_frame(client) is not None
            await until(lambda: proxy.counters.connections_muted)
        await client.send_all(produce(3, 100))
        assert await read_frame(client) is not None
        assert not proxy.counters.connections_closed["internal_error"]


def test_the_reserve_is_there_again_after_it_was_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        reserve = SpareFd()
        with socket.create_connection(listener.getsockname()) as client, no_descriptors_left():
            assert reserve.turn_away(listener)
            assert client.recv(1) == b""
            assert not reserve.turn_away(listener)  # no connection waits
            assert reserve.refill()
        reserve.close()


# ---- the kernel's view ----------------------------------------------------------------------------------------------


def test_the_kernel_tells_what_a_peer_has_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as writer, listener.accept()[0] as reader:
            writer.setblocking(False)
            assert send_queue(writer) == (0, 0) or send_queue(writer)[1] <= 1  # the handshake may count as one
            written = 0
            try:
                while True:
                    written += writer.send(bytes(65_536))
            except BlockingIOError:
                pass
            full = send_queue(writer)
            assert full.unsent_bytes > 0
            assert 0 < full.acked_bytes <= written
            reader.setblocking(True)
            left = written
            while left:
                left -= len(reader.recv(1 << 20))
        assert send_queue(writer) == (0, 0)  # closed


async def test_requests_beyond_the_in_flight_limit_wait() -> None:
    async with through(never_answer, max_in_flight=5, drain_timeout_s=0.2) as (proxy, broker, _):
        client = await connect(proxy)
        await client.send_all(b"".join(produce(number, 100) for number in range(20)))
        await until(lambda: len(broker.received) == 5)
        await trio.sleep(0.2)
        assert len(broker.received) == 5
        assert next(iter(proxy.each_connection())).in_flight == 5
