"""Clients that close while their requests wait: not forwarded, not charged, and nobody waits for them (ADR 0026)."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from proxy.core.wire import requests
from proxy.core.wire.apis import OF_TRANSACTIONS
from proxy.net.listen.server import Proxy
from quota.entity import DEFAULT, Kind
from quota.gate import MAX_KEPT
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.scripted_broker import ScriptedBroker, answer, through, until
from tests.support.session_tools import produce, request

RATE = 100_000
LEAVE_GROUP = 13
UNREAD_BYTES = 400_000
"""More than a socket's receive window holds at first, and with it the client's own send buffer has room for it."""


@contextmanager
def connection(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * UNREAD_BYTES)
        one.settimeout(15)
        one.connect(("127.0.0.1", proxy.port))
        yield one


def frames(broker: ScriptedBroker, client_id: str) -> list[int]:
    """The correlation ids of what this client's requests brought to the broker."""
    headers = [requests.parse_request_header(memoryview(frame), 0, len(frame), 1 << 24) for frame in broker.received]
    return [header.correlation_id for header in headers if header is not None and header.client_id == client_id]


def told_ms(client: socket.socket) -> int:
    """The throttle time of the next Produce response, its last field."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        part = client.recv(1000)
        assert part, "closed"
        data += part
    return int.from_bytes(data[-4:], "big")


def amount(ledger: Ledger, client_id: str) -> float:
    return ledger.account("ANONYMOUS", client_id).meter(Kind.PRODUCE).amount


def ledger_per_client() -> Ledger:
    return Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=RATE)]), max_throttle_ms=60_000)


async def test_a_queued_request_of_a_gone_client_is_dropped() -> None:
    """Its end lies behind 400 kB, 4 s worth: the next one is answered when the debt is paid, as if it had not been."""
    ledger = ledger_per_client()
    took_s: dict[str, float] = {}
    async with through(answer, ledger=ledger) as (proxy, broker, _):

        def talk(name: str) -> None:
            begun_s = time.monotonic()
            with connection(proxy) as gone:
                if name == "gone":
                    gone.sendall(produce(1, UNREAD_BYTES, client_id=name))
                time.sleep(0.3)
            time.sleep(0.2)
            with connection(proxy) as client:
                client.sendall(produce(2, 10_000, client_id=name))
                told_ms(client)
            took_s[name] = time.monotonic() - begun_s

        async with trio.open_nursery() as both:
            for name in ("gone", "clean"):
                owed = ledger.account("ANONYMOUS", name)
                ledger.charge(owed, Kind.PRODUCE, 12.5 * RATE, trio.current_time() * 1000)
                both.start_soon(trio.to_thread.run_sync, talk, name)
        assert (frames(broker, "gone"), amount(ledger, "gone")) == ([2], 12.5 * RATE + 10_000)
        assert 2.2 <= took_s["gone"] < 1.5 * took_s["clean"]


async def test_a_gone_muted_client_is_not_waited_for() -> None:
    """The next client's throttle is the same as if nothing was unread on the muted connection of a closed client."""
    ledger = ledger_per_client()
    result: dict[str, list[int]] = {"clean": [], "unread": []}
    async with through(answer, ledger=ledger) as (proxy, broker, _):

        def talk(name: str) -> None:
            with connection(proxy) as gone:
                for number, told_at_once in ((0, 0), (1, 2500)):
                    gone.sendall(produce(number, int(6.25 * RATE), client_id=name))
                    assert told_ms(gone) == pytest.approx(told_at_once, abs=200)
                if name == "unread":
                    gone.sendall(produce(2, UNREAD_BYTES, client_id=name))
                time.sleep(0.3)
            for number in (3, 4):
                with connection(proxy) as client:
                    client.sendall(produce(number, 10_000, client_id=name))
                    result[name].append(told_ms(client))

        async with trio.open_nursery() as both:
            for name in result:
                both.start_soon(trio.to_thread.run_sync, talk, name)
        assert frames(broker, "clean") == [0, 1, 3, 4] == frames(broker, "unread")
        assert amount(ledger, "unread") == amount(ledger, "clean")
    assert result["unread"] == pytest.approx(result["clean"], rel=0.05)


@pytest.mark.parametrize(("api_key", "version"), [*((key, 0) for key in sorted(OF_TRANSACTIONS)), (LEAVE_GROUP, 0)])
async def test_transaction_requests_of_a_gone_muted_client_are_dropped(api_key: int, version: int) -> None:
    """The client has sent them again, and begun the next transaction, before the mute ends. It leaves a group once."""
    async with through(answer, ledger=ledger_per_client()) as (proxy, broker, _):

        def talk() -> None:
            with connection(proxy) as gone:
                gone.sendall(produce(0, int(10.6 * RATE)))
                assert told_ms(gone) == pytest.approx(600, abs=200)
                gone.sendall(request(api_key, version, 1, b"\0\1t" * 8))

        await trio.to_thread.run_sync(talk)
        await until(lambda: not list(proxy.each_connection()))
        assert frames(broker, "c") == ([0, 1] if api_key == LEAVE_GROUP else [0])


async def test_requests_that_need_no_answer_are_still_forwarded() -> None:
    ledger = ledger_per_client()
    async with through(answer, ledger=ledger) as (proxy, broker, _):

        def talk() -> None:
            with connection(proxy) as gone:
                gone.sendall(produce(1, UNREAD_BYTES, acks=0))

        ledger.charge(ledger.account("ANONYMOUS", "c"), Kind.PRODUCE, 11 * RATE, trio.current_time() * 1000)
        await trio.to_thread.run_sync(talk)
        await until(lambda: ledger.kept.requests == 1)
        assert UNREAD_BYTES <= ledger.kept.bytes <= UNREAD_BYTES + 2000
        await until(lambda: frames(broker, "c") == [1])
        await until(lambda: not list(proxy.each_connection()))
        assert (ledger.kept.requests, ledger.kept.bytes) == (0, 0)
        assert amount(ledger, "c") == 11 * RATE + UNREAD_BYTES


@pytest.mark.parametrize("debt_s", [9, 300])
async def test_acks_0_and_close_leaves_room_for_others(debt_s: int) -> None:
    """600 connections where 100 are allowed: those whose turn comes within 10 s are kept, up to a number."""
    ledger = ledger_per_client()
    async with through(answer, ledger=ledger, max_connections=100) as (proxy, broker, _):

        def look() -> tuple[int, int]:
            return len(list(proxy.each_connection())), ledger.kept.requests

        def attack() -> tuple[int, list[tuple[int, int]]]:
            served, seen = 0, []
            for number in range(600):
                with socket.create_connection(("127.0.0.1", proxy.port)) as one:
                    one.sendall(produce(number, 4000, acks=0, client_id="attacker"))
                if number % 20 == 0:
                    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as one:
                        one.sendall(produce(number, 100, client_id="honest"))
                        told_ms(one)
                        served += 1
                    seen.append(trio.from_thread.run_sync(look))
            return served, seen

        owed = ledger.account("ANONYMOUS", "attacker")
        for _ in range(10 + debt_s):  # one by one: a large charge is paid apart
            ledger.charge(owed, Kind.PRODUCE, RATE, trio.current_time() * 1000)
        await until(lambda: broker.accepted == 1)  # the proxy's own question
        with socket.create_connection(("127.0.0.1", proxy.port)) as same_group:
            same_group.sendall(produce(1000, 4000, client_id="attacker", timeout_ms=600_000))
            served, seen = await trio.to_thread.run_sync(attack)
            assert served == 30
            connections, kept = zip(*seen, strict=True)
            assert max(connections) < 100, "room is left for others throughout"
            assert max(kept) <= MAX_KEPT
            if debt_s > 10:
                assert max(kept) == 0
                assert broker.accepted == 1 + served, "no broker is dialled for those that wait"
                everyone = 1 + served + 600
                await until(lambda: proxy.counters.connections.opened == everyone and look() == (1, 0))
                ledger.swap(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=1000 * RATE)]))
            await until(lambda: frames(broker, "attacker"))
            assert frames(broker, "attacker")[0] == 1000
            await until(lambda: not ledger.kept.requests)
        assert proxy.counters.connections.closed["max_connections"] == 0
