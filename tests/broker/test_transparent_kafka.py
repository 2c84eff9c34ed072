"""Transparent mode with real clients and three real brokers on their own addresses, one of them IPv6."""

import itertools
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.redirect.cli import app
from tests.broker.test_transparency_brokers import move_leader
from tests.corpus.job import Job
from tests.corpus.tools import create_topic
from tests.lab.kafka import KafkaCluster
from tests.support.clients import Client, Load, consume_confluent, produce_confluent, produce_kafka_python
from tests.support.fault_tools import at_work
from tests.support.namespaces import CABLE, Network, network
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import LIMIT_S, in_background, until

LISTEN, MARK, KAFKA = 15001, 1337, 9092
FIRST, SECOND, THIRD = ("10.77.0.11", KAFKA), ("fd77::12", KAFKA), ("10.77.0.13", KAFKA)
NEW, MOVED = ("10.77.0.14", KAFKA), ("10.77.0.15", KAFKA)
RULES = f"--to-port {LISTEN} --network 10.77.0.0/24 --network fd77::/64 --exclude-mark {MARK}"
RATE, LOAD_BYTES = 300_000, 2_000_000


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network([f"{host}/{64 if ':' in host else 24}" for host, _ in (FIRST, SECOND, THIRD, NEW)]) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(net: Network) -> Iterator[KafkaCluster]:
    with net.brokers.inside():
        found = KafkaCluster.start(3, addresses=(FIRST, SECOND, THIRD), progress=print)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def rules(net: Network) -> Iterator[Callable[[str], None]]:
    """`kquota redirect …` where the application is; whatever is left of it is removed."""

    def run(arguments: str) -> None:
        with net.application.inside():
            done = CliRunner().invoke(app, arguments.split())
        assert done.exit_code == 0, done.output

    yield run
    run("remove")


@contextmanager
def beside_the_application(net: Network, quotas: list[dict[str, Any]], **settings: Any) -> Iterator[Sidecar]:
    """A sidecar in the application's namespace, which this thread is in as well meanwhile."""
    listen = {"host": "127.0.0.1", "port": LISTEN}
    with (
        net.application.inside(),
        sidecar([], quotas, mode="transparent", listen=listen, transparent={"mark": MARK}, **settings) as found,
    ):
        yield found


def bootstrap_text(*addresses: tuple[str, int]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


def question(api_key: int, version: int, body: str) -> bytes:
    """A request frame with a header of version 2 (flexible: tagged fields), client-id "app"."""
    head = struct.pack(">hhih", api_key, version, 7, 3) + b"app\0"
    frame = head + bytes.fromhex(body)
    return struct.pack(">i", len(frame)) + frame


# Bodies by Kafka's message schemas: all topics (null), no flags; group "g" by coordinator type 0; no flags.
QUESTIONS = {
    "Metadata 12": question(3, 12, "00 00 00 00"),
    "ApiVersions 3": question(18, 3, "02 78 02 31 00"),  # "x", "1"
    "FindCoordinator 4": question(10, 4, "00 02 02 67 00"),
    "DescribeCluster 0": question(60, 0, "00 00"),
}


def answer(address: tuple[str, int], frame: bytes, mark: int = 0) -> bytes:
    """A whole response frame as it comes; with the sidecar's mark it comes directly."""
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as peer, peer.makefile("rb") as stream:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        peer.settimeout(10)
        peer.connect(address)
        peer.sendall(frame)
        size = stream.read(4)
        return size + stream.read(*struct.unpack(">i", size))


@pytest.mark.long
def test_answers_are_the_brokers_own_to_the_byte(
    net: Network, cluster: KafkaCluster, rules: Callable[[str], None]
) -> None:
    """Brokers name any one of them as the controller, by chance, and count epochs: so two answers that were given at
    nearly the same time may differ, but not each time."""
    rules(f"install {RULES}")
    with beside_the_application(net, [{"client-id": "app", "request_percentage": 10_000}]) as proxy:
        seen = dict.fromkeys(QUESTIONS, b"")
        for address, (name, frame) in itertools.product((FIRST, SECOND, THIRD), QUESTIONS.items()):
            for _ in range(200):
                seen[name] = answer(address, frame)
                if seen[name] == answer(address, frame, MARK):
                    break
            else:
                pytest.fail(f"never the same answer to {name} from {address}: {seen[name]!r}")
        assert proxy.metric("kquota_requests_total") >= 3 * len(QUESTIONS), "they did pass the sidecar"
        assert proxy.metric("kquota_addresses_rewritten_total") == 0
    for name in ("Metadata 12", "DescribeCluster 0"):
        assert b"10.77.0.13" in seen[name]
        assert b"fd77::12" in seen[name] or b"fd77:0:0:0:0:0:0:12" in seen[name]


def test_unchanged_clients_are_throttled(net: Network, cluster: KafkaCluster, rules: Callable[[str], None]) -> None:
    with net.brokers.inside():
        job = Job(bootstrap_text(FIRST), f"t-{uuid.uuid4().hex[:6]}", cluster.version, 3)
        topic = create_topic(job, "throttled", partitions=3)
        fill = produce_confluent(Load(cluster.bootstrap, topic, "filler", records=200))
    fill.assert_complete(Load((), topic, "filler", records=200))
    rules(f"install {RULES}")
    quotas = [{"client-id": "<default>", "producer_byte_rate": RATE, "consumer_byte_rate": RATE}]
    # Each begins at another broker, and all come to all of them: partitions have leaders everywhere.
    work: dict[str, tuple[Client, tuple[str, int], str, dict[str, Any]]] = {
        "kafka-python": (produce_kafka_python, FIRST, f"{topic}-kafka-python", {}),
        "confluent": (produce_confluent, THIRD, f"{topic}-confluent", {"enable.idempotence": "true"}),
        "reader": (consume_confluent, SECOND, topic, {}),
    }
    with beside_the_application(net, quotas, **{"quota.window.num": 2}) as proxy:  # else 3 MB pass at once
        running = {}
        for name, (client, start, where, settings) in work.items():
            load = Load([bootstrap_text(start)], where, name, records=LOAD_BYTES // 10_000, settings=settings)
            running[name] = load, in_background(client, load)
        for name, (load, future) in running.items():
            timeline = future.result(LIMIT_S * 2)
            timeline.numbers.sort()  # in order within a partition only
            timeline.assert_complete(load)
            # 2 000 000 / 300 000 = 6.7 s, of which the window of two samples lets one or two pass at once.
            assert timeline.duration_s > 0.5 * LOAD_BYTES / RATE, name
            # A reader may be kept at its rate by smaller portions alone.
            held = proxy.metric("kquota_throttled_requests_total", client_id=name)
            assert held + (name == "reader" and proxy.metric("kquota_fetches_shaped_total")) > 0, name
        for kind, name in (("produce", "kafka-python"), ("fetch", "reader")):
            of = {"kind": kind, "client_id": name}
            until(lambda of=of: proxy.metric("kquota_bytes_total", **of) >= LOAD_BYTES)
        assert proxy.metric("kquota_connections_closed_total", reason="loop") == 0


def created(net: Network, cluster: KafkaCluster) -> tuple[Job, str]:
    """A job for admins, where the brokers are, and a topic for clients in the application's namespace."""
    with net.brokers.inside():
        admin = Job(bootstrap_text(FIRST), f"t-{uuid.uuid4().hex[:6]}", cluster.version, 3)
        return admin, create_topic(admin, "work")


def brokers_of(proxy: Sidecar) -> set[str]:
    return {one["broker"] for one in proxy.get("/connections")["connections"]}


@pytest.mark.long
def test_follows_brokers_that_come_move_and_go(
    net: Network, cluster: KafkaCluster, rules: Callable[[str], None]
) -> None:
    rules(f"install {RULES}")
    admin, topic = created(net, cluster)
    with (
        beside_the_application(net, []) as proxy,
        at_work(bootstrap_text(FIRST, SECOND), topic, bootstrap_text(FIRST)) as clients,
    ):
        assert brokers_of(proxy) >= {bootstrap_text(FIRST)}
        try:
            with net.brokers.inside():
                cluster.add_broker(4, address=NEW)
                move_leader(admin, topic, [4, 1])  # a broker that the sidecar does not know
            clients.wait_for_progress()
            assert bootstrap_text(NEW) in brokers_of(proxy)
            with net.brokers.inside():
                move_leader(admin, topic, [2, 1])  # the one with an IPv6 address
            clients.wait_for_progress()
            assert bootstrap_text(SECOND) in brokers_of(proxy)
        finally:
            cluster.stop_broker(4)
        net.brokers.add_address(f"{MOVED[0]}/24", CABLE)
        with net.brokers.inside():
            cluster.stop_broker(3)
            cluster.start_broker(3, address=MOVED)
        net.brokers.remove_address(f"{THIRD[0]}/24", CABLE)
        try:
            with net.brokers.inside():
                move_leader(admin, topic, [3, 1])
            clients.wait_for_progress()
            assert bootstrap_text(MOVED) in brokers_of(proxy)
            with net.brokers.inside():
                move_leader(admin, topic, [1, 2])
        finally:
            net.brokers.add_address(f"{THIRD[0]}/24", CABLE)
            with net.brokers.inside():
                cluster.stop_broker(3)
                cluster.start_broker(3, address=THIRD)


def new_connection() -> str:
    """What becomes of a connection that is made now: "answered" or the error."""
    try:
        with socket.create_connection(FIRST, 10) as peer:
            peer.sendall(QUESTIONS["ApiVersions 3"])
            return "answered" if peer.recv(4) else "closed"
    except OSError as error:
        return type(error).__name__


def goes_through(proxy: Sidecar) -> bool:
    """Whether a connection that is made now is one of the sidecar's."""
    with socket.create_connection(FIRST, 10) as peer:
        peer.sendall(QUESTIONS["ApiVersions 3"])
        assert peer.recv(4)
        host, port = peer.getsockname()
        return f"{host}:{port}" in {one["peer"] for one in proxy.get("/connections")["connections"]}


@pytest.mark.long
def test_a_sidecar_restarts_and_rules_fail_closed_or_open(
    net: Network, cluster: KafkaCluster, rules: Callable[[str], None]
) -> None:
    rules(f"install {RULES}")
    _, topic = created(net, cluster)
    with net.application.inside(), ExitStack() as stack_of_first, ExitStack() as stack:
        first = stack_of_first.enter_context(beside_the_application(net, []))
        clients = stack.enter_context(at_work(bootstrap_text(FIRST, SECOND), topic, bootstrap_text(FIRST)))
        assert first.get("/connections")["total"] >= 2
        stack_of_first.close()
        assert new_connection() == "ConnectionRefusedError", "closed: no client gets around the quotas"
        with beside_the_application(net, []) as second:
            clients.wait_for_progress()
            assert second.get("/connections")["total"] >= 2, "they came back by themselves"
            assert goes_through(second)
            rules("remove")
            assert not goes_through(second)
        clients.wait_for_progress()  # without any sidecar
        rules(f"install {RULES} --with nft --when-down open")
        assert new_connection() == "answered", "open: no sidecar yet, directly"
        with beside_the_application(net, []) as third:
            until(lambda: goes_through(third), "the heartbeat to close the way around")
        until(lambda: new_connection() == "answered", "the way around to open")
