"""The admin port over real sockets: every endpoint, and scrapers that hang, dribble, flood or talk nonsense."""

import gzip
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from proxy.app.admin.app import AdminApp
from proxy.app.admin.guard import Hosts
from proxy.app.admin.history import History
from proxy.app.admin.server import AdminServer
from proxy.app.metrics.gather import Exposition
from proxy.app.run import now_ms
from proxy.core.telemetry.observer import ConnectionInfo, Counters
from proxy.net.listen.listeners import bind
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.scripted_broker import until

TABLE = QuotaTable(
    [Entry(None, DEFAULT, producer_byte_rate=1000.0), Entry("alice", None, consumer_byte_rate=500.0, mode="shadow")]
)


@dataclass
class FakeCluster:
    reached: bool = True
    last_error: str | None = None
    more_brokers: int = 0

    def all(self) -> list[tuple[int, str, int, int | None]]:
        more = [(number + 3, f"kafka-{number + 3}", 9092, None) for number in range(self.more_brokers)]
        return [(1, "kafka-1", 9092, 19_093), (2, "kafka-2", 9092, None), *more]


@dataclass
class FakeProxy:
    state: str = "serving"
    cluster: FakeCluster = field(default_factory=FakeCluster)
    full: str | None = None
    found: list[ConnectionInfo] = field(default_factory=list)
    given_user: tuple[str, str] = ("web", "static")

    def each_connection(self) -> Iterator[ConnectionInfo]:
        return iter(self.found)


class FakeSource:
    """Limits that are known from the start, and nobody asks where they are set."""

    not_ready = origin = None


@dataclass
class Admin:
    port: int
    ledger: Ledger
    proxy: FakeProxy
    metrics: Exposition
    server: AdminServer

    async def request(self, raw: bytes) -> bytes:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(raw)
            return b"".join([piece async for piece in stream])

    def charge(self, client_id: str, amount: float = 1) -> None:
        self.ledger.charge(self.ledger.account("u", client_id), Kind.PRODUCE, amount, now_ms())

    async def get(
        self, path: str, method: str = "GET", more: str = "", host: str = "localhost"
    ) -> tuple[int, dict[str, str], bytes]:
        with trio.fail_after(20):
            raw = await self.request(
                f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n".encode()
            )
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *headers = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in headers)
        return int(status.split()[1]), {name.lower(): text for name, text in pairs}, body

    async def json(self, path: str) -> Any:
        _, headers, body = await self.get(path)
        assert headers["content-type"] == "application/json"
        return json.loads(body)


@asynccontextmanager
async def admin(
    hosts: Hosts | None = None, on_evict: Callable[[], None] = lambda: None, **constants: float
) -> AsyncIterator[Admin]:
    ledger, proxy = Ledger(TABLE, smooth=False), FakeProxy()
    metrics = Exposition(ledger, Counters(), max_groups=10)
    listener = bind("127.0.0.1", 0)
    history, hosts = History(ledger, Counters()), hosts or Hosts([])
    app = AdminApp(ledger, proxy, metrics, now_ms, FakeSource(), history, hosts, dict)
    server = AdminServer(listener, app.asgi, on_evict)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(f"proxy.app.admin.server.{name}", value)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            yield Admin(listener.getsockname()[1], ledger, proxy, metrics, server)
            nursery.cancel_scope.cancel()
            started_s = trio.current_time()
    assert trio.current_time() - started_s < 5, "a client that hangs held up the end"


@pytest.fixture
async def running() -> AsyncIterator[Admin]:
    async with admin() as found:
        yield found


async def test_health_is_of_process_and_readiness_of_work(running: Admin) -> None:
    proxy = running.proxy

    async def not_ready() -> list[str]:
        assert (await running.get("/healthz"))[::2] == (200, b"ok\n")
        answer = await running.json("/readyz")
        assert (await running.get("/readyz"))[0] == (200 if answer["ready"] else 503)
        assert (await running.json("/snapshot"))["not_ready"] == answer["reasons"]
        return list(answer["reasons"])

    assert await not_ready() == []
    proxy.state, proxy.cluster.reached = "starting", False
    assert await not_ready() == ["the listener is not bound", "cannot reach the Kafka cluster: no answer yet"]
    proxy.state, proxy.cluster.last_error = "serving", "kafka:9092: refused"
    assert await not_ready() == ["cannot reach the Kafka cluster: kafka:9092: refused"]
    proxy.state, proxy.cluster.reached = "draining", True
    assert await not_ready() == ["the sidecar is draining"]


async def test_brokers_and_libraries_are_listed(running: Admin) -> None:
    first, second = (await running.json("/brokers"))["brokers"]
    assert first == {"id": 1, "host": "kafka-1", "port": 9092, "local_port": 19_093}
    assert second["local_port"] is None
    note = running.metrics.libraries.note
    note("apache-kafka-java/4.2.0", 900.0, ignored=False)
    note("librdkafka/2.1", 300.0, ignored=True)
    answer = await running.json("/libraries?limit=1")  # those that ignore mutes first
    assert (answer["total"], answer["shown"]) == (2, 1)
    times = {"mutes": 1, "mute_ms": 300.0, "ignored": 1, "ignored_ms": 300.0}
    assert answer["libraries"] == [{"library": "librdkafka", "version": "2.1"} | times]


async def test_quotas_shows_every_counter_the_fullest_first(running: Admin) -> None:
    ledger = running.ledger
    ledger.charge(ledger.account("bob", "half"), Kind.PRODUCE, 5000, now_ms())
    full = ledger.account("bob", "full")
    delay_ms = ledger.charge(full, Kind.PRODUCE, 20_000, now_ms())  # 2000 B/s against 1000: about 10 s
    ledger.note_throttle(full, Kind.PRODUCE, delay_ms)
    ledger.charge_no_throttle(ledger.account("alice", "\ud800"), Kind.FETCH, 100, now_ms())
    answer = await running.json("/quotas")
    assert (answer["total"], answer["shown"]) == (3, 3)
    first, second, third = answer["groups"]
    assert (first["kind"], first["user"], first["client_id"]) == ("produce", None, "full")
    assert (first["limit"], first["level"], first["mode"]) == (1000, "<default client-id>", "enforce")
    assert (first["observed"], first["utilisation"]) == pytest.approx((2000, 2), rel=0.1)
    assert 8000 < first["throttled_for_ms"] <= 10_000
    assert (first["totals"]["amount"], first["totals"]["throttled"]) == (20_000, 1)
    assert second["client_id"] == "half"
    assert (third["user"], third["client_id"], third["mode"]) == ("alice", None, "shadow")
    shown = [(await running.json(f"/quotas?limit={limit}"))["shown"] for limit in ("1", "x", "-5")]
    assert shown == [1, 3, 0]


async def test_explain_answers_for_any_client_and_creates_none(running: Admin) -> None:
    answer = await running.json("/explain?user=alice&client_id=a%20b%26c")
    assert (answer["user"], answer["client_id"]) == ("alice", "a b&c")
    produce, fetch = answer["kinds"][:2]
    assert (produce["level"], produce["limit"]) == ("<default client-id>", 1000)
    assert (fetch["level"], fetch["mode"]) == ("user", "shadow")
    assert [level["wins"] for level in fetch["levels"]].index(True) == 2
    assert produce["now"] is None
    assert answer["identity"]["source"] is None
    assert (await running.json("/explain"))["user"] == "web"  # the one that connections get
    assert list(running.ledger.accounts()) == []
    assert (await running.get("/explain?ip=nonsense"))[0] == 400
    asked = (await running.json("/explain?ip=::ffff:10.0.0.8"))["connections"][-1]
    assert (asked["scope"], asked["name"], asked["open"]) == ("ip", "10.0.0.8", 0)


async def test_snapshot_has_all_lists_of_one_moment(running: Admin) -> None:
    running.proxy.found = [
        ConnectionInfo("1.2.3.4:5", "broker 1", "u", ("c",), None, 0, muted_ms, 10, 20, 0.5)
        for muted_ms in (0.0, 1.0, 2.0)
    ]
    running.ledger.charge(running.ledger.account("alice", "shadow"), Kind.FETCH, 1_000_000, now_ms())
    for client_id, amount in (("free", 5000), ("short", 11_000), ("long", 30_000)):
        client = running.ledger.account("u", client_id)
        if delay_ms := running.ledger.charge(client, Kind.PRODUCE, amount, now_ms()):
            running.ledger.note_throttle(client, Kind.PRODUCE, delay_ms)
    found = await running.json("/snapshot?limit=1")
    assert (found["not_ready"], found["sidecar"]) == ([], {})
    assert found["at"] == found["throttled"]["at"]
    for name, row, shown, total in (
        ("quotas", "groups", 1, 4), ("throttled", "throttled", 1, 2), ("connections", "connections", 1, 3),
        ("libraries", "libraries", 0, 0),
    ):  # fmt: skip
        assert (len(found[name][row]), found[name]["total"]) == (shown, total)
        assert (await running.json(f"/{name}?limit=1")).keys() == found[name].keys()
    assert found["connections"]["states"] == {"open": 1, "muted": 2}
    assert found["connections"]["connections"][0]["muted_for_ms"] == 2.0, "the longest muted first"
    (first,) = found["throttled"]["throttled"]
    assert (first["client_id"], first["setting"]) == ("long", "producer_byte_rate")
    assert first["entity"] == {"client-id": "<default>"}


async def scraper(running: Admin, sent: bytes = b"") -> trio.SocketStream:
    """Its receive window is the smallest there is."""
    raw = trio.socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    await raw.connect(("127.0.0.1", running.port))
    stream = trio.SocketStream(raw)
    await stream.send_all(sent)
    return stream


async def closed_by_the_server(stream: trio.SocketStream) -> None:
    """What lies in the kernel comes first."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # through the smallest window it takes 20 s
    with trio.fail_after(30), suppress(trio.BrokenResourceError):
        async with stream:
            while await stream.receive_some(65_536):
                pass


HANGS = b"GET /quotas?limit=10000 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20


@pytest.mark.parametrize("sent", [HANGS, b"GET /metr", b""], ids=["hangs", "dribbles", "says nothing"])
async def test_disconnects_only_misbehaving_scrapers(sent: bytes) -> None:
    async with admin(LIFETIME_S=6.0) as running:  # long enough for honest requests on a busy machine
        for index in range(3000):  # an answer of about 1 MB, more than socket buffers take
            running.charge(f"client-{index}")
        streams = [await scraper(running, sent) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked()
        assert (await running.get("/healthz"))[0] == 200
        assert (await running.get("/metrics"))[0] == 200
        with trio.fail_after(30):
            await until(lambda: not running.server.open)
        for stream in streams:
            await closed_by_the_server(stream)


async def test_lists_of_longest_names_are_bounded(running: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.app.admin.app.MOST_LIST_BYTES", 100_000)
    for index in range(100):
        running.charge("\U0001f600" * 250 + str(index))  # twelve bytes of JSON a character
    running.charge("fullest", 1000)
    _, _, body = await running.get("/quotas")
    answer = json.loads(body)
    assert (answer["groups"][0]["client_id"], answer["total"]) == ("fullest", 101)
    assert answer["shown"] == len(answer["groups"]) < 40
    assert 80_000 < len(body) < 110_000


async def test_slow_readers_of_lists_hold_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.app.admin.app.MOST_UNREAD_BYTES", 5_000_000)
    async with admin(LIFETIME_S=1000) as running:
        for index in range(3000):  # an answer of about 1 MB
            running.charge(f"client-{index}")
        _, _, body = await running.get("/quotas?limit=10000")
        most = 5_000_000 // len(body)
        streams = [await scraper(running, HANGS) for _ in range(most + 3)]
        with trio.fail_after(30):
            await until(lambda: len(running.server.open) <= most)
        assert running.metrics.admin_evicted == 3
        await closed_by_the_server(streams[0])
        assert len((await running.json("/quotas?limit=10000"))["groups"]) == 3000, "the newest one is answered"
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [("", False), ("Accept-Encoding: deflate, GZIP;q=0.5\r\n", True), ("Accept-Encoding: gzip;q=0.0, br\r\n", False)],
)
async def test_metrics_are_compressed_where_asked(
    running: Admin, accepted: str, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.app.admin.app.LEAST_ZIPPED", 1000)
    _, _, plain = await running.get("/metrics")
    _, headers, body = await running.get("/metrics", more=accepted)
    assert (headers.get("content-encoding"), headers["vary"]) == ("gzip" if zipped else None, "accept-encoding")
    found = gzip.decompress(body) if zipped else body
    assert plain.count(b"# TYPE") == found.count(b"# TYPE") > 10
    assert not zipped or len(body) < len(found) / 3
    monkeypatch.setattr("proxy.app.admin.app.LEAST_ZIPPED", 10_000_000)
    assert "content-encoding" not in (await running.get("/metrics", more=accepted))[1], "small ones are not"


async def test_oldest_connection_is_evicted() -> None:
    evicted = []
    async with admin(MAX_CONNECTIONS=3, LIFETIME_S=1000, on_evict=lambda: evicted.append(1)) as running:
        streams = [await scraper(running) for _ in range(10)]
        assert (await running.get("/healthz"))[0] == 200
        assert len(evicted) == 8  # eleven came, three may stay
        await closed_by_the_server(streams[0])
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x10\x00\x12\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /quotas HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    ],
)
async def test_http_nonsense_closes_only_its_connection(raw: bytes) -> None:
    async with admin(LIFETIME_S=1.0) as running:
        with trio.fail_after(10):
            stream = await trio.open_tcp_stream("127.0.0.1", running.port)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(raw)
            await closed_by_the_server(stream)
        assert (await running.get("/healthz"))[0] == 200


@pytest.mark.parametrize("path", ["/quotas?limit=10000", "/throttled?limit=500", "/metrics", "/brokers"])
async def test_traffic_goes_on_while_long_answers_are_made(running: Admin, path: str) -> None:
    running.proxy.cluster.more_brokers = 10_000 if path == "/brokers" else 0
    for index in range(10_000):
        running.charge(f"client-{index}", 1e9)
    times_s: list[float] = []

    async def look() -> None:
        while True:
            times_s.append(time.thread_time())
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        assert (await running.get(path))[0] == 200
        nursery.cancel_scope.cancel()
    steps_s = sorted(after - before for before, after in pairwise(times_s))
    assert steps_s[-5] < sum(steps_s) / 10  # but for collections of garbage
