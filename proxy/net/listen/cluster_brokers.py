"""The brokers behind the proxy: which there are, which local port stands for each, and how they are reached."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio

from proxy.core.errors import CloseReason, SessionError, UpstreamError
from proxy.core.session.state import AddressTranslator
from proxy.core.wire.responses import NodeAddress
from proxy.net.listen.addresses import AddressBook, BadAddressError, BrokerKey, NoFreePortError
from proxy.net.listen.transparent import local_address
from proxy.net.settings import ProxySettings
from proxy.net.upstream.cluster import ClusterError, LoginWantedError, ask_brokers
from proxy.net.upstream.dial import Dialer

log = structlog.get_logger("kquota.proxy")

FIRST_RETRY_S: Final = 0.2
"""While no broker has answered yet, ask again after this time (doubling up to `REFRESH_S`)."""
REFRESH_S: Final = 30.0
"""How often the sidecar asks the cluster for its brokers."""
SHORTEST_REFRESH_S: Final = 1.0
"""A broker that cannot be reached makes us ask the cluster again, but not more often than this."""
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


class ClusterBrokers:
    """One for each sidecar."""

    def __init__(
        self,
        settings: ProxySettings,
        dialer: Dialer,
        bind_broker: Callable[[BrokerKey, int], bool],
        login_wanted: Callable[[], None],
    ) -> None:
        """`bind_broker(key, port)` opens a broker's listener and returns False if the port is taken. `login_wanted()`
        is called when the cluster refuses a question for want of a login."""
        self._settings = settings
        self._dialer = dialer
        self._login_wanted = login_wanted
        self._book = AddressBook(settings.broker_ports, bind_broker)
        self._transparent = settings.transparent is not None
        self._nodes: list[NodeAddress] = []
        """Brokers as last reported in transparent mode, where none has a listener."""
        self._bootstrap_first: tuple[str, int] | None = None
        self._look_again = trio.Event()
        self.reached = not settings.bootstrap
        """Whether the cluster answered the last Metadata request; true where there is no cluster to ask (transparent
        mode without bootstrap servers)."""
        self.last_error: str | None = None

    def all(self) -> list[tuple[int, str, int, int]]:
        """(node id, host, port, local port) of the brokers seen; in transparent mode the local port is their own."""
        if self._transparent:
            return [(node.node_id, node.host, node.port, node.port) for node in self._nodes]
        return [(a.key.node_id, a.host, a.port, a.local_port) for a in self._book.brokers() if a.key.kind == "broker"]

    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of the brokers seen."""
        return [(host, port) for _, host, port, _ in self.all()]

    # ---- the addresses that clients see -----------------------------------------------------------------------------

    def translator(self, client: socket.socket) -> AddressTranslator | None:
        """Which addresses clients see in place of the brokers' own; None: the brokers' own."""
        settings = self._settings
        if self._transparent:
            return None
        advertised = settings.advertised_host or (
            local_address(client).host if settings.host in WILDCARDS else settings.host
        )
        return lambda node_id, host, port, kind: (advertised, self._translate(kind, node_id, host, port))

    def _translate(self, kind: str, node_id: int, host: str, port: int) -> int:
        try:
            return self._book.local_port(kind, node_id, host, port)
        except NoFreePortError as error:
            raise SessionError(CloseReason.NO_BROKER_PORT, str(error)) from error
        except BadAddressError as error:
            raise SessionError(CloseReason.BROKER_MALFORMED, str(error), kind="broker_address") from error

    # ---- connections to them ----------------------------------------------------------------------------------------

    async def dial(self, key: BrokerKey) -> socket.socket:
        """Dial a broker at its last known address; if that fails, ask the cluster again soon. Raises UpstreamError."""
        try:
            return await self._dialer.dial(*self._book.upstream(key))
        except UpstreamError:
            self._look_again.set()
            raise

    async def dial_bootstrap(self) -> socket.socket:
        """Dial the first server that accepts: the last good one, then the configured ones, then known brokers. Raises
        UpstreamError."""
        servers = dict.fromkeys([*self._settings.bootstrap, *self.addresses()])
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

    # ---- the cluster ------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Ask for brokers periodically, until cancelled: new ones get a listener, and readiness stays accurate."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._learn()
            except (ClusterError, NoFreePortError, BadAddressError) as error:
                if self.last_error != str(error):
                    log.warning("cluster not reached", error=str(error))
                self.reached = False
                self.last_error = str(error)
                await trio.sleep(retry_s)
                retry_s = min(retry_s * 2, REFRESH_S)
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

    async def _learn(self) -> None:
        settings = self._settings
        errors = []
        for host, port in dict.fromkeys([*settings.bootstrap, *self.addresses()]):
            try:
                brokers = await ask_brokers(
                    host, port, settings.connect_timeout_s, settings.upstream_tls, settings.credentials
                )
            except LoginWantedError:
                self._login_wanted()  # brokers are learnt from the responses to clients
                return
            except ClusterError as error:
                errors.append(str(error))
                continue
            self._nodes = brokers
            for node in brokers if not self._transparent else ():
                self._book.local_port("broker", node.node_id, node.host, node.port)
            return
        raise ClusterError("; ".join(dict.fromkeys(errors)))
