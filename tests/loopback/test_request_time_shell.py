"""Busy time through real sockets and the real event loop, before a broker that is busy for as long as the test says."""

from __future__ import annotations

import time

import pytest
import trio

from proxy.core.session.request_time import HANDOVER_MS
from proxy.net.io import host
from proxy.net.io.loop import EventLoop
from quota.entity import ANONYMOUS, Kind
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.scripted_broker import answer, connect, read_frame, through
from tests.support.session_tools import produce, produce_response

BUSY_S = 0.05
LATE_S = 0.1


def charged_ms(ledger: Ledger) -> float:
    return ledger.account(ANONYMOUS, "c").meters[Kind.REQUEST].amount


async def test_charges_response_time_less_the_round_trip() -> None:
    async def busy(stream: trio.SocketStream, frame: bytes) -> None:
        await trio.sleep(BUSY_S)
        await answer(stream, frame)

    ledger = Ledger(QuotaTable())
    async with through(busy, ledger=ledger) as (proxy, _, _nursery):
        client = await connect(proxy)
        began_s = time.perf_counter()
        await client.send_all(produce(1, 100))
        assert await read_frame(client) == produce_response(1)
        took_ms = (time.perf_counter() - began_s) * 1000
        (connection,) = proxy._connections.open
        round_trip_ms = connection.session.state.request_time.round_trip_ms
        assert 0 < round_trip_ms < took_ms  # as the kernel saw it when the sidecar connected
        assert BUSY_S * 1000 - HANDOVER_MS - round_trip_ms - 1 <= charged_ms(ledger) <= took_ms


@pytest.mark.parametrize("splice_min_bytes", [1, 32_768])
async def test_a_large_request_is_charged_from_its_last_byte_on(splice_min_bytes: int) -> None:
    ledger = Ledger(QuotaTable())
    async with through(answer, ledger=ledger) as (proxy, broker, _):
        proxy._shared.splice_min_bytes = splice_min_bytes
        client = await connect(proxy)
        frame = produce(1, 200_000)
        await client.send_all(frame[:100_000])
        await trio.sleep(0.3)
        assert not broker.received
        last_s = time.perf_counter()
        await client.send_all(frame[100_000:])
        assert await read_frame(client) == produce_response(1)
        assert charged_ms(ledger) <= (time.perf_counter() - last_s) * 1000


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
                await client.send_all(produce(number, 100))
                await read_frame(client)
                charges.append(charged_ms(ledger) - before_ms)
            # On a machine with much to do the loop may seem to have waited, now and then, and to be in time.
            assert sorted(charges)[len(charges) // 2] < LATE_S * 1000 / 2

    loop = EventLoop()
    host.run(main, loop)
