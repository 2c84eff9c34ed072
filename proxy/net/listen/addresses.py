"""Which local port leads to which broker: bookkeeping, with callbacks that open and close listeners. Each broker's port
is a function of the ids of the live brokers (`own_ports`), so that all instances agree. The port of a broker that left
stays open during the grace time, unless a live broker needs it."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from proxy.core.errors import UpstreamError
from proxy.core.wire.frames import WireError
from proxy.core.wire.responses import NodeAddress

MAX_HOST_CHARACTERS: Final = 255
MAX_BROKERS: Final = 10_000
"""Brokers that are remembered; further ones have no port."""


class KnownPort(NamedTuple):
    """A local port and the broker that it leads to, as stored for a restart."""

    port: int
    broker: NodeAddress
    held_s: float | None
    """None: the broker is advertised with this port; else how many seconds the port still leads to it."""


def check_address(node: NodeAddress) -> None:
    """Raises WireError unless this can be an address: it will be dialled, logged and shown."""
    node_id, host, port = node
    if not 0 < port <= 0xFFFF or not 0 < len(host) <= MAX_HOST_CHARACTERS or not host.isprintable() or " " in host:
        raise WireError("broker_address", f"node {node_id} has an invalid address: host {host[:100]!r}, port {port}")


def own_ports(ids: Iterable[int], ports: range, fixed: Mapping[int, int]) -> dict[int, int]:
    """The port of each of these brokers; the highest ids have none where there are too few. Those in `fixed` have that
    port. In the order of their ids, each of the others has the port at `id mod size`, or the next one that is neither
    fixed nor taken; when there are no others, fixed ports whose brokers are not there."""
    live = set(ids)
    found = {node_id: port for node_id, port in fixed.items() if node_id in live}
    reserved = set(fixed.values())
    free = array("H", (port for port in ports if port not in reserved))  # small: each removal moves what follows
    spare = sorted(reserved - set(found.values()))
    for node_id in sorted(live - found.keys()):
        if free:
            at = bisect_left(free, ports[node_id % len(ports)])
            found[node_id] = free.pop(at % len(free))
        elif spare:
            found[node_id] = spare.pop(0)
    return found


@dataclass(slots=True)
class _Broker:
    address: NodeAddress
    live: bool = True
    port: int | None = None


@dataclass(slots=True)
class _Listener:
    node_id: int
    until_s: float = math.inf
    """Finite: its broker is no longer advertised with it, and it leads to the broker until then."""


@dataclass(slots=True)
class AddressBook:
    """The brokers, and the ports that stand for them."""

    ports: range
    fixed: Mapping[int, int]
    grace_s: float
    bind: Callable[[int, int], bool]
    """`bind(node_id, port)` opens a listener at once; it returns False if another process has the port, and raises
    OSError where any other would fail, too: there are no file descriptors."""
    close: Callable[[int], None]
    """`close(port)` closes one."""
    exhausted: str | None = None
    """Why a broker has no port although one is free, in the words of that OSError."""
    _brokers: dict[int, _Broker] = field(default_factory=dict)
    _listeners: dict[int, _Listener] = field(default_factory=dict)

    # ---- what is learnt ---------------------------------------------------------------------------------------------

    def learn(self, nodes: Sequence[NodeAddress], *, complete: bool, now_s: float) -> bool:
        """These brokers are alive, and no others if the list is `complete`. Whether that is news. Raises
        WireError, and changes nothing then."""
        brokers, seen = self._brokers, set(nodes)
        live = {broker.address for broker in brokers.values() if broker.live}
        due = any(listener.until_s <= now_s for listener in self._listeners.values())
        if not due and (seen == live if complete else seen <= live):
            return False
        for node in nodes:
            check_address(node)
        if complete:
            for broker in brokers.values():
                broker.live = False
        for node in nodes:
            known = brokers.get(node.node_id)
            if known is not None:
                known.address, known.live = node, True  # if it moved: the next connection dials the new address
            elif len(brokers) < MAX_BROKERS:
                brokers[node.node_id] = _Broker(node)
        self.settle(now_s)
        return True

    def restore(self, known: Iterable[KnownPort], now_s: float) -> None:
        """Listen on the ports of a former run, before anything is learnt. Ports out of range are ignored."""
        for port, node, held_s in known:
            try:
                if port not in self.ports or port in self._listeners or not self._opened(node.node_id, port):
                    continue
            except OSError:
                break
            broker = self._brokers.setdefault(node.node_id, _Broker(node, live=False))
            if held_s is None and broker.port is None:
                broker.live, broker.port = True, port
            else:
                self._listeners[port].until_s = now_s + min(held_s or 0.0, self.grace_s)

    # ---- what follows from it ---------------------------------------------------------------------------------------

    def settle(self, now_s: float) -> None:
        """Open and close listeners as the brokers and the time want it."""
        own = own_ports((one for one, broker in self._brokers.items() if broker.live), self.ports, self.fixed)
        for node_id, broker in self._brokers.items():
            if broker.port is not None and broker.port != own.get(node_id):
                self._listeners[broker.port].until_s = now_s + self.grace_s
                broker.port = None
        self.exhausted = None
        try:
            taken = [node_id for node_id, port in own.items() if not self._advertise(node_id, port)]
            for node_id in taken:  # by another process
                any(self._advertise(node_id, port) for port in self._spare(node_id, own))
        except OSError as error:  # those without a port have none for now
            self.exhausted = error.strerror
        for port in [port for port, listener in self._listeners.items() if listener.until_s <= now_s]:
            self._free(port)
        held = {listener.node_id for listener in self._listeners.values()}
        for node_id in [one for one, broker in self._brokers.items() if not broker.live and one not in held]:
            del self._brokers[node_id]

    def _spare(self, node_id: int, own: Mapping[int, int]) -> list[int]:
        """Ports that are advertised for no live broker, from this broker's on; those that stand for others last."""
        advertised = {*own.values(), *(broker.port for broker in self._brokers.values())}
        at = self.ports.index(own[node_id])
        spare = (port for port in (*self.ports[at:], *self.ports[:at]) if port not in advertised)
        return sorted(spare, key=partial(self._stands_for_another, node_id))

    def _stands_for_another(self, node_id: int, port: int) -> bool:
        held = self._listeners.get(port)
        return held is not None and held.node_id != node_id

    def _advertise(self, node_id: int, port: int) -> bool:
        """Advertise this port from now on, whatever it stood for; False: another process has it."""
        if self._stands_for_another(node_id, port):
            self._free(port)
        if port not in self._listeners and not self._opened(node_id, port):
            return False
        self._brokers[node_id].port = port
        self._listeners[port].until_s = math.inf
        return True

    def _opened(self, node_id: int, port: int) -> bool:
        if not self.bind(node_id, port):
            return False
        self._listeners[port] = _Listener(node_id)
        return True

    def _free(self, port: int) -> None:
        del self._listeners[port]
        self.close(port)

    # ---- what is known ----------------------------------------------------------------------------------------------

    def port(self, node_id: int) -> int | None:
        """The local port of a broker; None: it has none."""
        known = self._brokers.get(node_id)
        return None if known is None else known.port

    def upstream(self, node_id: int) -> tuple[str, int]:
        """(host, port) to dial for connections to a port of this broker, as last reported. Raises UpstreamError."""
        broker = self._brokers.get(node_id)
        if broker is None:
            raise UpstreamError(f"broker {node_id} left the cluster")
        host, port = broker.address[1:]
        for other in () if broker.live else self._brokers.values():  # it may be back soon
            if other.live and other.address[1:] == (host, port):
                text = f"broker {node_id} left the cluster, and {host}:{port} is broker {other.address.node_id} now"
                raise UpstreamError(text)
        return host, port

    def brokers(self) -> list[tuple[NodeAddress, int | None]]:
        """The live brokers with their local ports, by id."""
        return [(broker.address, broker.port) for _, broker in sorted(self._brokers.items()) if broker.live]

    def known_ports(self, now_s: float) -> list[KnownPort]:
        """What `restore` needs to know after a restart."""
        return [
            KnownPort(
                port,
                self._brokers[listener.node_id].address,
                None if listener.until_s == math.inf else max(0.0, listener.until_s - now_s),
            )
            for port, listener in sorted(self._listeners.items())
        ]
