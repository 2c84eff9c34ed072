"""The trio shell when brokers are silent, gone or elsewhere: nothing stays behind, and the cluster is found again."""

import json
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from proxy.app.sources import follow, known_ports
from proxy.app.sources.known_ports import keep_ports, ports_before
from proxy.core.errors import CloseReason
from proxy.net.listen import cluster_brokers, sweeper
from proxy.net.listen.server import Proxy
from proxy.net.listen.sweeper import PORTION
from proxy.net.settings import ProxySettings
from proxy.net.upstream import resolver
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.lab.kafka.ports import free_ports
from tests.support import scripted_broker as scripted
from tests.support.scripted_broker import ScriptedBroker, answer, connect, limited, proxy_before, read_frame, until
from tests.support.session_tools import produce, produce_response


@pytest.mark.parametrize("handler", [scripted.never_answer, scripted.flood_reader])
async def test_client_leaving_silent_broker_leaves_nothing_behind(handler: Any) -> None:
    async with scripted.through(handler, drain_timeout_s=0.3, connections_max_idle_s=3600.0) as (proxy, broker, _):
        client = await connect(proxy, produce(1, 100))
        await until(lambda: broker.received or broker.streams)
        await trio.sleep(0.7)
        assert not proxy.counters.connections.closed, "as long as the client waits, so do we"
        await client.aclose()
        await scripted.closed_reason(proxy, "broker_silent")
        assert not list(proxy.each_connection())


async def test_takes_muted_client_that_left_at_its_time() -> None:
    """acks=0 and gone: what it has sent is for the broker all the same, after a mute much longer than any timeout."""
    settings = {"drain_timeout_s": 0.2, "connections_max_idle_s": 3600.0, "quota": 100.0}
    async with scripted.through(scripted.never_answer, **settings) as (proxy, broker, _):
        client = await connect(proxy)
        # Muted: (1100 - 100 B/s * 10 s) / 100 B/s = 1 s and a little.
        await client.send_all(produce(1, 1100, acks=0) + produce(2, 50, acks=0))
        await client.aclose()
        await until(lambda: len(broker.received) == 2)
        await scripted.closed_reason(proxy, "client_closed")


async def ask(port: int) -> bytes | None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(produce(1, 100))
        return await read_frame(stream)


async def test_when_no_bootstrap_server_answers_known_brokers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[bytes, int] = {}

    def look_up(host: bytes, port: int, *_rest: Any) -> list[Any]:
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", names[host]))]

    broker = ScriptedBroker(answer)
    monkeypatch.setattr(resolver.Resolver.__init__, "__defaults__", (look_up,))
    monkeypatch.setattr(cluster_brokers, "REFRESH_S", 0.1)
    async with limited() as nursery:
        await broker.listen(nursery)
        names[b"kafka.example"] = broker.node_port
        proxy = proxy_before(("kafka.example", 9092))
        await nursery.start(proxy.serve)
        await until(lambda: proxy.cluster.reached)
        assert await ask(proxy.port) == produce_response(1)
        names.clear()  # the name is gone; broker 1 named itself by its address
        assert await ask(proxy.port) == produce_response(1)
        assert proxy.counters.upstream_connect_failures == 1
        assert await ask(proxy.port) == produce_response(1)
        assert proxy.counters.upstream_connect_failures == 1, "what worked last time is tried first"
        await trio.sleep(0.3)
        assert proxy.cluster.reached, proxy.cluster.last_error


async def test_keeps_asking_a_cluster_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty pauses that doubled would take two hours."""
    asked = 0
    ask_brokers = cluster_brokers.ask_brokers

    async def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask_brokers(*arguments)

    monkeypatch.setattr(cluster_brokers, "ask_brokers", counted)
    monkeypatch.setattr(cluster_brokers, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(cluster_brokers, "LAST_RETRY_S", 0.05)
    (port,) = free_ports(1)
    async with limited() as nursery:
        proxy = proxy_before(("127.0.0.1", port))
        await nursery.start(proxy.serve)
        await until(lambda: asked >= 20)
        assert not proxy.cluster.reached


async def test_looks_for_moved_broker_as_soon_as_it_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour between two looks at the cluster: only the failed connection can be why the new address is found."""
    monkeypatch.setattr(cluster_brokers, "REFRESH_S", 3600.0)
    async with limited() as nursery:
        service, moving = ScriptedBroker(answer), ScriptedBroker(answer)
        await service.listen(nursery)  # stands for a name that always leads to some broker
        end = await moving.listen(nursery)
        bootstrap = service.node_port
        service.node_port = moving.node_port
        proxy = proxy_before(("127.0.0.1", bootstrap))
        await nursery.start(proxy.serve)
        await until(lambda: proxy.cluster.reached)
        ((_, _, _, local),) = proxy.cluster.all()
        assert await ask(local) == produce_response(1)
        end()
        moved = ScriptedBroker(answer)
        await moved.listen(nursery)
        service.node_port = moved.node_port
        assert await ask(local) is None
        await until(lambda: proxy.cluster.all()[0][2] == moved.node_port)
        assert await ask(local) == produce_response(1)


async def test_connections_that_end_during_a_sweep_harm_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with half a request, so that the kernel is asked what has come on its socket, which is closed by then."""
    async with scripted.through(answer) as (proxy, _, _):
        clients = [await connect(proxy) for _ in range(2 * PORTION)]
        for client in clients:
            await client.send_all(produce(1, 100)[:50])
        await until(lambda: sum(not one.session.client_at_boundary for one in proxy._connections.open) == len(clients))
        given_way = 0

        async def others() -> None:
            nonlocal given_way
            given_way += 1
            for connection in list(proxy._connections.open):
                connection.abort(CloseReason.IDLE)
            await until(lambda: not proxy._connections.open)

        with monkeypatch.context() as patch:
            patch.setattr(sweeper, "give_way", others)
            await proxy._sweeper._sweep(trio.current_time(), 0.1)
        assert given_way >= 1  # more often on a busy machine: the sweeper's own turn comes meanwhile
        assert proxy.counters.connections.closed == {"idle": len(clients)}
        async with await connect(proxy) as client:
            await client.send_all(produce(2, 100))
            assert await read_frame(client) == produce_response(2)


async def test_leaves_a_bootstrap_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped broker: its kernel still accepts. The sidecar's own questions show which server answers."""
    monkeypatch.setattr(cluster_brokers, "REFRESH_S", 0.2)
    monkeypatch.setattr(cluster_brokers, "SHORTEST_REFRESH_S", 0.2)
    first, second = ScriptedBroker(answer), ScriptedBroker(answer, node_id=2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        async with limited() as nursery:
            await first.listen(nursery)
            await second.listen(nursery)
            first.others, second.others = [(2, second.node_port)], [(1, first.node_port)]
            addresses = [("127.0.0.1", broker.node_port) for broker in (first, second)]
            proxy = proxy_before(stopped.getsockname(), *addresses, connect_timeout_s=0.5)
            await nursery.start(proxy.serve)
            await until(lambda: proxy.cluster.reached)
            assert await ask(proxy.port) == produce_response(1)
            assert (len(first.received), len(second.received)) == (1, 0)
            first.handler = scripted.never_answer  # it is stopped as well
            monkeypatch.setattr(first, "versions", lambda _frame: b"")
            await until(lambda: second.accepted >= 2)  # asked twice, so the first answer has been read
            assert await ask(proxy.port) == produce_response(1)
            assert len(second.received) == 1


async def test_refuses_its_own_connections() -> None:
    """`upstream.bootstrap` leads to the sidecar itself, by an address or a name that it has."""
    port, first = free_ports(2)
    settings = ProxySettings("0.0.0.0", port, range(first, first + 4), (("127.0.0.1", port),))
    proxy = Proxy(settings, Ledger(QuotaTable()))
    with capture_logs() as lines:
        async with limited() as nursery:
            await nursery.start(proxy.serve)
            assert await ask(port) is None
            await until(lambda: proxy.cluster.last_error)
            assert proxy.counters.connections.closed["upstream_unreachable"] >= 2
            assert proxy.counters.connections.opened < 10
            assert any(f"127.0.0.1:{port} leads to this sidecar" in str(line.get("error")) for line in lines)


async def test_refuses_what_comes_back_through_a_balancer() -> None:
    """A bootstrap server's address, then the one that a broker advertises, lead to the sidecar from elsewhere."""
    broker, targets = ScriptedBroker(answer), {"bootstrap": 0, "broker": 0}

    async def carry(name: str, near: trio.SocketStream) -> None:
        async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                async for data in source:
                    await sink.send_all(data)
                await sink.send_eof()

        far = await trio.open_tcp_stream("127.0.0.1", targets[name])
        async with near, far, trio.open_nursery() as both:
            both.start_soon(pump, near, far)
            both.start_soon(pump, far, near)

    with capture_logs() as lines:
        async with limited() as nursery:
            await broker.listen(nursery)
            ports = {}
            for name in targets:
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                ports[name] = listeners[0].socket.getsockname()[1]
                nursery.start_soon(trio.serve_listeners, partial(carry, name), listeners)
            broker.others = [(2, ports["broker"])]
            proxy = proxy_before(("127.0.0.1", ports["bootstrap"]))
            await nursery.start(proxy.serve)
            targets["bootstrap"] = proxy.port
            text = f"127.0.0.1:{ports['bootstrap']} leads to this sidecar: expected a broker"
            await until(lambda: proxy.cluster.last_error == text)
            assert await ask(proxy.port) is None
            targets["bootstrap"] = broker.node_port
            await until(lambda: proxy.cluster.reached)
            assert await ask(proxy.port) == produce_response(1)
            (targets["broker"],) = [local or 0 for number, _, _, local in proxy.cluster.all() if number == 2]
            assert [await ask(targets["broker"]), await ask(targets["broker"])] == [None, None]
            text = f"cannot connect to broker broker 2: 127.0.0.1:{ports['broker']} leads to this sidecar"
            assert any(text in str(line.get("error")) for line in lines)
            assert proxy.counters.connections.opened < 20


async def test_the_file_of_ports_follows_the_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ports, "BETWEEN_WRITES_S", 0.01)
    path = tmp_path / "ports.json"
    async with scripted.through(answer) as (proxy, broker, nursery):
        nursery.start_soon(keep_ports, path, proxy)
        await until(path.exists)
        (local,) = [local for *_, local in proxy.cluster.all()]
        assert json.loads(path.read_bytes())["ports"] == [
            {"port": local, "broker": 1, "host": "127.0.0.1", "broker_port": broker.node_port, "until": None}
        ]
        assert ports_before(str(path)) == proxy.cluster.book.known_ports(trio.current_time())
        broker.node_port += 1  # it moves, and a client's connection that fails makes the sidecar ask
        assert local is not None
        proxy.cluster._look_again.set()
        await until(lambda: f'"broker_port":{broker.node_port}'.encode() in path.read_bytes())


async def test_unusable_files_of_ports_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text('{"version": 1, "ports": [{}]}')
    assert ports_before(str(tmp_path / "bad.json")) == []
    assert capsys.readouterr().out.count("ports.0.port: Field required") == 1
    monkeypatch.setattr(known_ports, "BETWEEN_WRITES_S", 0.01)
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 0.05)
    path = tmp_path / "missing" / "ports.json"
    async with scripted.through(answer) as (proxy, _, nursery):
        nursery.start_soon(keep_ports, path, proxy)
        await until(lambda: proxy.cluster.reached)
        await trio.sleep(0.3)
        path.parent.mkdir()
        await until(path.exists)
    assert capsys.readouterr().out.count("the ports of brokers cannot be stored") == 1
