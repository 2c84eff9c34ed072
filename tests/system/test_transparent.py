"""Transparent interception with real rules before a scripted broker; real ones: test_transparent_kafka."""

import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from config.load import load_bytes, warnings_of
from config.problems import ConfigError
from config.settings import proxy_settings
from proxy.app.admin.app import not_ready
from proxy.app.cli.check import summary_text
from proxy.app.sources.security import load_security
from proxy.net.listen.server import Proxy
from proxy.net.listen.transparent import Destination, read_sockaddr
from proxy.net.settings import ConnectionBounds, ProxySettings, TransparentSettings
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.namespaces import Namespace, machine_with
from tests.support.scripted_broker import ScriptedBroker, answer, drained, limited, read_frame, until
from tests.support.session_tools import produce, produce_response

LISTEN, KAFKA = 15001, 9092
HERE = ("10.77.0.2", "fd77::2")
BROKERS = ("10.77.0.11", "fd77::11")
MARK = 1337
RULES = """
table inet kquota {
  chain output {
    type nat hook output priority -100;
    meta mark %d return
    tcp dport { %d, %d } redirect to :%d
  }
}
"""

QUOTAS: Any = SimpleNamespace(not_ready=None)
"""The source of quotas: ready."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Namespace]:
    """A machine with addresses of its own, on which the brokers' addresses are, too, and rules that redirect."""
    with machine_with(*HERE, *BROKERS) as found:
        found.run("nft", "-f", "-", given=RULES % (MARK, KAFKA, KAFKA + 1, LISTEN))
        yield found


@asynccontextmanager
async def intercepting(
    machine: Namespace, host: str = "127.0.0.1", *, bootstrap: tuple[tuple[str, int], ...] = (), **more: Any
) -> AsyncIterator[tuple[Proxy, ScriptedBroker]]:
    """On that machine, a proxy in transparent mode, and a broker that listens on both brokers' addresses."""
    broker = ScriptedBroker(answer)
    transparent = TransparentSettings(**({"mark": MARK} | more))
    settings = ProxySettings(
        host, LISTEN, range(1, 2), bootstrap, bounds=ConnectionBounds(drain_timeout_s=2.0), transparent=transparent
    )
    proxy = Proxy(settings, Ledger(QuotaTable()))
    with machine.inside():
        async with limited(30.0) as nursery:
            for address in BROKERS:
                await broker.listen(nursery, address, KAFKA)
            await nursery.start(proxy.serve)
            yield proxy, broker
            await drained(proxy)


async def connect(host: str, port: int = KAFKA) -> trio.SocketStream:
    """As an application does: by a socket that the proxy, which shares our event loop, has not marked."""
    sock = trio.socket.from_stdlib_socket(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    try:
        await sock.connect((host, port))
    except OSError:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def ask(host: str, port: int = KAFKA) -> bytes | None:
    """The answer to one request, None for an end or a reset without one."""
    try:
        async with await connect(host, port) as stream:
            await stream.send_all(produce(7, 100))
            return await read_frame(stream)
    except (trio.BrokenResourceError, ConnectionResetError):
        return None


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "localhost", "::"])
async def test_connections_go_where_they_were_going(machine: Namespace, listen: str) -> None:
    """Both families, by two listeners on loopback or one that shows IPv4 addresses mapped into IPv6."""
    async with intercepting(machine, listen) as (proxy, broker):
        for host in BROKERS:
            assert await ask(host) == produce_response(7)
        assert len(broker.received) == 2
        assert proxy.counters.upstream_connects == 2
        async with await connect(BROKERS[0]) as stream:
            await stream.send_all(produce(8, 100))
            await read_frame(stream)
            names = {one.broker for one in proxy.each_connection()}
            peers = {one.peer.rpartition(":")[0] for one in proxy.each_connection()}
        assert names == {f"{BROKERS[0]}:{KAFKA}"}
        assert peers <= {*HERE, *BROKERS}, "in IPv4's own spelling"


async def test_a_connection_to_the_listener_itself_is_refused(machine: Namespace) -> None:
    with capture_logs() as logs:
        async with intercepting(machine, "::") as (proxy, broker):
            for host in ("127.0.0.1", "::1", HERE[0]):
                assert await ask(host, LISTEN) is None
            assert proxy.counters.connections.closed == {"not_redirected": 3}
            assert proxy.counters.connections.opened == 3
            assert not broker.received
            assert list(proxy.each_connection()) == []
            assert await ask(BROKERS[0]) == produce_response(7), "others are served on"
    said = [line for line in logs if line["event"] == "redirected connection refused"]
    assert len(said) == 1, "once in a while, not each time"
    assert "127.0.0.1 connected to the listener itself" in said[0]["error"]


@pytest.mark.parametrize("broker_address", BROKERS)
async def test_without_an_exemption_the_sidecar_meets_itself_and_stops(machine: Namespace, broker_address: str) -> None:
    """Rules without the mark: what the sidecar dials comes back to it. One connection, not thousands."""
    with capture_logs() as logs:
        async with intercepting(machine, mark=None) as (proxy, broker):
            assert await ask(broker_address) is None
            await until(lambda: proxy.counters.connections.open == 0)
            assert proxy.counters.connections.closed["loop"] == 1
            assert proxy.counters.connections.opened == 2, "the client's, and the one that came back"
            assert not broker.received
    (said,) = [line for line in logs if line["event"] == "redirected connection refused"]
    assert said["reason"] == "loop"
    assert f"{Destination(broker_address, KAFKA)} was redirected to the sidecar" in said["error"]
    assert "--exclude-uid" in said["error"]


async def test_detects_own_listener_as_destination(machine: Namespace) -> None:
    """An application that is redirected on its way to the listener's port on another of our addresses."""
    machine.run("nft", "add rule inet kquota output", f"ip daddr {HERE[0]} tcp dport {LISTEN} redirect to :{LISTEN}")
    async with intercepting(machine) as (proxy, _):
        assert await ask(HERE[0], LISTEN) is None
        assert proxy.counters.connections.closed == {"loop": 1}


async def test_only_allowed_destinations_are_served(machine: Namespace) -> None:
    with capture_logs() as logs:
        async with intercepting(machine, networks=("10.77.0.0/28", "fd00::/64"), ports=(range(9092, 9093),)) as (
            proxy,
            broker,
        ):
            assert await ask(BROKERS[0]) == produce_response(7)
            assert await ask(BROKERS[1]) is None, "fd77::11 is not in fd00::/64"
            assert await ask(BROKERS[0], KAFKA + 1) is None
            assert proxy.counters.connections.closed["destination_refused"] == 2
            assert len(broker.received) == 1
    (said,) = [line for line in logs if line["event"] == "redirected connection refused"]
    assert "[fd77::11]:9092 is not allowed by transparent.networks and transparent.ports" in said["error"]


async def test_refuses_tls_without_key_and_passthrough(machine: Namespace) -> None:
    async with intercepting(machine, tls_passthrough=False) as (proxy, broker), await connect(BROKERS[0]) as stream:
        await stream.send_all(bytes.fromhex("16030100c8010000c40303") + bytes(range(192)))
        with suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""
        await until(lambda: proxy.counters.parse_errors["tls_on_plain_port"] == 1)
        assert not broker.received


async def test_missing_broker_ends_client_with_its_address(machine: Namespace) -> None:
    with capture_logs() as logs:
        async with intercepting(machine) as (proxy, _):
            assert await ask(BROKERS[0], KAFKA + 1) is None
            await until(lambda: proxy.counters.connections.closed["upstream_unreachable"] == 1)
            assert proxy.counters.upstream_connect_failures == 1
    assert any("10.77.0.11:9093: [Errno 111] ECONNREFUSED" in str(line.get("error")) for line in logs)


async def test_a_mark_that_may_not_be_set_keeps_it_from_starting(
    machine: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container without NET_ADMIN has it; that the kernel says so is seen in test_transparent_kafka."""

    def refused(sock: socket.socket, level: int, option: int, *value: Any) -> None:
        if option == socket.SO_MARK:
            raise PermissionError(1, "Operation not permitted")
        usual(sock, level, option, *value)

    usual = socket.socket.setsockopt
    monkeypatch.setattr(socket.socket, "setsockopt", refused)
    proxy = Proxy(
        ProxySettings("127.0.0.1", 0, range(1, 2), (), transparent=TransparentSettings(mark=1)), Ledger(QuotaTable())
    )
    with pytest.RaisesGroup(pytest.RaisesExc(PermissionError, match="transparent.mark needs the capability NET_ADMIN")):
        await proxy.serve()


async def test_is_ready_once_bound_or_once_the_cluster_answered(machine: Namespace) -> None:
    async with intercepting(machine) as (proxy, _):
        assert not_ready(proxy, QUOTAS) == []
    async with intercepting(machine, bootstrap=((BROKERS[0], KAFKA + 1),)) as (proxy, _):
        await until(lambda: proxy.cluster.last_error)
        (reason,) = not_ready(proxy, QUOTAS)
        assert "cannot reach the Kafka cluster" in reason
    async with intercepting(machine, bootstrap=((BROKERS[0], KAFKA),)) as (proxy, _):
        await until(lambda: not_ready(proxy, QUOTAS) == [])
        assert [(node_id, port) for node_id, _, _, port in proxy.cluster.all()] == [(1, KAFKA)], "the broker's own port"


def test_addresses_as_the_kernel_gives_them() -> None:
    family4, family6 = struct.pack("=H", socket.AF_INET), struct.pack("=H", socket.AF_INET6)
    # 9092 = 0x2384
    assert read_sockaddr(family4 + bytes.fromhex("2384 0a4d000b") + bytes(8)) == ("10.77.0.11", 9092, 0)
    address = bytes.fromhex("fe80 0000 0000 0000 0000 0000 0000 0001")
    found = read_sockaddr(family6 + bytes.fromhex("2384 00000000") + address + struct.pack("=I", 3))
    assert found == ("fe80::1", 9092, 3)
    assert str(found) == "[fe80::1]:9092"
    with pytest.raises(ValueError, match="neither a struct sockaddr_in nor a struct sockaddr_in6"):
        read_sockaddr(family6 + bytes(14))
    with pytest.raises(ValueError, match="neither a struct sockaddr_in nor a struct sockaddr_in6"):
        read_sockaddr(family6 + bytes(20))


def settings_of(text: str) -> ProxySettings:
    config = load_bytes("q.yaml", text.encode())
    return proxy_settings(config, **load_security(config).settings)


def test_a_configuration_needs_nothing_but_the_mode() -> None:
    text = "mode: transparent\nquotas: [{client-id: a, producer_byte_rate: 1M}]\n"
    assert list(warnings_of(load_bytes("q.yaml", text.encode()))) == []
    assert settings_of(text).bootstrap == ()
    assert settings_of(text).transparent == TransparentSettings()


def test_a_configuration_with_everything() -> None:
    text = """mode: transparent
transparent: {mark: 1337, networks: [10.0.0.0/8, "fd00::/8", 192.0.2.7], ports: [9092, "9094-9096"]}
"""
    networks, ports = ("10.0.0.0/8", "fd00::/8", "192.0.2.7/32"), (range(9092, 9093), range(9094, 9097))
    assert settings_of(text).transparent == TransparentSettings(1337, networks, ports)
    summary = summary_text("q.yaml", load_bytes("q.yaml", text.encode()), QuotaTable())
    assert "redirected connections to 10.0.0.0/8, fd00::/8, 192.0.2.7/32, ports 9092, 9094-9096" in summary
    assert "the original destination" in summary


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode: transparent\ntransparent: {networks: [10.0.0.1/8]}", "without host bits"),
        ("mode: transparent\ntransparent: {networks: [kafka]}", "expected a network or an address"),
        ("mode: transparent\ntransparent: {ports: [9094-9092]}", "expected a port or a range of ports"),
        ("mode: transparent\ntransparent: {ports: [true]}", "expected a port or a range of ports"),
        ("mode: transparent\ntransparent: {mark: 0}", "expected a socket mark"),
        ("mode: transparent\nquotas: {source: cluster}", "expected upstream.bootstrap"),
        ("mode: transparent\nexport: {kafka_topic: usage}", "expected upstream.bootstrap"),
        ("mode: transparent\nlisten: {tls: {certificate_file: /a/b, key_file: /a/c}}", "expected upstream.tls too"),
        ("transparent: {mark: 1}", "upstream: expected a section with bootstrap"),
    ],
)
def test_invalid_settings_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_bytes("q.yaml", text.encode())
    (problem,) = caught.value.problems
    assert said in str(problem)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ('upstream: {bootstrap: ["k:1"]}\ntransparent: {mark: 7}', "2:1: transparent: is not used: mode is rewrite"),
        (
            "mode: transparent\nlisten: {broker_ports: 1-9}",
            "2:10: listen.broker_ports: is not used: mode is transparent",
        ),
    ],
)
def test_settings_of_the_other_mode_are_warned_of(text: str, warning: str) -> None:
    config = load_bytes("q.yaml", f"{text}\nquotas: [{{ip: 10.0.0.1, max_connections: 1}}]".encode())
    assert [str(one) for one in warnings_of(config)] == [f"q.yaml:{warning}"]
