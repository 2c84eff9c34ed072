"""Listeners, accept loops, the cluster's brokers and the graceful shutdown: what `deploy` starts and drains."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
import trio

from proxy.errors import CloseReason, SessionError, UpstreamError
from proxy.interceptors.intercept import NO_INTERCEPTORS, Interceptors
from proxy.io.connection import Connection
from proxy.io.connection_io import Shared
from proxy.io.reactor import Reactor
from proxy.io.splice import PipePool
from proxy.listen.addresses import AddressBook, BadAddressError, BrokerKey, NoFreePortError
from proxy.listen.admission import ConnectionAdmission
from proxy.listen.identification import Identification
from proxy.listen.listeners import bind, bind_all
from proxy.listen.passthrough import TransparentConnection, begins_with_tls
from proxy.listen.spare_fd import SpareFd, most_connections
from proxy.listen.sweeper import Sweeper
from proxy.listen.transparent import Destination, Interception, spelled
from proxy.session.session import Session
from proxy.session.state import AddressTranslator
from proxy.settings import ProxySettings
from proxy.telemetry.close_log import CloseLogLimiter
from proxy.telemetry.observer import ConnectionInfo, Counters
from proxy.tls.contexts import ServerTls
from proxy.tls.handshakes import HandshakeError, Handshakes
from proxy.upstream.cluster import ClusterError, LoginWantedError, ask_brokers
from proxy.upstream.dial import Dial, Dialer
from proxy.upstream.resolver import Resolver
from proxy.wire.responses import NodeAddress
from quota.connections import Ticket
from quota.ledger import Ledger

log = structlog.get_logger("kquota.proxy")

ACCEPT_CAPACITY_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
ACCEPT_PAUSE_S: Final = 0.1
"""Out of descriptors: open connections go on, and this many new ones are turned away at a time."""
ACCEPT_SAID_EVERY_S: Final = 10.0
TURNED_AWAY_AT_ONCE: Final = 100
FIRST_RETRY_S: Final = 0.2
"""While no broker has answered yet, ask again after this time (doubling up to `metadata_refresh_s`)."""
SHORTEST_REFRESH_S: Final = 1.0
"""A broker that cannot be reached makes us ask the cluster again, but not more often than this."""

BOOTSTRAP: Final = "bootstrap"
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


class Proxy:
    """One sidecar: a bootstrap listener, a listener per broker, and the connections through them."""

    def __init__(
        self,
        settings: ProxySettings,
        ledger: Ledger,
        counters: Counters | None = None,
        interceptors: Interceptors = NO_INTERCEPTORS,
    ) -> None:
        self._settings = settings
        self._interceptors = interceptors
        self._ledger = ledger
        self.counters = counters or Counters()
        self._book = AddressBook(settings.broker_ports, self._bind_broker)
        self._interception = (
            None
            if settings.transparent is None
            else Interception(settings.transparent, self.counters, settings.connect_timeout_s)
        )
        self._nodes: list[NodeAddress] = []
        """Brokers as last reported in transparent mode, where none has a listener."""
        self._shared = Shared(
            counters=self.counters,
            pipes=PipePool(),
            buffer=memoryview(bytearray(settings.buffer_bytes)),
            splice_min_bytes=settings.splice_min_bytes,
            reactor=Reactor(),
            close_log=CloseLogLimiter(),
        )
        self._handshakes = Handshakes(self.counters)
        self._dialer = Dialer(settings.connect_timeout_s, settings.upstream_tls, self.counters, self._handshakes)
        self._admission = ConnectionAdmission(ledger.connections, self.counters, settings.max_held_connections)
        self._connections: set[Connection] = set()
        self._securing = 0  # connections whose TLS handshake is in progress: they count as well
        self._most_connections = most_connections(settings.max_connections)
        self._spare_fd = SpareFd()
        self._sweeper = Sweeper(settings, self._connections, self._shared.close_log)
        self._listeners: list[socket.socket] = []
        self._nursery: trio.Nursery | None = None
        self._accept_scopes: set[trio.CancelScope] = set()
        self._drain_asked = trio.Event()
        self._connection_ended = trio.Event()
        self._bootstrap_first: tuple[str, int] | None = None
        self._look_again = trio.Event()
        self._accept_said_s = -ACCEPT_SAID_EVERY_S
        self._port = settings.listen_port
        self._identification = Identification(settings, self._admission, self._known_brokers)
        self.state = "starting"
        """starting, serving, draining, stopped"""
        self.cluster_reached = not settings.bootstrap
        """Whether the cluster answered the last Metadata request; true where there is no cluster to ask (transparent
        mode without bootstrap servers)."""
        self.last_cluster_error: str | None = None

    # ---- for other modules ------------------------------------------------------------------------------------------

    @property
    def listeners_bound(self) -> bool:
        """True while clients can connect."""
        return self.state == "serving" and bool(self._listeners)

    @property
    def port(self) -> int:
        """Port of the bootstrap listener (the real one, if 0 was asked for)."""
        return self._port

    @property
    def pipes_open(self) -> int:
        """Kernel pipes held for splicing, for leak checks."""
        return self._shared.pipes.pipes_open

    @property
    def given_user(self) -> tuple[str, str]:
        """The user of a connection that has not been identified yet, and its source: "static" or "anonymous"."""
        return self._settings.identity.choose()

    def connections(self) -> list[ConnectionInfo]:
        """All open connections."""
        return [connection.info() for connection in self._connections]

    def brokers(self) -> list[tuple[int, str, int, int]]:
        """(node id, host, port, local port) of the brokers seen; in transparent mode the local port is their own."""
        if self._interception is not None:
            return [(node.node_id, node.host, node.port, node.port) for node in self._nodes]
        return [(a.key.node_id, a.host, a.port, a.local_port) for a in self._book.brokers() if a.key.kind == "broker"]

    # ---- life cycle -------------------------------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until drained. Raises OSError if the bootstrap port cannot be bound."""
        settings = self._settings
        resolver = trio.socket.set_custom_hostname_resolver(Resolver())
        self._shared.reactor.start()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._interception is None:
                    self._listeners.append(bind(settings.listen_host, settings.listen_port))
                else:
                    self._interception.prepare()
                    self._listeners += bind_all(settings.listen_host, settings.listen_port)
                self._port = int(self._listeners[0].getsockname()[1])
                self.state = "serving"
                for listener in self._listeners:
                    nursery.start_soon(self._accept_loop, listener, BOOTSTRAP, self._dial_bootstrap)
                nursery.start_soon(self._shared.reactor.run)
                nursery.start_soon(self._admission.run)
                nursery.start_soon(self._identification.run)
                if self._interception is not None:
                    nursery.start_soon(self._beat, self._interception)
                if settings.bootstrap:
                    nursery.start_soon(self._watch_cluster)
                nursery.start_soon(self._sweeper.run)
                log.info("listening", host=settings.listen_host, port=self.port)
                task_status.started()
                await self._drain_asked.wait()
                await self._finish()
                nursery.cancel_scope.cancel()
        finally:
            self.state = "stopped"
            trio.socket.set_custom_hostname_resolver(resolver)
            self._shared.reactor.stop()
            for listener in self._listeners:
                trio.lowlevel.notify_closing(listener)
                listener.close()
            self._listeners.clear()
            self._shared.pipes.close()
            self._spare_fd.close()

    def drain(self) -> None:
        """Stop accepting, let requests in flight finish, then close; `serve` returns when that is done."""
        if self.state == "serving":
            self.state = "draining"
            log.info("draining", connections=len(self._connections))
        self._drain_asked.set()

    async def _finish(self) -> None:
        for scope in self._accept_scopes:
            scope.cancel()
        for listener in self._listeners:  # new clients are refused at once instead of waiting in the backlog
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners.clear()
        self._admission.let_go()
        for connection in list(self._connections):
            connection.drain()
        with trio.move_on_after(self._settings.drain_timeout_s):
            await self._no_connections()
        for connection in list(self._connections):
            connection.abort(CloseReason.DRAIN_TIMEOUT)
        await self._no_connections()

    async def _no_connections(self) -> None:
        while self._connections:
            await self._connection_ended.wait()

    # ---- listeners --------------------------------------------------------------------------------------------------

    def _bind_broker(self, key: BrokerKey, port: int) -> bool:
        assert self._nursery is not None
        try:
            listener = bind(self._settings.listen_host, port)
        except OSError as error:
            log.warning("broker port is taken, trying the next", port=port, node_id=key.node_id, error=str(error))
            return False
        self._listeners.append(listener)
        log.info("broker listener", node_id=key.node_id, port=port)
        self._nursery.start_soon(
            self._accept_loop, listener, f"{key.kind} {key.node_id}", lambda: self._dial_broker(key)
        )
        return True

    async def _beat(self, interception: Interception) -> None:
        with trio.CancelScope() as scope:
            self._accept_scopes.add(scope)
            await interception.beat(self._port)

    async def _accept_loop(self, listener: socket.socket, name: str, dial: Dial) -> None:
        assert self._nursery is not None
        with trio.CancelScope() as scope:
            if self._drain_asked.is_set():
                return
            self._accept_scopes.add(scope)
            while listener.fileno() >= 0:  # it may be closed between a wait and the accept
                await trio.lowlevel.wait_readable(listener)
                try:
                    client, address = listener.accept()
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno in ACCEPT_CAPACITY_ERRNOS:
                        await self._no_descriptors(listener, error)
                    continue  # the client is gone before we accepted it (ECONNABORTED and the like)
                if len(self._connections) + self._securing >= self._most_connections:
                    self._turn_away(client, address, CloseReason.MAX_CONNECTIONS, limit=self._most_connections)
                else:
                    self._start_connection(client, address, name, dial)

    async def _no_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Out of descriptors: turn away clients in the backlog, so that they need not wait, and keep serving the
        others."""
        self.counters.accept_failures += 1
        if self._admission.let_go():
            return  # descriptors are free now
        now_s = trio.current_time()
        if now_s >= self._accept_said_s + ACCEPT_SAID_EVERY_S:
            self._accept_said_s = now_s
            log.error("cannot accept", error=str(error), failures=self.counters.accept_failures)
        for _ in range(TURNED_AWAY_AT_ONCE):
            if not self._spare_fd.turn_away(listener):
                break
            self.counters.connections_opened += 1
            self.counters.connections_closed[str(CloseReason.NO_DESCRIPTORS)] += 1
        await trio.sleep(ACCEPT_PAUSE_S)
        self._spare_fd.refill()

    def _turn_away(self, client: socket.socket, address: tuple[str, int], reason: CloseReason, **why: Any) -> None:
        client.close()
        self.counters.connections_opened += 1
        self.counters.connections_closed[str(reason)] += 1
        self._shared.close_log.closed(str(reason), peer=f"{address[0]}:{address[1]}", **why)

    def _start_connection(
        self,
        client: socket.socket,
        address: tuple[str, int],
        name: str,
        dial: Dial,
    ) -> None:
        assert self._nursery is not None
        destination, plain = None, dial
        if self._interception is not None:
            try:
                destination = self._interception.inspect(client, address)
            except SessionError as refusal:
                self._interception.refuse(client, refusal)
                return
            name, dial = str(destination), partial(self._interception.dial, destination)
            plain = dial
            if self._settings.listen_tls is None:  # otherwise plaintext goes on as plaintext
                dial = self._dialer.through(destination, self._interception.dial)
        client.setblocking(False)
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        identity, tls = self._settings.identity, self._settings.listen_tls
        login_decides = self._identification.login_expected and identity.choose(sasl="somebody")[1] == "sasl"
        ticket = self._admission.admit(
            client, address[0], None if login_decides or tls is not None else self.given_user[0]
        )
        if ticket is None:
            return
        peer = str(spelled(address))
        if tls is None:
            unread = self._settings.transparent is not None and self._settings.transparent.tls_passthrough
            connection = self._new_connection(client, peer, name, dial, ticket, plain=plain if unread else None)
            self._nursery.start_soon(self._run_connection, connection, ticket)
        else:
            self._securing += 1
            self._nursery.start_soon(self._secure, tls, client, peer, name, dial, ticket, login_decides, destination)

    async def _secure(
        self,
        tls: ServerTls,
        client: socket.socket,
        peer: str,
        name: str,
        dial: Dial,
        ticket: Ticket,
        login_decides: bool,
        destination: Destination | None,
    ) -> None:
        """The TLS handshake, then everything else: before it, the client is unauthenticated.

        A redirected connection (with `destination`) need not be TLS: then it goes on as plaintext.
        """
        reason = CloseReason.TLS_HANDSHAKE
        admitted = False
        try:
            secured, tls_user = client, None
            if destination is None or await begins_with_tls(client, tls.handshake_timeout_s):
                channel, tls_user = await self._handshakes.with_client(tls, client, peer)
                if destination is not None and self._interception is not None:
                    dial = self._dialer.through(destination, self._interception.dial, channel.server_name)
                secured = channel
            try:
                user, source = self._settings.identity.choose(tls=tls_user)
                if source == "tls" or not login_decides:
                    self._admission.identify(ticket, user)
                connection = self._new_connection(secured, peer, name, dial, ticket, tls_user)
                admitted = True
            except SessionError as error:
                reason = error.reason
                secured.close()
                return
        except HandshakeError:
            return
        finally:
            self._securing -= 1
            if not admitted:
                client.close()  # a no-op if a TlsSocket has taken over its descriptor
                self._admission.leave(ticket)
                self.counters.connections_closed[str(reason)] += 1
        await self._run_connection(connection, ticket)

    def _new_connection(
        self,
        client: socket.socket,
        peer: str,
        name: str,
        dial: Dial,
        ticket: Ticket,
        tls_user: str | None = None,
        plain: Dial | None = None,
    ) -> Connection:
        """`tls_user` is the name in the client's certificate. TLS that we have no key for is passed through to `plain`;
        None: it is not."""
        settings = self._settings
        user, source = settings.identity.choose(tls=tls_user)
        session = Session(
            self._ledger,
            self.counters,
            user=user,
            translate=self._translator(client),
            sizes=settings.sizes,
            max_in_flight=settings.max_in_flight,
            interceptors=self._interceptors,
            login_expected=self._identification.login_expected,
            claim=settings.oauth_claim,
        )
        arguments = (client, peer, name, dial, session, self._shared, source)
        connection = Connection(*arguments) if plain is None else TransparentConnection(self._ledger, plain, *arguments)
        self._identification.watch(session, connection, ticket, tls_user)
        return connection

    async def _run_connection(self, connection: Connection, ticket: Ticket) -> None:
        self._connections.add(connection)
        self.counters.connections_open += 1
        if self._drain_asked.is_set():
            connection.drain()
        reason = CloseReason.INTERNAL_ERROR
        try:
            reason = await connection.run()
        finally:
            self._connections.discard(connection)
            self._admission.leave(ticket)
            self.counters.connections_open -= 1
            self._connection_ended.set()
            self._connection_ended = trio.Event()
            self.counters.connections_closed[str(reason)] += 1
            log.debug("connection closed", reason=str(reason), peer=connection.peer, broker=connection.broker_name)

    # ---- upstream ---------------------------------------------------------------------------------------------------

    def _translator(self, client: socket.socket) -> AddressTranslator | None:
        """Which addresses clients see in place of the brokers' own; None: the brokers' own."""
        settings = self._settings
        if self._interception is not None:
            return None
        advertised = settings.advertised_host or (
            client.getsockname()[0] if settings.listen_host in WILDCARDS else settings.listen_host
        )
        return lambda node_id, host, port, kind: (advertised, self._translate(kind, node_id, host, port))

    def _translate(self, kind: str, node_id: int, host: str, port: int) -> int:
        try:
            return self._book.local_port(kind, node_id, host, port)
        except NoFreePortError as error:
            raise SessionError(CloseReason.NO_BROKER_PORT, str(error)) from error
        except BadAddressError as error:
            raise SessionError(CloseReason.BROKER_MALFORMED, str(error), kind="broker_address") from error

    async def _dial_broker(self, key: BrokerKey) -> socket.socket:
        """Dial a broker at its last known address; if that fails, ask the cluster again soon."""
        try:
            return await self._dialer.dial(*self._book.upstream(key))
        except UpstreamError:
            self._look_again.set()
            raise

    async def _dial_bootstrap(self) -> socket.socket:
        """Dial the first server that accepts: the last good one, then the configured ones, then known brokers."""
        servers = dict.fromkeys([*self._settings.bootstrap, *self._known_brokers()])
        if self._bootstrap_first in servers:
            servers = dict.fromkeys([self._bootstrap_first, *servers])
        errors = []
        for server in servers:
            try:
                broker = await self._dialer.dial(*server)
            except UpstreamError as error:
                errors.append(str(error))
                continue
            self._bootstrap_first = server
            return broker
        raise UpstreamError("no bootstrap server accepts: " + "; ".join(errors))

    async def _watch_cluster(self) -> None:
        """Ask for brokers periodically: new ones get a listener, and readiness stays accurate."""
        settings = self._settings
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._learn_brokers()
            except (ClusterError, NoFreePortError, BadAddressError) as error:
                if self.last_cluster_error != str(error):
                    log.warning("cluster not reached", error=str(error))
                self.cluster_reached = False
                self.last_cluster_error = str(error)
                await trio.sleep(retry_s)
                retry_s = min(retry_s * 2, settings.metadata_refresh_s)
            else:
                if not self.cluster_reached:
                    log.info("cluster reached", brokers=[broker[0] for broker in self.brokers()])
                self.cluster_reached = True
                self.last_cluster_error = None
                retry_s = FIRST_RETRY_S
                await trio.sleep(min(SHORTEST_REFRESH_S, settings.metadata_refresh_s))
                with trio.move_on_after(max(0.0, settings.metadata_refresh_s - SHORTEST_REFRESH_S)):
                    await self._look_again.wait()
                self._look_again = trio.Event()

    async def _learn_brokers(self) -> None:
        settings = self._settings
        errors = []
        for host, port in dict.fromkeys([*settings.bootstrap, *self._known_brokers()]):
            try:
                brokers = await ask_brokers(
                    host, port, settings.connect_timeout_s, settings.upstream_tls, settings.credentials
                )
            except LoginWantedError:
                self._identification.login_expected = True  # brokers are learnt from the responses to clients
                return
            except ClusterError as error:
                errors.append(str(error))
                continue
            self._nodes = brokers
            for node in brokers if self._interception is None else ():
                self._book.local_port("broker", node.node_id, node.host, node.port)
            return
        raise ClusterError("; ".join(dict.fromkeys(errors)))

    def _known_brokers(self) -> list[tuple[str, int]]:
        return [(host, port) for _, host, port, _ in self.brokers()]
