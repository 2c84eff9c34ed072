"""One connection pair, driven step by step over sockets of its own as its pumps and the event loop would drive it; and
all that one can see of it afterwards."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from proxy.core.errors import CloseReason
from proxy.core.session.exchange import InFlightRequest
from proxy.core.session.session import Session
from proxy.core.session.state import SessionState
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io.connection import endpoint_of
from proxy.net.io.loop import NEVER, Clock, EventLoop
from proxy.net.io.pair import ConnectionPair, Shared
from proxy.net.io.splice import PipePool
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.session_tools import translate

BUFFER_BYTES = 16_384
SPLICE_MIN_BYTES = 4_096


def book_of(ledger: Ledger, now_ms: float) -> Any:
    """All that a ledger knows, as tests.one_source shows it."""
    now = int(now_ms)
    groups = [(group.observed(now), group.utilisation(now), group.owed_ms(now)) for group in ledger.groups()]
    return list(ledger.accounts()), list(ledger.groups()), ledger.reservations, groups


class GeneralDoors(Session):
    """A session without the shorter doors for plain requests and responses."""

    def take_request(self, _view: memoryview, _count: int, _now_ms: float) -> int:
        return 0

    def take_response(self, _view: memoryview, _count: int, _now_ms: float, _arrived_ms: float) -> int:
        return 0


class CountedDoors(Session):
    """Counts how often the shorter doors were taken, by what they returned."""

    taken: ClassVar[Counter[str]] = Counter()

    def take_request(self, view: memoryview, count: int, now_ms: float) -> int:
        done = super().take_request(view, count, now_ms)
        self.taken[f"request {done}"] += 1
        return done

    def take_response(self, view: memoryview, count: int, now_ms: float, arrived_ms: float) -> int:
        done = super().take_response(view, count, now_ms, arrived_ms)
        self.taken[f"response {done}"] += 1
        return done


@dataclass
class FakeTime:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Driven:
    """One connection pair. The far ends are the client and the broker."""

    time: FakeTime
    ledger: Ledger
    stack: ExitStack
    rewrite: bool = True
    max_in_flight: int = 1024
    send_buffer_bytes: int = 1 << 20
    doors: type[Session] = Session
    came_now: bool = False
    """Responses have come just now (else at time 0): no matter then whether their end is read or spliced."""
    to_broker: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    ended: str = ""
    unsent: bytes = b""

    def __post_init__(self) -> None:
        client, self.client_far = self._pair()
        broker, self.broker_far = self._pair()
        self.loop = EventLoop(Clock(self.time))
        self.stack.callback(self.loop.close)
        self.counters = Counters()
        self.pool = PipePool()
        self.stack.callback(self.pool.close)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        shared = Shared(self.counters, self.pool, buffer, SPLICE_MIN_BYTES, self.loop, CloseLogLimiter())
        settings: dict[str, Any] = {
            "translate": translate if self.rewrite else None,
            "max_in_flight": self.max_in_flight,
        }
        state = SessionState(self.ledger, self.counters, user="u", effects=shared.effects, **settings)
        self.session = self.doors(state)
        near = endpoint_of(client)
        self.pair = ConnectionPair(near, self.session, shared, self._changed, lambda _: self.session.user)
        self.stack.callback(self.pair.close, None)
        self._broker = broker
        self.pair.start()

    def _changed(self) -> None:
        pair = self.pair
        if pair.closed:
            self.ended = "ended" if isinstance(pair.reason, CloseReason) else f"{type(pair.reason)}: {pair.reason}"

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        for one in (near, far):
            self.stack.enter_context(one)
            one.setblocking(False)
        return near, far

    def _take(self, far: socket.socket, into: bytearray) -> None:
        with suppress(BlockingIOError):
            while data := far.recv(1 << 16):
                into += data

    def drain(self) -> None:
        self._take(self.broker_far, self.to_broker)
        self._take(self.client_far, self.to_client)

    def feed(self, far: socket.socket, data: bytes) -> None:
        """Send it, and let the turns run, until all has been taken (or nothing is taken: muted)."""
        view = memoryview(data)
        stuck = False
        while view and not self.ended and not stuck:
            try:
                view = view[far.send(view) :]
            except BlockingIOError:
                stuck = True
            self.run()
        self.unsent = bytes(view)

    def run(self) -> None:
        """All turns, until there is nothing more to do: each socket is readable and has room."""
        pair, loop = self.pair, self.loop
        if self.came_now:
            loop.since_ms = self.time() * 1000.0
        if pair.up.at_s <= self.time():
            pair.up.at_s = NEVER
            self._turn(pair.up.on_time)
        # The client's once more at the end: a response that was taken may let go on what waited for it.
        for direction in (pair.up, pair.down, pair.up):
            direction.readable = direction.source is not None
            self._turn(direction.run)
        while loop.again or pair.up.waits_for_writable or pair.down.waits_for_writable:
            for direction in (pair.up, pair.down):
                if direction.waits_for_writable:
                    direction.waits_for_writable = False
                    self._turn(direction.run)
            if loop.again:
                handler = loop.again.popleft()
                handler.queued = False
                self._turn(handler.run)

    def _turn(self, turn: Callable[[], object]) -> None:
        turn()
        if self.pair.wants_broker:  # not within the turn: it may end the connection as well
            self.pair.wants_broker = False
            self.pair.connected(endpoint_of(self._broker), 0.0)
        self.drain()

    def state(self) -> Any:
        session, pair = self.session, self.pair
        state, asks, answers = session.state, session.requests, session.responses
        time = state.request_time
        counters = self.counters
        return {
            "to broker": bytes(self.to_broker),
            "to client": bytes(self.to_client),
            "ended": self.ended,
            "readers": [
                (reader.left, reader.movable(), reader.kept_bytes(), reader.stopped, reader.at_boundary())
                for reader in (asks.reader, answers.reader)
            ],
            "exchange": (
                state.throttle.until_ms, state.exchange.kept_bytes, state.broker_mute_until_ms, state.auth.blocks,
                state.throttle.client_bytes,
            ),
            "in flight": [pending_of(one) for one in state.exchange],
            "requests": (
                list(asks.joined), asks.software, asks.saw_request, asks.established,
                asks._produced_bytes, asks._unanswered, asks._current is not None,
            ),
            "responses": answers.bytes_total,
            "time": (time.free_ms, time.recent, time._at, time.baseline_ms()),
            "turns": (
                pair.up.unsent, pair.down.unsent, pair.active_s, pair.compliance is not None,
            ),
            "counters": (
                counters.counted.by_api(), counters.upstream_latency.counts, counters.upstream_latency.sum_s,
                counters.fetches_answered, counters.fetches_shaped, counters.addresses_rewritten,
                counters.connections.muted, counters.throttled_responses,
            ),
            "book": book_of(self.ledger, self.time() * 1000.0),
        }  # fmt: skip


PENDING = (
    "correlation_id", "api_key", "api_version", "sent_ms",
    "local_answer", "work_bytes", "kept_bytes",
)  # fmt: skip


def pending_of(one: InFlightRequest) -> Any:
    fields = {name: getattr(one, name) for name in PENDING}
    penalty = one.penalty
    times = penalty and (penalty.delay_ms, penalty.until_ms, penalty.announced_until_ms)
    fields["penalty"] = penalty and (penalty.kind, times, penalty.charged)
    return fields | {"account": one.account.identity, "grant": one.grant, "hook": one.hook is not None}


@contextmanager
def driven(table: QuotaTable, *, smooth: bool = True, **more: Any) -> Iterator[tuple[FakeTime, Driven]]:
    time = FakeTime()
    with ExitStack() as stack:
        yield time, Driven(time, Ledger(table, smooth=smooth), stack, **more)
