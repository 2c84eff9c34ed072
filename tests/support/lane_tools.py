"""One connection pair, driven step by step over sockets of its own: by the compiled lane, or by the Python code that it
stands for; and all that one can see of it afterwards."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy import lane
from proxy.errors import SessionError
from proxy.io.reactor import AGAIN, Reactor, Watch
from proxy.io.splice import PipePool
from proxy.io.turns import Pause, Shared, Turns
from proxy.session.exchange import Pending
from proxy.session.session import Session
from proxy.telemetry.complaints import Complaints
from proxy.telemetry.observer import Counters
from quota.group import Admission
from quota.ledger import Ledger
from quota.table import QuotaTable
from quota.window import WindowGroup
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
    groups = [window_of(group) for group in ledger.groups() if isinstance(group, WindowGroup)]
    return accounts, groups, ledger.reservations, ledger.snapshot(now_ms)


def window_of(group: WindowGroup) -> Any:
    rate, pacer, portions = group.rate, group.pacer, group._portions
    return (
        (rate._sums, rate._starts, rate._lasts, rate.window_ms, group.last_ms, group.owed_until),
        (group._admitted, group._outstanding, group._typical),
        (pacer.active, pacer.paid_at, pacer._turn, pacer._held_until, pacer._calm_since),
        None if portions is None else (portions.batch, portions._fetches),
    )


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class TurnsAlone(Turns):
    """Without the pumps of `proxy.io.connection`."""

    def _release_sink(self) -> None:
        self._sink_taken = False


@dataclass
class Driven:
    """One connection pair, driven as its pumps would drive it. The far ends are the client and the broker."""

    compiled: bool
    waits_here: bool
    """The lane waits for room in a full socket itself. (That there is some is told with each turn here.)"""
    clock: Clock
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
        reactor.clock = self.clock
        self.counters = Counters()
        self.pool = PipePool()
        self.stack.callback(self.pool.close)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        shared = Shared(self.counters, self.pool, buffer, SPLICE_MIN_BYTES, reactor, Complaints())
        self.session = Session(
            self.ledger,
            self.counters,
            user="u",
            translate=translate if self.rewrite else None,
            max_in_flight=self.max_in_flight,
        )
        self.turns = turns = TurnsAlone(client, self.session, shared)
        self.stack.callback(turns._splice_up.close)
        self.stack.callback(turns._splice_down.close)
        self.client_watch: Watch[Pause] = Watch(reactor, client.fileno())
        turns._client_watch = self.client_watch
        self.broker_watch: Watch[Pause] = Watch(reactor, broker.fileno())
        turns._broker = broker
        self.client_turn: Any = turns._client_turn
        self.broker_turn: Any = lambda: turns._broker_turn(broker, self.broker_watch)
        self.lane: Any = None
        if self.compiled:
            self.lane = one = lane.lane_for(turns, self.client_watch)
            assert one is not None
            self.stack.callback(one.close)
            one.connected(broker, self.broker_watch)
            assert not one.waits_here  # there is no loop
            one.waits_here = self.waits_here
            self.client_turn, self.broker_turn = one.requests_turn(), one.responses_turn()
        self.client, self.broker = client, broker

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
        turns, watch = self.turns, self.client_watch
        watch.readable = True
        result = self.client_turn()
        self.drain()
        match result:
            case None | Pause.WAITS:
                return self.lane is not None and self.lane.up_waits
            case Pause.FULL:
                data, turns._to_broker = turns._to_broker, b""
                self._send_all(self.broker, data)
            case Pause.ANSWERS:
                self._send_all(self.client, b"".join(self.session.ready_answers()))
            case Pause.ENDED:
                self.ended = "ended"
        return True

    def _turn_of_broker(self) -> bool:
        turns, watch = self.turns, self.broker_watch
        watch.readable = True
        if self.came_now:
            self.reactor.since_ms = self.clock() * 1000.0
        result = self.broker_turn()
        self.drain()
        match result:
            case None:
                return self.lane is not None and self.lane.down_waits
            case Pause.FULL:
                data, turns._to_client = turns._to_client, b""
                turns._sink_taken = False
                self._send_all(self.client, data)
            case Pause.ENDED:
                self.ended = "ended"
            case other:
                assert other in (AGAIN, Pause.SPLICE_FULL)
        return True

    def _send_all(self, sock: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except BlockingIOError:
                self.drain()

    def state(self) -> Any:
        """Whatever one can see of it."""
        session, turns = self.session, self.turns
        exchange, asks, answers = session.exchange, session._requests, session._responses
        time = exchange.request_time
        counters = self.counters
        return {
            "to broker": bytes(self.to_broker),
            "to client": bytes(self.to_client),
            "ended": self.ended,
            "walkers": [
                (walker.skip, walker.dropping, walker.held, walker.stopped, walker.scrub is not None)
                for walker in (session.request_frames, session.response_frames)
            ],
            "exchange": (
                exchange.mute_until_ms, exchange.held_bytes, exchange.broker_mute_until_ms, exchange.client_waits,
            ),
            "in flight": [pending_of(one) for one in exchange.inflight],
            "requests": (
                asks.bytes_total, asks.client_ids, asks.software, asks._saw_request, asks.established, asks._backlog,
                None if asks._completing is None else (asks._completing[1], asks._completing[2] is not None),
                asks._unsent is not None,
            ),
            "responses": answers.bytes_total,
            "time": (time.free_ms, time._recent, time._at, time.baseline_ms),
            "turns": (
                turns._to_broker, turns._to_client, turns._sink_taken, turns._answers, turns._request_read_bytes,
                turns._response_read_bytes, turns.last_activity_s, turns._patience is not None,
            ),
            "counters": (
                dict(counters.requests), counters.upstream_latency.counts, counters.upstream_latency.sum_s,
                counters.fetches_answered, counters.fetches_shaped, counters.addresses_rewritten,
                counters.connections_muted,
            ),
            "book": book_of(self.ledger, self.clock() * 1000.0),
        }  # fmt: skip


def admission_of(one: Admission) -> Any:
    return one.throttle_ms, one.max_bytes, one.reserved, one.paced_ms


def pending_of(one: Pending) -> Any:
    fields = {name: getattr(one, name) for name in Pending.__slots__}
    fields["account"] = one.account.identity
    fields["admission"] = None if one.admission is None else admission_of(one.admission)
    return fields


@contextmanager
def both(
    table: QuotaTable, *, waits_here: bool, smooth: bool = True, **more: Any
) -> Iterator[tuple[Clock, Driven, Driven]]:
    clock = Clock()
    with ExitStack() as stack:
        compiled, pure = (
            Driven(way, waits_here, clock, Ledger(table, smooth=smooth), stack, **more) for way in (True, False)
        )
        yield clock, compiled, pure
