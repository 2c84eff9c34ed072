"""One connection pair, driven step by step over sockets of its own as its pumps and the event loop would drive it; and
all that one can see of it afterwards."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy.core.errors import SessionError
from proxy.core.session.exchange import InFlightRequest
from proxy.core.session.session import Session
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io.pair import ConnectionIO, Shared, StopReason
from proxy.net.io.reactor import Reactor
from proxy.net.io.rounds import AGAIN, Clock, Watch
from proxy.net.io.sockets import endpoint_of
from proxy.net.io.splice import PipePool
from quota.counter import FetchAdmission
from quota.ledger import Ledger
from quota.paced import DebtCounter
from quota.reservation import FetchCounter
from quota.table import QuotaTable
from tests.support.session_tools import translate

BUFFER_BYTES = 16_384
SPLICE_MIN_BYTES = 4_096


def book_of(ledger: Ledger, now_ms: float) -> Any:
    """All that a ledger knows."""
    accounts = sorted(
        (
            tuple(account.identity),
            [(meter.amount, meter.charges, meter.throttled, meter.throttle_ms) for meter in account.meters.values()],
            dict(account.requests),
            account.last_ms,
            account.touched,
        )
        for account in ledger.accounts()
    )
    groups = [window_of(group) for group in ledger.groups() if isinstance(group, DebtCounter)]
    return accounts, groups, ledger.reservations, [_snapshot(one) for one in ledger.snapshot(now_ms)]


def _snapshot(one: Any) -> Any:
    return [(name, getattr(one, name)) for name in one.__slots__ if name not in ("shadow", "candidate")]


def window_of(group: DebtCounter) -> Any:
    rate, pacer = group.rate, group.pacer
    fetched = group if isinstance(group, FetchCounter) else None
    return (
        (rate.samples, rate.window_ms, group.last_ms),
        (group.may_hold, pacer.paid_at, pacer._last_scheduled, pacer._held_until, pacer._calm_since),
        fetched and (fetched._admitted, fetched._outstanding, fetched._typical),
        fetched and (fetched._fetch_sizer.batch, fetched._fetch_sizer._fetches),
    )


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
    came_now: bool = False
    """Responses have come just now (else at time 0): no matter then whether their end is read or spliced."""
    to_broker: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    ended: str = ""
    unsent: bytes = b""

    def __post_init__(self) -> None:
        client, self.client_far = self._pair()
        broker, self.broker_far = self._pair()
        self.reactor = reactor = Reactor()
        self.stack.callback(reactor.round.close)
        reactor.round.clock = Clock(self.time)
        self.counters = Counters()
        self.pool = PipePool()
        self.stack.callback(self.pool.close)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        shared = Shared(self.counters, self.pool, buffer, SPLICE_MIN_BYTES, reactor, CloseLogLimiter())
        self.session = Session(
            self.ledger,
            self.counters,
            user="u",
            translate=translate if self.rewrite else None,
            max_in_flight=self.max_in_flight,
        )
        self.client_watch = Watch(reactor.round, client.fileno())
        self.broker_watch = Watch(reactor.round, broker.fileno())
        self.turns = ConnectionIO(endpoint_of(client), self.client_watch, self.session, shared, self.time())
        self.stack.callback(self.turns.close)
        self.turns.connected(endpoint_of(broker), self.broker_watch)

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        for one in (near, far):
            self.stack.enter_context(one)
            one.setblocking(False)
        return near, far

    def _take(self, far: socket.socket, into: bytearray) -> None:
        try:
            while data := far.recv(1 << 16):
                into += data
        except BlockingIOError:
            pass

    def drain(self) -> None:
        self._take(self.broker_far, self.to_broker)
        self._take(self.client_far, self.to_client)

    def feed(self, far: socket.socket, data: bytes) -> None:
        """Send it, and let the turns run, until all has been taken (or nothing is taken: muted)."""
        view = memoryview(data)
        while view and not self.ended:
            try:
                view = view[far.send(view) :]
                stuck = 0
            except BlockingIOError:
                stuck = 1
            self.run()
            if stuck:
                break
        self.unsent = bytes(view)

    def run(self) -> None:
        """All turns, until there is nothing more to do."""
        try:
            # The client's once more at the end: a response that was taken may let go on what waited for it.
            while not self.ended and (self._turn_of_client() | self._turn_of_broker() | self._turn_of_client()):
                pass
        except SessionError as error:
            self.ended = f"{error.reason}: {error}"
        self.drain()

    def _turn_of_client(self) -> bool:
        return self._turn(self.turns.on_client_readable, self.client_watch, self.broker_watch)

    def _turn_of_broker(self) -> bool:
        if self.came_now:
            self.reactor.round.since_ms = self.time() * 1000.0
        return self._turn(self.turns.on_broker_readable, self.broker_watch, self.client_watch)

    def _turn(self, turn: Any, watch: Watch, other: Watch) -> bool:
        """One turn. Whether there may be more to do."""
        watch.readable = True
        result = turn()
        self.drain()
        if result is StopReason.ENDED:
            self.ended = "ended"
        assert result in (None, AGAIN, StopReason.WAITS, StopReason.ENDED)
        full, other.room_for = other.room_for is not None, None  # there is room now
        return result is AGAIN or full

    def state(self) -> Any:
        """Whatever one can see of it."""
        session, turns = self.session, self.turns
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
                state.throttle.until_ms, state.exchange.kept_bytes, state.broker_mute_until_ms, state.client_waits,
                state.throttle.client_bytes,
            ),
            "in flight": [pending_of(one) for one in state.exchange],
            "requests": (
                asks.client_ids, asks.software, asks._saw_request, asks.established,
                asks._produced_bytes, asks._unanswered, asks._current is not None,
            ),
            "responses": answers.bytes_total,
            "time": (time.free_ms, time.recent, time._at, time.baseline_ms),
            "turns": (
                turns.to_broker, turns.to_client, turns.last_activity_s, turns.compliance is not None,
            ),
            "counters": (
                counters.requests, counters.upstream_latency.counts, counters.upstream_latency.sum_s,
                counters.fetches_answered, counters.fetches_shaped, counters.addresses_rewritten,
                counters.connections_muted, counters.throttles_told,
            ),
            "book": book_of(self.ledger, self.time() * 1000.0),
        }  # fmt: skip


def admission_of(one: FetchAdmission) -> Any:
    return one.throttle_ms, one.max_bytes, one.reserved, one.paced_ms


PENDING = (
    "correlation_id", "api_key", "api_version", "sent_ms",
    "local_answer", "replicated_bytes", "held_bytes",
)  # fmt: skip


def pending_of(one: InFlightRequest) -> Any:
    fields = {name: getattr(one, name) for name in PENDING}
    penalty = one.penalty
    fields["penalty"] = penalty and (
        penalty.kind,
        penalty.delay_ms,
        penalty.until_ms,
        penalty.told_until_ms,
        penalty.charged,
    )
    fields["account"] = one.account.identity
    fields["admission"] = None if one.admission is None else admission_of(one.admission)
    fields["asked"], fields["on_response"] = one.asked is not None, one.on_response is not None
    return fields


@contextmanager
def driven(table: QuotaTable, *, smooth: bool = True, **more: Any) -> Iterator[tuple[FakeTime, Driven]]:
    time = FakeTime()
    with ExitStack() as stack:
        yield time, Driven(time, Ledger(table, smooth=smooth), stack, **more)
