"""One sidecar's proxy: its parts put together, from the first listener to the graceful end."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from proxy.core.interceptors.intercept import NO_INTERCEPTORS, Interceptors
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.telemetry.observer import ConnectionInfo, Counters
from proxy.net.close_log import CloseLogLimiter
from proxy.net.io import host
from proxy.net.io.loop import Clock, EventLoop
from proxy.net.io.pair import Shared
from proxy.net.io.splice import PipePool
from proxy.net.listen.acceptor import ACCEPT_CAPACITY_ERRNOS, Acceptor
from proxy.net.listen.addresses import KnownPort
from proxy.net.listen.admission import ConnectionAdmission
from proxy.net.listen.cluster_brokers import ClusterBrokers
from proxy.net.listen.connections import Connections
from proxy.net.listen.identification import Identification
from proxy.net.listen.listeners import bind, bind_all
from proxy.net.listen.sweeper import Sweeper
from proxy.net.listen.transparent import Interception
from proxy.net.settings import ProxySettings
from proxy.net.tls.handshakes import Handshakes
from proxy.net.upstream.dial import Dialer
from proxy.net.upstream.resolver import Resolver
from quota.ledger import Ledger

log = structlog.get_logger("kquota.proxy")

BOOTSTRAP: Final = "bootstrap"


class Proxy:
    """A bootstrap listener, one per broker, and the connections through them: what `proxy.app` starts and drains."""

    def __init__(
        self,
        settings: ProxySettings,
        ledger: Ledger,
        counters: Counters | None = None,
        interceptors: Interceptors = NO_INTERCEPTORS,
        reserved: ReservedTopic | None = None,
        loop: EventLoop | None = None,
        known_ports: Sequence[KnownPort] = (),
    ) -> None:
        """`known_ports`: of a former run, listened on from the start. `loop` is the host of trio's run
        (`proxy.net.io.host`); None: trio is run in another way, and serves one."""
        self._settings = settings
        self.counters = counters = counters or Counters()
        self._interception: Interception | None = None
        if settings.transparent is not None:
            self._interception = Interception(settings.transparent, counters)
        self._shared = shared = Shared(
            counters=counters,
            pipes=PipePool(),
            buffer=memoryview(bytearray(settings.buffer_bytes)),
            splice_min_bytes=settings.splice_min_bytes,
            loop=loop or EventLoop(Clock(trio.current_time)),
            close_log=CloseLogLimiter(),
        )
        shared.loop.turns = counters.long_turns
        self._hosted = loop is not None
        handshakes = Handshakes(counters)
        dialer = Dialer(
            settings.connect_timeout_s, settings.upstream_tls, counters, handshakes, lambda: self._acceptor.listeners
        )
        self._admission = ConnectionAdmission(ledger.connections, counters, settings.bounds.max_held_connections)
        self.cluster = ClusterBrokers(settings, dialer, self._bind_broker, self._close_broker)
        self._connections = connections = Connections(
            settings,
            ledger,
            shared,
            interceptors,
            reserved,
            self._admission,
            Identification(settings, self._admission, self.cluster),
            self._interception,
            dialer,
            self.cluster,
        )
        self._acceptor = Acceptor(connections)
        self._sweeper = Sweeper(settings, connections.open, shared.close_log)
        self._broker_listeners: dict[int, socket.socket] = {}
        self._refused: set[int] = set()
        self._nursery: trio.Nursery | None = None
        self._drain_asked = trio.Event()
        self._known_ports = known_ports
        self.port = settings.port
        """Of the bootstrap listener: the real one, once it is bound."""
        self.state = "starting"

    @property
    def full(self) -> str | None:
        """Why the process's limit of open files allows no further connection or listener; None when it does."""
        return self._acceptor.full or self.cluster.book.exhausted

    @property
    def pipes_open(self) -> int:
        """Kernel pipes held for splicing, for leak checks."""
        return self._shared.pipes.pipes_open

    @property
    def given_user(self) -> tuple[str, str]:
        """The user of a connection that has not been identified yet, and its source: "static" or "anonymous"."""
        return self._settings.identity.choose()

    def each_connection(self) -> Iterator[ConnectionInfo]:
        """All open connections, one by one: other tasks may run, and connections end, between two of them."""
        return (connection.info() for connection in list(self._connections.open) if not connection.ended)

    @property
    def broker_ports(self) -> int:
        """How many brokers can have a local port; 0 in transparent mode."""
        return 0 if self._interception is not None else len(self._settings.broker_ports)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until drained. Raises OSError if the bootstrap port cannot be bound."""
        settings, acceptor = self._settings, self._acceptor
        resolver = trio.socket.set_custom_hostname_resolver(Resolver())
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = self._connections.nursery = nursery
                if self._interception is None:
                    acceptor.listeners.append(bind(settings.host, settings.port))
                else:
                    self._interception.prepare()
                    acceptor.listeners += bind_all(settings.host, settings.port)
                self.port = int(acceptor.listeners[0].getsockname()[1])
                self.state = "serving"
                for listener in acceptor.listeners:
                    nursery.start_soon(acceptor.run, listener, BOOTSTRAP, self.cluster.dial_bootstrap)
                self.cluster.book.restore(self._known_ports, trio.current_time())
                if not self._hosted:
                    nursery.start_soon(host.serve, self._shared.loop)
                nursery.start_soon(self._admission.run)
                if self._interception is not None:
                    nursery.start_soon(self._interception.send_heartbeats, self.port, self._drain_asked)
                if settings.bootstrap:
                    nursery.start_soon(self.cluster.watch)
                nursery.start_soon(self._sweeper.run)
                log.info("listening", host=settings.host, port=self.port)
                task_status.started()
                await self._drain_asked.wait()
                acceptor.stop()
                await self._connections.drain()
                nursery.cancel_scope.cancel()
        finally:
            self.state = "stopped"
            trio.socket.set_custom_hostname_resolver(resolver)
            if not self._hosted:
                self._shared.loop.close()
            acceptor.close()
            self._shared.pipes.close()

    def drain(self) -> None:
        """Stop accepting, let requests in flight finish, then close; `serve` returns when that is done."""
        if self.state == "serving":
            self.state = "draining"
            log.info("draining", connections=len(self._connections.open))
        self._drain_asked.set()

    def _bind_broker(self, node_id: int, port: int) -> bool:
        assert self._nursery is not None
        if self.state != "serving":  # all listeners are closed
            return True
        try:
            self._acceptor.check_capacity()
            listener: socket.socket = bind(self._settings.host, port)
        except OSError as error:
            retry = error.errno not in ACCEPT_CAPACITY_ERRNOS
            if port not in self._refused:
                log.warning(
                    "cannot listen on a broker port, trying the next" if retry else "no listener for a broker",
                    port=port,
                    node_id=node_id,
                    error=str(error),
                )
            self._refused.add(port)
            if retry:
                return False
            raise
        self._refused.discard(port)
        self._broker_listeners[port] = listener
        self._acceptor.listeners.append(listener)
        log.info("broker listener opened", node_id=node_id, port=port)
        self._nursery.start_soon(self._acceptor.run, listener, f"broker {node_id}", partial(self.cluster.dial, node_id))
        return True

    def _close_broker(self, port: int) -> None:
        if self.state == "serving":
            self._acceptor.close_listener(self._broker_listeners.pop(port))
            log.info("broker listener closed", port=port)
