"""Another broker at a broker's address, as after a pod's address is used again; scripted: just as it is dialled."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
import trio

from proxy.core.telemetry.observer import Counters
from proxy.net.listen.server import Proxy
from proxy.net.tls.handshakes import Handshakes
from proxy.net.upstream import node_checks
from proxy.net.upstream.cluster import Access
from proxy.net.upstream.dial import Dialer
from tests.support.scripted_broker import ScriptedBroker, answer, drained, limited, proxy_before, read_frame, until
from tests.support.session_tools import API_VERSIONS, produce, produce_response

NEW, OLD = {API_VERSIONS: (0, 5)}, {API_VERSIONS: (0, 4)}
"""Brokers from 4.4 on say which ones they are not."""


@asynccontextmanager
async def cluster(versions: dict[int, tuple[int, int]]) -> AsyncIterator[tuple[Proxy, list[ScriptedBroker]]]:
    """Brokers 1 and 2 of one cluster, both bootstrap servers, and a proxy that has learnt of them."""
    brokers = [ScriptedBroker(answer, node_id=number) for number in (1, 2)]
    async with limited() as nursery:
        for broker in brokers:
            await broker.listen(nursery)
            broker.offered |= versions
        introduce(*brokers)
        proxy = proxy_before(*(("127.0.0.1", broker.node_port) for broker in brokers), connect_timeout_s=2.0)
        await nursery.start(proxy.serve)
        await until(lambda: proxy.cluster.reached)
        yield proxy, brokers
        await drained(proxy)


def introduce(one: ScriptedBroker, two: ScriptedBroker) -> None:
    one.others, two.others = [(two.node_id, two.node_port)], [(one.node_id, one.node_port)]


async def ask(proxy: Proxy, node_id: int) -> bytes | None:
    port = next(local for number, _, _, local in proxy.cluster.all() if number == node_id)
    async with await trio.open_tcp_stream("127.0.0.1", port) as client:
        await client.send_all(produce(1, 100))
        return await read_frame(client)


async def test_many_connections_are_confirmed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(NEW) as (proxy, (one, two)):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask, proxy, 1)
        assert len(one.received) == 10
        assert (one.asked, two.asked) == ([("scripted", 1)], [])
        monkeypatch.setattr(node_checks, "FRESH_S", 0.0)
        proxy.cluster._checks._until.clear()  # as when it is no longer fresh
        for _ in range(2):
            assert await ask(proxy, 1) == produce_response(1)
        assert len(one.asked) == 3
        assert proxy.counters.node_checks == {"same": 3}


@pytest.mark.parametrize("found", ["unknown", "unanswered"])
async def test_without_an_answer_the_connection_is_used(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that cannot say, asked once, or that does not."""
    monkeypatch.setattr(node_checks, "LIMIT_S", 0.1 if found == "unanswered" else 5.0)
    async with cluster(OLD if found == "unknown" else NEW) as (proxy, (one, _)):
        if found == "unanswered":
            monkeypatch.setattr(one, "versions", lambda _frame: b"")
        before = one.accepted
        assert await ask(proxy, 1) == produce_response(1)
        assert proxy.counters.node_checks == {found: 1}
        if found == "unknown":
            assert await ask(proxy, 1) == produce_response(1)
            assert one.accepted == before + 3


async def test_a_broker_that_moved_is_reached_at_its_new_address() -> None:
    """Brokers 1 and 2 have each other's address; metadata that says so comes when the first connection is refused."""
    async with cluster(NEW) as (proxy, (one, two)):
        one.node_id, two.node_id = 2, 1
        introduce(one, two)
        with structlog.testing.capture_logs() as logs:
            assert await ask(proxy, 1) == produce_response(1)
        assert (len(one.received), len(two.received)) == (0, 1)
        assert proxy.counters.node_checks == {"other": 1, "same": 1}
        (line,) = [entry for entry in logs if entry["event"].startswith("a broker's address leads to another broker")]
        assert (line["broker"], line["found"], line["cluster_id"]) == (1, 2, "scripted")
        assert line["address"] == f"127.0.0.1:{one.node_port}"


async def test_a_cluster_that_was_made_again_is_taken() -> None:
    """Under the same addresses, with another id: no bootstrap server answers for the known one."""
    async with cluster(NEW) as (proxy, brokers):
        for broker in brokers:
            broker.cluster_id = "new"
        with structlog.testing.capture_logs() as logs:
            assert await ask(proxy, 1) == produce_response(1)
        changed = [entry for entry in logs if entry["event"] == "the cluster's id changed"]
        assert [(entry["cluster_id"], entry["before"]) for entry in changed] == [("new", "scripted")]
        assert brokers[0].asked[-1] == ("new", 1)


async def test_what_is_kept_of_brokers_that_left_is_bounded() -> None:
    counters = Counters()
    dialer = Dialer(1.0, None, counters, Handshakes(counters), list)
    checks = node_checks.NodeChecks(Access(1.0), dialer, list)
    for node_id in range(10 * node_checks.MAX_NODES):
        checks._note(node_id, "127.0.0.1", 9092, node_checks.FRESH_S, same=True)
    assert 0 < len(checks._until) <= node_checks.MAX_NODES
