"""Names of brokers: looked up in a thread, once for all that wait; a silent resolver delays only those."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trio

from proxy.net.upstream.cluster import Access, ClusterError, ask_brokers
from proxy.net.upstream.dial import open_stream
from proxy.net.upstream.resolver import MAX_LOOKUPS, Resolver
from tests.support.scripted_broker import until

ANSWER = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9092))]
LIMIT_S = 20


class SlowLookups:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()
        self.error: Exception | None = None

    def __call__(self, host: bytes, *_rest: Any) -> list[Any]:
        self.asked.append(host.decode())
        assert self.go.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        return ANSWER


@pytest.fixture
def lookups() -> Iterator[SlowLookups]:
    found = SlowLookups()
    yield found
    found.go.set()  # no thread is left waiting


@pytest.fixture
def resolver(lookups: SlowLookups) -> Resolver:
    return Resolver(lookups)


@contextmanager
def resolved_by(look_up: Callable[..., list[Any]]) -> Iterator[None]:
    before = trio.socket.set_custom_hostname_resolver(Resolver(look_up))
    try:
        yield
    finally:
        trio.socket.set_custom_hostname_resolver(before)


@contextmanager
def full(address: tuple[str, int], waiting: int = 3) -> Iterator[int]:
    """A server that accepts nothing; its port. With a full queue it does not even answer to further connections."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(address, backlog=0))
        for _ in range(waiting):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield server.getsockname()[1]


async def test_silent_resolver_blocks_no_other_lookup(resolver: Resolver, lookups: SlowLookups) -> None:
    with trio.move_on_after(0.01) as scope:
        await resolver.getaddrinfo(b"one", 1)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        for number in range(60):  # more than trio has threads, 40; each of two that want the same
            for _ in range(2):
                nursery.start_soon(resolver.getaddrinfo, f"kafka-{number}".encode(), 9092)
        await until(lambda: len(lookups.asked) == MAX_LOOKUPS)
        assert len(set(lookups.asked)) == MAX_LOOKUPS, "both share one look-up"
        with trio.fail_after(LIMIT_S):
            assert await trio.to_thread.run_sync(lambda: "a file was read") == "a file was read"
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        nursery.cancel_scope.cancel()


async def test_shares_failure_and_asks_again_next_time(resolver: Resolver, lookups: SlowLookups) -> None:
    lookups.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    lookups.go.set()
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="Temporary failure"):
            await resolver.getaddrinfo(b"kafka-0", 9092)
    lookups.error = None
    assert await resolver.getaddrinfo(b"kafka-0", 9092) == ANSWER


async def test_connecting_uses_it_and_tries_the_next_address_soon() -> None:
    """Happy eyeballs (RFC 6555): an address that drops what is sent to it costs a quarter of a second."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]

    def two(_host: bytes, port: int, *_rest: Any) -> list[Any]:
        return [(*ANSWER[0][:4], (host, port)) for host in ("127.0.0.2", "127.0.0.1")]

    async with listener:
        with full(("127.0.0.2", port)), resolved_by(two), trio.fail_after(LIMIT_S):
            async with await open_stream("kafka-0.example", port, []) as stream:
                assert stream.socket.getpeername()[0] == "127.0.0.1"


@pytest.mark.parametrize("missing", ["answer from DNS", "connection", "answer"])
async def test_an_error_says_what_took_too_long(missing: str, lookups: SlowLookups) -> None:
    def look_up(host: bytes, port: int, *_rest: Any) -> list[Any]:
        found = lookups(host) if missing == "answer from DNS" else ANSWER
        return [(*one[:4], ("127.0.0.1", port)) for one in found]

    waiting = 3 if missing == "connection" else 0
    with full(("127.0.0.1", 0), waiting) as port, resolved_by(look_up), pytest.raises(ClusterError) as caught:
        await ask_brokers("kafka-0.example", port, Access(0.3))
    assert str(caught.value) == f"kafka-0.example:{port}: no {missing} within 0.3 s"
