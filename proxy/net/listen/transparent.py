"""Transparent interception: where a redirected connection was going, which ones are refused, and how we dial. Kernel
rules redirect connections to our listener, and the kernel remembers the original destination of each."""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import structlog
import trio

from proxy.core.errors import CloseReason, SessionError
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import LogLimiter
from proxy.net.listen.listeners import LOOPBACK_HOSTS
from proxy.net.settings import TransparentSettings
from quota.connections import canonical_address

log = structlog.get_logger("kquota.transparent")

SO_ORIGINAL_DST: Final = 80
"""At level SOL_IP (linux/netfilter_ipv4.h) and, as IP6T_SO_ORIGINAL_DST, at SOL_IPV6 (linux/netfilter_ipv6)."""
SOL_IPV6: Final = 41
SOCKADDR_IN: Final = struct.Struct("!2xH4s8x")
"""struct sockaddr_in behind its family: port and address, both in network order; 16 bytes."""
SOCKADDR_IN6: Final = struct.Struct("!2xH4x16s")
"""struct sockaddr_in6 likewise: port, flow label (unused), address; the scope id behind it is in host order."""
SCOPE_ID: Final = struct.Struct("=I")
NOT_TRACKED: Final = frozenset({errno.ENOENT, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
"""The kernel knows no redirect: the connection is not tracked, or connection tracking is not even loaded."""
HEARTBEAT_S: Final = 1.0
_Address = tuple[str, int]


class Destination(NamedTuple):
    """The original destination of a connection."""

    host: str
    """A numeric address; an IPv4 address is never in its IPv6-mapped form."""
    port: int
    scope_id: int = 0
    """The interface of a link-local IPv6 address."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_sockaddr(data: bytes) -> Destination:
    """Parse a struct sockaddr_in or sockaddr_in6 as SO_ORIGINAL_DST gives it. Raises ValueError if it is neither."""
    family = int.from_bytes(data[:2], sys.byteorder)
    if family == socket.AF_INET and len(data) >= SOCKADDR_IN.size:
        port, address = SOCKADDR_IN.unpack_from(data)
        return Destination(str(IPv4Address(address)), port)
    if family == socket.AF_INET6 and len(data) >= SOCKADDR_IN6.size + SCOPE_ID.size:
        port, address = SOCKADDR_IN6.unpack_from(data)
        (scope_id,) = SCOPE_ID.unpack_from(data, SOCKADDR_IN6.size)
        return Destination(str(IPv6Address(address)), port, scope_id)
    raise ValueError(f"{data.hex()} is neither a struct sockaddr_in nor a struct sockaddr_in6")


def set_mark(sock: socket.socket, mark: int | None) -> None:
    """Mark a socket's packets for the kernel's rules; None: do not. Raises PermissionError without NET_ADMIN."""
    if mark is None:
        return
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    except PermissionError:
        raise PermissionError(
            errno.EPERM,
            "transparent.mark needs the capability NET_ADMIN (or NET_RAW from Linux 5.17 on): grant it, or remove "
            "transparent.mark and exempt the sidecar's user in the redirect rules",
        ) from None


def local_address(sock: socket.socket) -> Destination:
    """The local address of a connection."""
    return spelled(sock.getsockname())


def original_destination(client: socket.socket) -> Destination | None:
    """The original destination of a redirected connection; None if it was not redirected. Raises OSError."""
    here = local_address(client)
    try:
        if ":" in here.host:
            data = client.getsockopt(SOL_IPV6, SO_ORIGINAL_DST, SOCKADDR_IN6.size + SCOPE_ID.size)
        else:  # also on an IPv6 socket that shows the peer as ::ffff:10.0.0.1
            data = client.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, SOCKADDR_IN.size)
    except OSError as error:
        if error.errno in NOT_TRACKED:
            return None
        raise
    found = read_sockaddr(data)
    return None if found[:2] == here[:2] else found


def is_own_address(host: str) -> bool:
    """Whether an address belongs to this machine (to this network namespace)."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def is_in(networks: Iterable[IPv4Network | IPv6Network], host: str) -> bool:
    """Whether an address is in one of these networks. An IPv4-mapped address is IPv4."""
    address = ip_address(canonical_address(host))
    return any(address in network for network in networks)


class Interception:
    """Inspects the connections that a transparent listener accepts, and dials for those that are served."""

    def __init__(self, settings: TransparentSettings, counters: Counters) -> None:
        self._mark = settings.mark
        self._networks, self._ports = [*map(ip_network, settings.networks)], settings.ports
        self._counters = counters
        self._dialled: WeakValueDictionary[tuple[_Address, _Address], socket.socket] = WeakValueDictionary()
        """Our own connections to brokers by both ends, as the listener would see them come back. One end is not enough:
        the kernel gives a client the same port of the same address for another destination."""
        self._log_limiter = LogLimiter(log.warning, "more connections refused")

    def prepare(self) -> None:
        """Call this before anything is dialled. Raises OSError if the configured mark cannot be set."""
        if self._mark is None:
            return
        with socket.socket() as probe:
            set_mark(probe, self._mark)
        trio.socket.set_custom_socket_factory(_MarkedSockets(self._mark))  # the sidecar's own requests

    async def send_heartbeats(self, port: int, drain_asked: trio.Event) -> None:
        """Show the redirect rules that a sidecar is running (without one they let connections through), until it is
        drained: send an empty datagram to our own port, on which no UDP socket listens, for each family."""
        while not drain_asked.is_set():
            for family, host in ((socket.AF_INET, LOOPBACK_HOSTS[0]), (socket.AF_INET6, LOOPBACK_HOSTS[1])):
                with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                    sender.sendto(b"", (host, port))
            self._log_limiter.look()
            await trio.sleep(HEARTBEAT_S)

    def inspect(self, client: socket.socket, peer: Any) -> Destination:
        """The destination of an accepted connection. Raises SessionError if it is not to be served."""
        try:
            destination = original_destination(client)
        except (OSError, ValueError) as error:
            raise SessionError(
                CloseReason.NOT_REDIRECTED, f"cannot get the connection's original destination from the kernel: {error}"
            ) from error
        came_from, here = spelled(peer), local_address(client)
        where = destination or here
        if self._is_ours(came_from, where):
            raise SessionError(
                CloseReason.LOOP,
                f"the sidecar's own connection to {where} was redirected to the sidecar: the redirect rules must "
                "exempt its user or its mark (kquota redirect install --exclude-uid, transparent.mark)",
            )
        if destination is None:
            raise SessionError(
                CloseReason.NOT_REDIRECTED,
                f"{came_from.host} connected to the listener itself: in transparent mode it serves redirected "
                "connections only; connect to the brokers (kquota redirect show lists the rules)",
            )
        if destination.port == here.port and is_own_address(destination.host):
            raise SessionError(
                CloseReason.LOOP, f"the destination {destination} is this sidecar's own listener: a loop"
            )
        if not self._allows(destination):
            text = f"{destination} is not allowed by transparent.networks and transparent.ports"
            raise SessionError(CloseReason.DESTINATION_REFUSED, text)
        return destination

    def refuse(self, client: socket.socket, refusal: SessionError) -> None:
        """Close a refused connection, count it, and log it at intervals."""
        self._counters.connections.opened += 1
        self._counters.connections.closed[str(refusal.reason)] += 1
        # With a reset, so that the client sees a refusal instead of an empty answer.
        with suppress(OSError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        if self._log_limiter.allows(reason=str(refusal.reason)):
            log.warning("redirected connection refused", reason=str(refusal.reason), error=str(refusal))

    async def connect(self, destination: Destination, waits_for: list[str]) -> socket.socket:
        """Connect to the original destination; see `proxy.net.upstream.dial`. Raises OSError."""
        waits_for.append("connection")
        host, port, scope_id = destination
        is_ipv6 = ":" in host
        broker = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        try:
            broker.setblocking(False)
            broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_mark(broker, self._mark)
            with suppress(BlockingIOError):
                broker.connect((host, port, 0, scope_id) if is_ipv6 else (host, port))
            # The kernel has chosen our local address by now, and the connection cannot have been accepted unseen.
            self._dialled[local_address(broker)[:2], destination[:2]] = broker
            await trio.lowlevel.wait_writable(broker)
            failed = broker.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise OSError(failed, errno.errorcode.get(failed, str(failed)))
        except BaseException:
            broker.close()
            raise
        return broker

    def _allows(self, destination: Destination) -> bool:
        if self._ports and not any(destination.port in ports for ports in self._ports):
            return False
        return not self._networks or is_in(self._networks, destination.host)

    def _is_ours(self, came_from: Destination, where: Destination) -> bool:
        dialled = self._dialled.get((came_from[:2], where[:2]))
        return dialled is not None and dialled.fileno() >= 0


class _MarkedSockets(trio.abc.SocketFactory):
    """Makes the sockets of trio's own connections, marked and known as ours."""

    def __init__(self, mark: int) -> None:
        self._mark = mark

    def socket(
        self,
        family: socket.AddressFamily | int | None = None,
        type: socket.SocketKind | int | None = None,
        proto: int | None = None,
    ) -> trio.socket.SocketType:
        made = socket.socket(family or socket.AF_INET, type or socket.SOCK_STREAM, proto or 0)
        try:
            set_mark(made, self._mark)
        except OSError:
            made.close()
            raise
        return trio.socket.from_stdlib_socket(made)


def spelled(address: Any) -> Destination:
    """An address as Python's sockets return it. IPv4 is written as such even on an IPv6 socket."""
    return Destination(canonical_address(address[0]), address[1], address[3] if len(address) == 4 else 0)
