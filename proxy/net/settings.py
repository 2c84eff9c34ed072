"""The data path's settings, by the names that they have in the configuration file (`config.settings`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.core.auth.identity import IdentityPolicy
from proxy.core.auth.sasl import DEFAULT_CLAIM
from proxy.core.session.sizes import DEFAULT_SIZES, SizeLimits
from proxy.net.tls.contexts import ClientTls, ServerTls
from proxy.net.upstream.credentials import Credentials


@dataclass(frozen=True, slots=True)
class TransparentSettings:
    """Settings of `mode: transparent` alone."""

    mark: int | None = None
    """Socket mark (SO_MARK) of all connections that the sidecar makes, for rules that exempt it by mark; None: none."""
    networks: tuple[str, ...] = ()
    """CIDRs that redirected connections may go to; empty: any."""
    ports: tuple[range, ...] = ()
    """Ports that they may go to; empty: any."""
    tls_passthrough: bool = True
    """TLS is passed through and its bytes counted; otherwise such connections are closed as not Kafka's protocol."""


@dataclass(frozen=True, slots=True)
class StallLimits:
    """How long a peer may stall (`proxy.net.listen.stalls`)."""

    pre_auth_timeout_s: float = 30.0
    """Until the first request other than ApiVersions and SASL."""
    stall_timeout_s: float = 60.0
    """In the middle of a request or a response, or with responses unread."""
    min_bytes_per_s: float = 512.0
    """A peer that moves bytes at this rate does not count as stalled."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """Addresses of brokers that clients see."""

    host: str | None = None
    """None: the address the client itself connected to."""
    first_broker_port: int | None = None
    """Port for the first of `broker_ports`; None: the same."""
    broker_port_map: Mapping[int, int] = field(default_factory=dict)
    """Ports of single brokers, by id."""
    broker_port_grace_s: float = 600.0
    """How long a port leads to a broker that is no longer advertised with it."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """How many client connections there may be, and how long."""

    max_in_flight: int = 1024
    """Unanswered requests of one connection; above it the client is not read (backpressure)."""
    max_connections: int = 2**31 - 1
    """Kafka's max.connections; never more than file descriptors allow."""
    max_held_connections: int = 1000
    """Refused connections that are held until their delay is over; further ones are closed at once."""
    drain_timeout_s: float = 30.0
    connections_max_idle_s: float = 600.0
    connections_max_age_s: float = 0.0
    """Connections end at 80 to 100 % of this age, between two requests, or `drain_timeout_s` later as drained ones.
    0: at no age."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Settings of one sidecar. Changing them takes a restart; quotas live in the ledger and do not."""

    host: str
    """Where it listens."""
    port: int
    broker_ports: range
    """Local ports for brokers (`proxy.net.listen.addresses.own_ports`)."""
    bootstrap: tuple[tuple[str, int], ...]
    """(host, port) of real brokers, tried in turn. May be empty when `transparent`."""
    advertised: Advertised = field(default_factory=Advertised)
    proxy_protocol_from: tuple[str, ...] = ()
    """CIDRs of the balancers: connections from there begin with a PROXY header."""
    identity: IdentityPolicy = field(default_factory=IdentityPolicy)
    """Which user a connection belongs to."""
    oauthbearer_claim: str = DEFAULT_CLAIM
    """The claim of OAUTHBEARER tokens that is the principal's name."""
    listen_tls: ServerTls | None = None
    """Clients connect by TLS; None: plain."""
    upstream_tls: ClientTls | None = None
    """Brokers are connected to by TLS; None: plain."""
    credentials: Credentials | None = None
    """The sidecar's own login, for its own requests."""
    token_owners: Mapping[str, str] = field(default_factory=dict)
    """Owners of delegation tokens, by token id."""
    connect_timeout_s: float = 10.0
    sizes: SizeLimits = DEFAULT_SIZES
    stalls: StallLimits = field(default_factory=StallLimits)
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)
    buffer_bytes: int = 65_536
    """Size of the one receive buffer that all connections share (nothing is kept in it between wake-ups)."""
    splice_min_bytes: int = 32_768
    """Bodies with at least this much still to come are moved by splice(2), without entering Python; 0: never."""
    transparent: TransparentSettings | None = None
    """Connections are redirected here, and go on to their original destination. None: `mode: rewrite`."""
