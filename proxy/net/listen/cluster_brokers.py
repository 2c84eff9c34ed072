"""The brokers behind the proxy: their list, the local port of each, and connections to them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from secrets import randbits
from typing import Final

import structlog
import trio

from proxy.core.errors import UpstreamError
from proxy.core.session.auth import PROBE_VERSION
from proxy.core.session.session import Session
from proxy.core.wire.apis import METADATA
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import OWN_SOFTWARE
from proxy.core.wire.responses import NodeAddress, Translate
from proxy.net.listen.addresses import AddressBook
from proxy.net.listen.transparent import local_address
from proxy.net.settings import ProxySettings
from proxy.net.upstream.cluster import Access, Cluster, ClusterError, LoginWantedError, Node, Offered, ask_brokers
from proxy.net.upstream.dial import Dial, Dialer, loop_error
from proxy.net.upstream.node_checks import NodeChecks, OtherBrokerError

log = structlog.get_logger("kquota.proxy")

FIRST_RETRY_S: Final = 0.2
"""While no broker answers, ask again after this time (doubling up to `LAST_RETRY_S`)."""
LAST_RETRY_S: Final = 5.0
"""A gateway gets no clients until it has asked again."""
REFRESH_S: Final = 30.0
SHORTEST_REFRESH_S: Final = 1.0
"""A broker that cannot be reached makes us ask the cluster again, but not more often than this."""
LOOP_S: Final = 2 * REFRESH_S
"""How long an address that leads to this sidecar is not dialled, unless a broker answers there meanwhile."""
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


class ClusterBrokers:
    """One for each sidecar."""

    def __init__(
        self,
        settings: ProxySettings,
        dialer: Dialer,
        bind_broker: Callable[[int, int], bool],
        close_broker: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._dialer = dialer
        ports = settings.advertised
        self.book = AddressBook(
            settings.broker_ports, ports.broker_port_map, ports.broker_port_grace_s, bind_broker, close_broker
        )
        self._logged: tuple[bool, list[int]] = False, []
        """What was warned of last: that few ports are left, and which brokers have none."""
        self._transparent = settings.transparent is not None
        self._nodes: list[NodeAddress] = []
        """Brokers as last reported in transparent mode, where none has a listener."""
        self._bootstrap_first: tuple[str, int] | None = None
        """The server that has answered the sidecar or, where none has yet, accepted a connection."""
        self._look_again = trio.Event()
        self._asked = trio.lowlevel.ParkingLot()
        self.access = Access(settings.connect_timeout_s, settings.upstream_tls, settings.credentials, randbits(32))
        self._loops: dict[tuple[str, int], float] = {}
        """Addresses at which the sidecar's own question came back to it, and until when they are not dialled."""
        self._checks = NodeChecks(self.access, dialer, lambda: [number for number, *_ in self.all()])
        self.changed = trio.Event()
        """Set, and replaced, when a port may stand for another broker."""
        self.reached = not settings.bootstrap
        """Whether the cluster answered the last Metadata request; true without bootstrap servers to ask."""
        self.last_error: str | None = None
        self.login_expected = settings.credentials is not None
        """The cluster's listener wants SASL: the sidecar has a login of its own, its question was refused without one,
        or some connection has logged in."""
        self.metadata_version = PROBE_VERSION
        """A version of Metadata that the broker which was asked last has, and with it all brokers of its age."""

    def all(self) -> list[tuple[int, str, int, int | None]]:
        """(node id, host, port, local port) of the brokers seen; in transparent mode the local port is their own.
        Clients do not see a broker whose local port is None."""
        if self._transparent:
            return [(node.node_id, node.host, node.port, node.port) for node in self._nodes]
        return [(*node, local_port) for node, local_port in self.book.brokers()]

    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of the brokers seen."""
        return [(host, port) for _, host, port, _ in self.all()]

    # ---- the addresses that clients see -----------------------------------------------------------------------------

    def translator(self, client: socket.socket) -> Translate | None:
        """Which addresses clients see in place of the brokers' own; None: the brokers' own."""
        settings = self._settings
        if self._transparent:
            return None
        advertised = settings.advertised.host or (
            local_address(client).host if settings.host in WILDCARDS else settings.host
        )
        first = settings.broker_ports.start
        mapped = (settings.advertised.first_broker_port or first) - first

        def translate(nodes: Sequence[NodeAddress], complete: bool) -> list[tuple[str, int] | None]:
            self._learn(nodes, complete=complete)
            ports = [self.book.port(node.node_id) for node in nodes]
            return [None if port is None else (advertised, port + mapped) for port in ports]

        return translate

    def _learn(self, nodes: Sequence[NodeAddress], *, complete: bool) -> None:
        if self.book.learn(nodes, complete=complete, now_s=trio.current_time()):
            self._say()
            self._change()

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def _say(self) -> None:
        """Warn before brokers have no port, and when some have none."""
        ports, brokers = self._settings.broker_ports, self.book.brokers()
        few = len(ports) - len(brokers) <= max(1, len(ports) // 10)
        without = [node.node_id for node, port in brokers if port is None]
        before, self._logged = self._logged, (few, without)
        figures = {"ports": f"{ports.start}-{ports.stop - 1}", "brokers": len(brokers)}
        if without and without != before[1]:
            log.warning("brokers without a port in listen.broker_ports", node_ids=without[:20], **figures)
        elif few and not before[0] and not without:
            log.warning("listen.broker_ports is nearly used up", **figures)

    # ---- connections to them ----------------------------------------------------------------------------------------

    async def dial(self, node_id: int) -> socket.socket:
        """Dial a broker at its last known address; if that fails, ask the cluster again soon. If another broker is
        there, once more at the address that the cluster then says. Raises UpstreamError."""
        try:
            with suppress(OtherBrokerError):
                return await self._reach(node_id, *self.book.upstream(node_id))
            self._look_again.set()
            with trio.move_on_after(self._settings.connect_timeout_s):
                await self._asked.park()
            return await self._reach(node_id, *self.book.upstream(node_id))
        except UpstreamError:
            self._look_again.set()
            raise

    async def unless_own(self, session: Session, dial: Dial) -> socket.socket:
        """Dial for a client. Raises UpstreamError, also if its request is the sidecar's own question, which has come
        back through a balancer or NAT: its connection would make the next."""
        oldest = session.exchange.oldest
        if oldest is not None and session.requests.software == "/".join(OWN_SOFTWARE):
            for address in self._servers():
                if self.access.correlation_id(*address) == oldest.correlation_id:
                    self._loops[address] = trio.current_time() + LOOP_S
                    raise UpstreamError(loop_error(*address))
        return await dial()

    async def _reach(self, node_id: int | None, host: str, port: int) -> socket.socket:
        """`node_id` None: whichever broker is there is right. Raises UpstreamError."""
        if trio.current_time() < self._loops.get((host, port), -inf):
            raise UpstreamError(loop_error(host, port))
        if node_id is None:
            return await self._dialer.dial(host, port)
        return await self._checks.dial(node_id, host, port)

    def broker_ended(self) -> None:
        """A broker has ended a connection: another one may be at its address soon."""
        self._checks.suspect()

    def _servers(self) -> dict[tuple[str, int], None]:
        """In the order in which they are tried: the last good one, then the configured ones, then known brokers."""
        servers = dict.fromkeys([*self._settings.bootstrap, *self.addresses()])
        return {self._bootstrap_first: None, **servers} if self._bootstrap_first in servers else servers

    async def dial_bootstrap(self) -> socket.socket:
        """Dial the first server that accepts. Raises UpstreamError."""
        errors = []
        nodes = self._nodes_by_address()
        for server in self._servers():
            try:
                broker = await self._reach(nodes.get(server), *server)
            except UpstreamError as error:
                errors.append(str(error))
                continue
            self._bootstrap_first = server
            return broker
        raise UpstreamError("no bootstrap server accepts connections: " + "; ".join(errors))

    # ---- the cluster ------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Ask for brokers periodically, until cancelled: new ones get a listener, and readiness stays accurate."""
        retry_s = FIRST_RETRY_S
        while True:
            self.book.settle(trio.current_time())
            self._change()
            try:
                try:
                    await self._ask()
                finally:
                    self._asked.unpark_all()
            except (ClusterError, WireError) as error:
                if self.last_error != str(error):
                    log.warning("cannot reach the Kafka cluster, retrying", error=str(error))
                self.reached = False
                self.last_error = str(error)
                await trio.sleep(retry_s)
                retry_s = min(retry_s * 2, LAST_RETRY_S)
            else:
                if not self.reached:
                    log.info("cluster reached", brokers=[broker[0] for broker in self.all()])
                self.reached = True
                self.last_error = None
                retry_s = FIRST_RETRY_S
                await trio.sleep(min(SHORTEST_REFRESH_S, REFRESH_S))
                with trio.move_on_after(max(0.0, REFRESH_S - SHORTEST_REFRESH_S)):
                    await self._look_again.wait()
                self._look_again = trio.Event()

    async def _ask(self) -> None:
        known = self._checks.cluster_id
        errors = []
        others: list[Cluster] = []
        nodes, began_s = self._nodes_by_address(), trio.current_time()
        for host, port in self._servers():
            number = nodes.get((host, port))
            node = Node(known, number) if known is not None and number is not None else None
            try:
                cluster = await ask_brokers(host, port, self.access, node)
            except LoginWantedError as error:
                self._bootstrap_first = host, port
                self._loops.pop((host, port), None)
                self._offered(error.offered)
                self.login_expected = True  # brokers are learnt from the responses to clients
                return
            except ClusterError as error:
                returned = self._loops.get((host, port), -inf) >= began_s + LOOP_S
                errors.append(loop_error(host, port) if returned else str(error))
                continue
            self._loops.pop((host, port), None)
            if cluster.cluster_id is not None and known not in (None, cluster.cluster_id):
                errors.append(f"{host}:{port} belongs to cluster {cluster.cluster_id}, not to {known}")
                others.append(cluster)
                continue
            self._bootstrap_first = host, port
            self._answered(cluster)
            return
        if others:
            # Nothing answers for the known cluster: it has been made again, under the same addresses.
            log.warning("the cluster's id changed", cluster_id=others[0].cluster_id, before=known)
            self._answered(others[0])
            return
        raise ClusterError("; ".join(dict.fromkeys(errors)))

    def _nodes_by_address(self) -> dict[tuple[str, int], int]:
        """Node ids of the brokers seen. Bootstrap servers are left out: whichever broker answers there is right."""
        bootstrap = self._settings.bootstrap
        return {(host, port): number for number, host, port, _ in self.all() if (host, port) not in bootstrap}

    def _answered(self, cluster: Cluster) -> None:
        self._checks.cluster_id = cluster.cluster_id or self._checks.cluster_id
        self._offered(cluster.offered)
        self._nodes = cluster.brokers
        if not self._transparent:
            self._learn(cluster.brokers, complete=True)

    def _offered(self, offered: Offered) -> None:
        lowest, highest = offered.get(METADATA, (0, 0))
        if highest:
            self.metadata_version = max(lowest, 1)  # the oldest: brokers of other releases have it as well
