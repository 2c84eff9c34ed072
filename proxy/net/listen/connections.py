"""Open connections, from the accepted socket to their end: admission, the TLS handshake, the session, the task."""

from __future__ import annotations

import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_network
from random import random
from typing import Any, Final, NamedTuple

import structlog
import trio

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import Interceptors
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.session.session import Session
from proxy.core.session.state import SessionState
from proxy.net.io.connection import Connection
from proxy.net.io.pair import Shared
from proxy.net.listen.admission import ConnectionAdmission
from proxy.net.listen.balancers import Balancers
from proxy.net.listen.cluster_brokers import ClusterBrokers
from proxy.net.listen.identification import Identification
from proxy.net.listen.passthrough import TransparentConnection, begins_with_tls
from proxy.net.listen.transparent import Destination, Interception, spelled
from proxy.net.settings import ProxySettings
from proxy.net.tls.contexts import ServerTls
from proxy.net.upstream.dial import Dial, Dialer
from quota.connections import Ticket
from quota.ledger import Ledger

log = structlog.get_logger("kquota.proxy")

MAX_AGE_JITTER: Final = 0.2
"""Connections that were made together do not end together."""


def _cpu_ms() -> float:
    return time.thread_time() * 1000.0


class _Admitted(NamedTuple):
    """A client to be served."""

    client: socket.socket
    peer: str
    name: str
    """Of the listener or, for a redirected connection, of its destination."""
    dial: Dial
    ticket: Ticket


@dataclass(eq=False)
class Connections:
    """All connections of a sidecar."""

    settings: ProxySettings
    ledger: Ledger
    shared: Shared
    interceptors: Interceptors
    reserved: ReservedTopic | None
    admission: ConnectionAdmission
    identification: Identification
    interception: Interception | None
    dialer: Dialer
    brokers: ClusterBrokers
    nursery: trio.Nursery | None = None
    """Where their tasks run; set before the first `start`."""
    open: set[Connection] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings, shared = self.settings, self.shared
        networks = [*map(ip_network, settings.proxy_protocol_from)]
        self._balancers = Balancers(networks, settings.stalls.pre_auth_timeout_s, shared.counters, shared.close_log)
        self._beginning = 0
        """Connections whose PROXY header or TLS handshake is awaited: they count as well."""
        self._draining = False
        self._ended = trio.lowlevel.ParkingLot()

    def count(self) -> int:
        """How many there are, those in a TLS handshake included."""
        return len(self.open) + self._beginning

    def start(self, client: socket.socket, address: tuple[str, int], name: str, dial: Dial) -> None:
        """Take over a client that has been accepted: serve it, or close it."""
        assert self.nursery is not None
        client.setblocking(False)
        if self._balancers.send(address[0]):
            self._beginning += 1
            self.nursery.start_soon(self._start_behind, client, address, name, dial)
        else:
            self._start(client, address, name, dial)

    async def _start_behind(self, client: socket.socket, balancer: tuple[str, int], name: str, dial: Dial) -> None:
        try:
            address = await self._balancers.client_of(client, balancer)
        finally:
            self._beginning -= 1
        if address is not None:
            self._start(client, address, name, dial)

    def _start(self, client: socket.socket, address: tuple[str, int], name: str, dial: Dial) -> None:
        assert self.nursery is not None
        destination, plain = None, dial
        if self.interception is not None:
            try:
                destination = self.interception.inspect(client, address)
            except SessionError as refusal:
                self.interception.refuse(client, refusal)
                return
            name, dial = str(destination), self._dial_to(self.interception, destination)
            plain = partial(dial, plain=True)
            if self.settings.listen_tls is not None:  # plaintext goes on as plaintext
                dial = plain
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        identity, tls = self.settings.identity, self.settings.listen_tls
        login_decides = self.brokers.login_expected and identity.choose(sasl="any user")[1] == "sasl"
        user = None if login_decides or tls is not None else identity.choose()[0]
        ticket = self.admission.admit(client, address[0], user)
        if ticket is None:
            return
        one = _Admitted(client, str(spelled(address)), name, dial, ticket)
        if tls is None:
            unread = self.settings.transparent is not None and self.settings.transparent.tls_passthrough
            connection = self._new(one, plain=plain if unread else None)
            self.nursery.start_soon(self._run, connection, ticket)
        else:
            self._beginning += 1
            self.nursery.start_soon(self._secure, tls, one, login_decides, destination)

    def _dial_to(
        self, interception: Interception, destination: Destination
    ) -> partial[Coroutine[Any, Any, socket.socket]]:
        connect = partial(interception.connect, destination)
        return partial(self.dialer.dial, destination.host, destination.port, connect)

    async def drain(self) -> None:
        """Let requests in flight finish, and close; what is left after `drain_timeout_s` is aborted."""
        self._draining = True
        for connection in list(self.open):
            connection.drain()
        with trio.move_on_after(self.settings.bounds.drain_timeout_s):
            await self._none_left()
        for connection in list(self.open):
            connection.abort(CloseReason.DRAIN_TIMEOUT)
        await self._none_left()

    async def _none_left(self) -> None:
        while self.open:
            await self._ended.park()

    async def _secure(
        self, tls: ServerTls, one: _Admitted, login_decides: bool, destination: Destination | None
    ) -> None:
        """The TLS handshake, then everything else: before it, the client is unauthenticated. A redirected connection
        (with `destination`) need not be TLS: then it goes on as plaintext."""
        reason: CloseReason | None = CloseReason.TLS_HANDSHAKE
        secured, tls_user = one, None
        try:
            if destination is None or await begins_with_tls(one.client, tls.handshake_timeout_s):
                channel, tls_user = await self.dialer.handshakes.with_client(tls, one.client, one.peer)
                secured = one._replace(client=channel)
                if destination is not None and self.interception is not None:
                    dial = self._dial_to(self.interception, destination)
                    secured = secured._replace(dial=partial(dial, server_name=channel.channel.server_name))
            user, source = self.settings.identity.choose(tls=tls_user)
            if source == "tls" or not login_decides:
                self.admission.identify(one.ticket, user)
            connection = self._new(secured, tls_user)
            reason = None
        except SessionError as error:
            reason = error.reason
            return
        except Exception:
            reason = CloseReason.INTERNAL_ERROR
            self.shared.close_log.failed(peer=one.peer, broker=one.name)
            return
        finally:
            self._beginning -= 1
            if reason is not None:
                secured.client.close()
                one.client.close()  # a no-op if a TlsSocket has taken over its descriptor
                self.admission.leave(one.ticket)
                self.shared.counters.connections.closed[str(reason)] += 1
        await self._run(connection, one.ticket)

    def _new(self, one: _Admitted, tls_user: str | None = None, plain: Dial | None = None) -> Connection:
        """`tls_user`: of the client's certificate. `plain`: where TLS that we have no key for is passed through."""
        client, peer, name, dial, ticket = one
        settings = self.settings
        user, source = settings.identity.choose(tls=tls_user)
        state = SessionState(
            self.ledger,
            self.shared.counters,
            user=user,
            translate=self.brokers.translator(client),
            effects=self.shared.effects,
            sizes=settings.sizes,
            max_in_flight=settings.bounds.max_in_flight,
            interceptors=self.interceptors,
            reserved=self.reserved,
            login_expected=self.brokers.login_expected,
            claim=settings.oauthbearer_claim,
            probe_version=self.brokers.metadata_version,
            cpu_ms=_cpu_ms,
        )
        session = Session(state)
        if self.interception is None:
            dial = partial(self.brokers.unless_own, session, dial)
        identify = partial(self.identification.user_of, ticket, tls_user)
        arguments = (client, peer, name, dial, session, self.shared, identify, source)
        connection = Connection(*arguments) if plain is None else TransparentConnection(self.ledger, plain, *arguments)
        if settings.bounds.connections_max_age_s:
            age_s = settings.bounds.connections_max_age_s * (1.0 - MAX_AGE_JITTER * random())
            connection.expires_s = trio.current_time() + age_s
        return connection

    async def _run(self, connection: Connection, ticket: Ticket) -> None:
        counters = self.shared.counters
        self.open.add(connection)
        counters.connections.open += 1
        if self._draining:
            connection.drain()
        reason = CloseReason.INTERNAL_ERROR
        try:
            reason = await connection.run()
        finally:
            self.open.discard(connection)
            self.admission.leave(ticket)
            counters.connections.open -= 1
            self._ended.unpark_all()
            counters.connections.closed[str(reason)] += 1
            if reason in (CloseReason.BROKER_CLOSED, CloseReason.BROKER_RESET):
                self.brokers.broker_ended()
            log.debug("connection closed", reason=str(reason), peer=connection.peer, broker=connection.broker_name)
