"""An instance: the real event loop, connection pairs, sessions and ledger, over simulated sockets, polling and time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import Any

from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.session import Session
from proxy.core.session.state import SessionState
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.responses import NodeAddress
from proxy.net.io import calls
from proxy.net.io.endpoint import Endpoint
from proxy.net.io.loop import Clock as LoopClock
from proxy.net.io.loop import EventLoop
from proxy.net.io.pair import ConnectionPair, Shared
from proxy.net.io.splice import PipePool
from proxy.net.listen import sweeper
from proxy.net.settings import ProxySettings
from proxy.net.tls.channel import TlsSocket
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.world.clock import Clock
from tests.world.fleet import Member
from tests.world.network import Socket

SWEEP_S, QUIET_SWEEP_S = 3.0, 10.0
FIRST_PORT = 19_000
DRAIN_S = 30.0
MICRO_S = 1e-6  # clocks go on while code runs: a deadline has passed when it is looked at
Tap = Callable[[int], object]
Dial = Callable[[int, Callable[[Socket | None], None]], None]


class Quiet:
    """In place of the log of closed connections, and of what measures the loop's turns."""

    def closed(self, *_: object, **__: object) -> None: ...

    def look(self, *_: object) -> None: ...


class Poller(calls.Poller):
    """epoll of simulated sockets, edge-triggered."""

    __slots__ = ("came", "sockets")

    def __init__(self) -> None:
        self.fd = -1
        self.came: dict[int, int] = {}  # flags of events that were not reported yet, by descriptor
        self.sockets: dict[int, Socket] = {}

    def register(self, fd: int, _events: int) -> None:
        self.note(fd, self.sockets[fd].flags())

    def unregister(self, fd: int) -> None:
        self.came.pop(fd, None)

    def note(self, fd: int, flags: int) -> None:
        self.came[fd] = self.came.get(fd, 0) | flags

    def wait(self, _timeout_s: float) -> int:
        events = list(self.came.items())[: calls.MAX_EVENTS]
        for fd, _ in events:
            del self.came[fd]
        return self.found(events)

    def close(self) -> None: ...


class KernelSocket(TlsSocket):
    """What the kernel would know of a simulated socket (`proxy.net.io.kernel`)."""

    def __init__(self, fd: int, socket: Socket) -> None:
        self._fd = fd
        self._simulated = socket
        self._sent_bytes = 0

    def fileno(self) -> int:
        return self._fd

    def unread_bytes(self) -> int:
        return len(self._simulated.inbox)

    def getsockopt(self, _level: int, _option: int, size: int = 0) -> Any:
        """TCP_INFO: the state, bytes acknowledged and bytes not sent."""
        one, info = self._simulated, bytearray(max(size, 148))
        info[0] = 7 if one.broken else 8 if one.ended else 1
        struct.pack_into("=Q16xI", info, 120, self._sent_bytes - len(one.outbox), len(one.outbox))
        return bytes(info[:size])

    def detach(self) -> int:
        return -1

    def close(self) -> None: ...


class SimulatedEndpoint(Endpoint):
    """One side's socket, as the pair uses it. `tap(n)`: so many more bytes were offered to the socket, of which
    `offered` bytes were already."""

    __slots__ = ("_kernel", "_refused", "_tap", "socket")

    def __init__(self, fd: int, socket: Socket, tap: Tap, offered: int = 0) -> None:
        self._kernel = KernelSocket(fd, socket)
        super().__init__(self._kernel, splices=False)
        self.socket = socket
        self._tap = tap
        self._refused = offered

    def receive(self, buffer: memoryview, count: int) -> int:
        data = self.socket.read(count)
        if data is None:
            return -1
        buffer[: len(data)] = data
        return len(data)

    def send(self, buffer: bytes | bytearray | memoryview, start: int, end: int, _more: bool) -> int:
        return self._send(memoryview(buffer)[start:end])

    def send_all(self, buffers: list[Any], _more: bool) -> int:
        return self._send(b"".join(buffers))

    def _send(self, data: bytes | memoryview) -> int:
        taken = self.socket.send(data)
        fresh, self._refused = len(data) - self._refused, len(data) - taken
        self._kernel._sent_bytes += taken
        self._tap(fresh)
        return taken


class Link:
    """A connection as its task and the sweeper see it (`proxy.net.io.connection`)."""

    def __init__(self, instance: Instance, client: Socket, session: Session, released: Tap, returned: Tap) -> None:
        self.instance, self.session = instance, session
        self.expires_s = inf
        self.peer = self.broker_name = ""
        self._released = released
        self._fds = [instance.adopt(client)]
        self._sides = [SimulatedEndpoint(self._fds[0], client, returned)]
        self.broker = -1
        self.pair = ConnectionPair(self._sides[0], session, instance.shared, self._changed, lambda _: session.user)

    @property
    def ended(self) -> bool:
        return self.pair.closed

    @property
    def sockets(self) -> tuple[Any, Any]:
        return self._sides[0].sock, self._sides[1].sock if len(self._sides) > 1 else None

    @property
    def last_activity_s(self) -> float:
        return self.pair.active_s

    def abort(self, reason: CloseReason) -> None:
        self.pair.close(reason)

    def retire(self, late: bool) -> None:
        self.pair.retire(late)

    def crash(self) -> None:
        for side in self._sides:
            side.socket.abort()

    def _changed(self) -> None:
        instance, pair = self.instance, self.pair
        if pair.closed:
            instance.ended(self)
            for fd, side in zip(self._fds, self._sides, strict=True):
                side.socket.close()
                instance.release(fd)
        elif pair.wants_broker:
            pair.wants_broker = False
            self._released(len(pair.up.unsent))
            instance.dial(self.broker, self._dialled)

    def _dialled(self, socket: Socket | None) -> None:
        if self.pair.closed or self.instance.dead:
            if socket is not None:
                socket.abort()
        elif socket is None:
            self.pair.close(SessionError(CloseReason.UPSTREAM_UNREACHABLE, "the broker is down"))
        else:
            fd = self.instance.adopt(socket)
            self._fds.append(fd)
            self._sides.append(SimulatedEndpoint(fd, socket, self._released, len(self.pair.up.unsent)))
            self.pair.connected(self._sides[1], 1.0)
            self.instance.wake()


class Instance:
    """One process, the `number`th in all, the latest in its `place`. `dial(broker, call)` connects to a broker, and
    calls `call(socket or None)`."""

    def __init__(self, clock: Clock, number: int, place: int, table: QuotaTable, dial: Dial) -> None:
        self.clock, self.number, self.place, self.dial = clock, number, place, dial
        self.name = f"kquota-{place}"
        self.dead = self.quiet = False
        self.ledger = Ledger(table, max_throttle_ms=120_000)
        self.counters = Counters()
        quiet: Any = Quiet()
        self.loop = EventLoop(LoopClock(lambda: clock.now_s), quiet)
        self.loop.poller.close()
        self.poller = self.loop.poller = Poller()
        settings = ProxySettings("", 0, range(0), ())
        buffer = memoryview(bytearray(settings.buffer_bytes))
        self.shared = Shared(self.counters, PipePool(), buffer, 0, self.loop, quiet)
        self.links: dict[Link, None] = {}
        self.member: Member | None = None
        self.faults: list[BaseException] = []  # internal errors
        self._free: list[int] = []
        self._next_fd = 10
        self._serving = False
        self._next_s = inf
        self._swept_s = clock.now_s
        self._sweeper = sweeper.Sweeper(settings, self.links, quiet)  # type: ignore[arg-type]
        clock.after(SWEEP_S, self._sweep)

    # ---- what links need --------------------------------------------------------------------------------------------

    def adopt(self, socket: Socket) -> int:
        if self._free:
            fd = heappop(self._free)
        else:
            fd, self._next_fd = self._next_fd, self._next_fd + 1
        self.poller.sockets[fd] = socket
        socket.notify = lambda flags: self._heard(fd, flags)
        return fd

    def release(self, fd: int) -> None:
        del self.poller.sockets[fd]
        self.poller.came.pop(fd, None)
        heappush(self._free, fd)

    def ended(self, link: Link) -> None:
        self.links.pop(link, None)
        reason = link.pair.reason
        if isinstance(reason, BaseException) and not isinstance(reason, SessionError):
            self.faults.append(reason)
        name = reason.reason if isinstance(reason, SessionError) else reason
        self.counters.connections.closed[str(name)] += 1

    def _heard(self, fd: int, flags: int) -> None:
        self.poller.note(fd, flags)
        self.wake()

    def wake(self) -> None:
        if not self._serving:
            self._serving = True
            self.clock.at(self.clock.now_s, self._serve)

    # ---- life -------------------------------------------------------------------------------------------------------

    def accept(self, client: Socket, broker: int, user: str, released: Tap, returned: Tap) -> None:
        effects = self.shared.effects
        session = Session(
            SessionState(self.ledger, self.counters, user=user, translate=self._translate, effects=effects)
        )
        link = Link(self, client, session, released, returned)
        link.broker = broker
        self.links[link] = None
        link.pair.start()
        self.wake()

    def crash(self) -> None:
        self.dead = True
        for link in self.links:
            link.crash()
        self.links.clear()
        self.loop.close()

    def drain(self) -> None:
        """SIGTERM: connections end when nothing is owed; what is left after half a minute is aborted."""
        if self.member is not None:
            self.member.leave()
        for link in list(self.links):
            link.pair.drain()
        self.clock.after(DRAIN_S, self._abort)
        self.wake()

    def _abort(self) -> None:
        for link in list(self.links):
            link.abort(CloseReason.DRAIN_TIMEOUT)
        if not self.dead:
            self.dead = True
            self.loop.close()

    def _translate(self, nodes: Sequence[NodeAddress], _complete: bool) -> list[tuple[str, int]]:
        return [(self.name, FIRST_PORT + node.node_id) for node in nodes]

    def _serve(self) -> None:
        self._serving = False
        if self.dead:
            return
        loop, poller, now_s = self.loop, self.poller, self.clock.now_s
        loop.serve(0.0, now_s - 1.0)
        while loop.again or poller.came or loop.next_s() <= now_s:
            loop.serve(0.0, now_s - 1.0)
        next_s = loop.next_s()
        if next_s < self._next_s or self._next_s <= now_s:
            self._next_s = next_s + MICRO_S
            if next_s < inf:
                self.clock.at(self._next_s, self.wake)

    def _sweep(self) -> None:
        if self.dead:
            return
        passed_s, self._swept_s = self.clock.now_s - self._swept_s, self.clock.now_s
        with suppress(StopIteration):
            self._sweeper._sweep(self.clock.now_s, passed_s).send(None)
        self.wake()
        self.clock.after(QUIET_SWEEP_S if self.quiet else SWEEP_S, self._sweep)


async def _at_once() -> None:
    """In place of trio's checkpoint: there are no other tasks."""


sweeper.give_way = _at_once
