"""Limits of connections with the real sidecar, a real broker and real clients."""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import trio

from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import API_VERSIONS_0
from tests.support.sidecars import Sidecar, get, sidecar
from tests.support.waiting import until

STORM_FROM = "127.0.0.2"
"""Linux lets any address of 127/8 connect, so that one machine can have two peers."""
RATE = 20
REASON = "user_max_connections"


@contextmanager
def served(running: Sidecar, wanted: int) -> Iterator[int]:
    """How many of so many connections get an answer; all stay open."""
    with ExitStack() as stack:
        answered = 0
        for _ in range(wanted):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=10))
            client.sendall(API_VERSIONS_0)
            with suppress(ConnectionError):
                answered += len(client.recv(4)) == 4
        yield answered


@contextmanager
def producer(running: Sidecar, topic: str) -> Iterator[Callable[[], int]]:
    """A kafka-python producer that has connected; calling it sends one record and returns its offset."""
    from kafka import KafkaProducer

    made = KafkaProducer(bootstrap_servers=running.bootstrap, client_id="worker", linger_ms=0, acks=1)

    def send() -> int:
        return int(made.send(topic, b"x").get(timeout=30).offset)

    try:
        send()
        yield send
    finally:
        made.close()


def test_client_above_cap_fails_with_reason(kafka: KafkaCluster, topic: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    def list_topics(running: Sidecar, timeout_s: float) -> set[str]:
        client = AdminClient({"bootstrap.servers": running.bootstrap})
        return set(client.list_topics(timeout=timeout_s).topics)

    with sidecar(kafka.bootstrap, identity={"sources": ["static"], "static": "web"}) as running:
        with producer(running, topic) as send:
            assert running.metric("kquota_user_connections", user="web") >= 1
            running.set_quotas([{"user": "web", "max_connections": 1}])
            with pytest.raises(KafkaException):
                list_topics(running, 3)
            assert send() >= 1  # who was there works on
            assert running.metric("kquota_connections_closed_total", reason=REASON) >= 1
            assert running.metric("kquota_connections_refused_total", reason=REASON, mode="enforce") >= 1
            (line, *_) = running.logged("connection refused")
            (refused,) = running.get("/throttled")["refused"]
            for each in (line, refused):
                assert (each["reason"], each["name"], each["limit"]) == (REASON, "web", 1)
            assert line["observed"] >= 1
            standing = running.get("/explain")["connections"][0]
            assert standing["refused"] == [refused | {"ago_ms": standing["refused"][0]["ago_ms"]}]

            running.set_quotas([{"user": "web", "max_connections": 20}])
            assert topic in list_topics(running, 30)
            assert send() >= 2
        until(lambda: running.metric("kquota_user_connections", user="web") == 0)


@pytest.fixture
def stormed(kafka: KafkaCluster) -> Iterator[Sidecar]:
    """Kafka's test windows (2 samples of 1 s)."""
    quotas = [{"ip": STORM_FROM, "connection_creation_rate": RATE}]
    with sidecar(kafka.bootstrap, quotas, **{"quota.window.num": 2}) as running:
        yield running


async def test_holds_connection_storm_to_rate_per_address(stormed: Sidecar) -> None:
    """100 connections a second from one address, of which 20 are allowed."""
    duration_s, interval_s = 5.0, 0.01
    outcomes: list[bool] = []
    held_s: list[float] = []
    attempts: Counter[int] = Counter()

    async def attempt(source: str) -> bool:
        """Whether a connection is served: it asks for ApiVersions and gets an answer."""
        with trio.socket.socket() as client:
            await client.bind((source, 0))
            await client.connect(("127.0.0.1", stormed.port))
            began = trio.current_time()
            try:
                await client.send(API_VERSIONS_0)
                answer = await client.recv(4)
            except OSError:  # closed with our request unread
                answer = b""
            if not answer:
                held_s.append(trio.current_time() - began)
            return bool(answer)

    async def storm() -> None:
        attempts[int(trio.current_time() - began)] += 1
        outcomes.append(await attempt(STORM_FROM))

    others = []
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        while trio.current_time() - began < duration_s:
            nursery.start_soon(storm)
            await trio.sleep(interval_s)
            if len(others) < (trio.current_time() - began) / 0.2:
                others.append(await attempt("127.0.0.1"))
    took_s, served = trio.current_time() - began, sum(outcomes)
    text = f"{served} of {len(outcomes)} served in {took_s:.2f} s, held {max(held_s, default=0):.3f} s at most"
    # The window is 1 to 2 s long: what it admits at once, and then the rate.
    assert served <= RATE * (took_s + 2), text
    full_s = sum(count >= RATE for count in attempts.values())  # a loaded machine starts none for a while
    assert full_s >= 2, attempts
    assert served >= 0.8 * RATE * (full_s - 1), f"{text}, {full_s} s with enough attempts"
    refused = stormed.metric("kquota_connections_closed_total", reason="ip_connection_rate")
    assert refused == len(outcomes) - served
    assert others
    assert all(others), text
    assert 1 <= len(stormed.logged("connection refused")) <= 1 + took_s / 10


def test_raises_low_soft_limit_of_open_files(kafka: KafkaCluster) -> None:
    """1024 as in today's containers, and a hard limit above it."""
    with sidecar(kafka.bootstrap, before=("prlimit", "--nofile=1024:20000")) as running:
        (line,) = running.logged("limit of open files raised")
        assert (line["before"], line["now"]) == (1024, 20_000)
        with served(running, 700) as answered:
            assert answered == 700


def test_a_sidecar_without_descriptors_is_not_ready(kafka: KafkaCluster) -> None:
    """100, less 64 and two listeners: 17 connections of two each."""
    with sidecar(kafka.bootstrap, before=("prlimit", "--nofile=100:100")) as running:
        ready = running.admin + "/readyz"
        with served(running, 20) as answered:
            assert answered == 17
            assert "no file descriptors for another connection" in get(ready).text
            assert get(ready).status_code == 503
        until(lambda: get(ready).status_code == 200)
