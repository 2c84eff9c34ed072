"""Which local port stands for which broker. Pure bookkeeping: a callback binds the ports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_HOST_CHARACTERS: Final = 255


class BrokerKey(NamedTuple):
    """Identifies a broker or controller; the two count their ids separately (DescribeCluster v1+)."""

    kind: str
    """"broker" or "controller"."""
    node_id: int


@dataclass(slots=True)
class BrokerAddress:
    """Where one broker really is, and the local port that stands for it."""

    key: BrokerKey
    host: str
    port: int
    local_port: int


class NoFreePortError(Exception):
    """`listen.broker_ports` is used up; the message says how many brokers are without a port."""


class BadAddressError(Exception):
    """A broker was announced with an address that cannot be connected to."""


def check_address(node_id: int, host: str, port: int) -> None:
    """Raises BadAddressError unless this can be an address: it will be dialled, logged and shown."""
    if not 0 < port <= 0xFFFF or not 0 < len(host) <= MAX_HOST_CHARACTERS or not host.isprintable() or " " in host:
        raise BadAddressError(f"node {node_id} has an invalid address: host {host[:100]!r}, port {port}")


class AddressBook:
    """Brokers seen so far. A broker keeps its local port for the life of the sidecar, even if its address changes."""

    def __init__(self, ports: range, bind: Callable[[BrokerKey, int], bool]) -> None:
        """`bind(key, port)` opens a listener at once; it returns False if another process has the port, and raises
        NoFreePortError where any other would fail, too."""
        self._ports = ports
        self._bind = bind
        self._by_key: dict[BrokerKey, BrokerAddress] = {}
        self._used: set[int] = set()

    def local_port(self, kind: str, node_id: int, host: str, port: int) -> int:
        """The local port for this broker, opening a listener if it is new. Raises NoFreePortError, BadAddressError."""
        check_address(node_id, host, port)
        key = BrokerKey(kind, node_id)
        known = self._by_key.get(key)
        if known is not None:
            if known.port != port or known.host != host:  # the broker moved: the next connection dials the new address
                known.host, known.port = host, port
            return known.local_port
        local_port = self._open(key)
        self._by_key[key] = BrokerAddress(key, host, port, local_port)
        return local_port

    def _open(self, key: BrokerKey) -> int:
        # Broker N gets the N-th port where possible: the same ports after a restart, in any order of arrival.
        preferred: list[int] = [self._ports[key.node_id]] if 0 <= key.node_id < len(self._ports) else []
        candidates: list[int] = [*preferred, *self._ports]
        for port in candidates:
            if port not in self._used and self._bind(key, port):
                self._used.add(port)
                return port
        raise NoFreePortError(
            f"no free port in listen.broker_ports {self._ports.start}-{self._ports.stop - 1} "
            f"for {key.kind} {key.node_id}: {len(self._used)} in use by brokers; widen the range"
        )

    def upstream(self, key: BrokerKey) -> tuple[str, int]:
        """(host, port) to dial for connections that arrive on this broker's listener, as last reported."""
        known = self._by_key[key]
        return known.host, known.port

    def brokers(self) -> list[BrokerAddress]:
        """All known brokers, by kind and node id."""
        return [self._by_key[key] for key in sorted(self._by_key)]
