"""What the data path needs to know; built from the configuration by `deploy`, so that `proxy` knows no YAML."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.identity import IdentityPolicy
from proxy.sasl import DEFAULT_CLAIM
from proxy.tls import ClientTls, ServerTls


@dataclass(frozen=True, slots=True)
class Transparent:
    """Settings of `mode: transparent` alone."""

    mark: int | None = None
    """Socket mark (SO_MARK) of all that the sidecar dials, for rules that leave it out by that; None: no mark."""
    networks: tuple[str, ...] = ()
    """CIDRs that redirected connections may go to; empty: any."""
    ports: tuple[range, ...] = ()
    """Ports that they may go to; empty: any."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Settings of one sidecar. Changing them takes a restart; quotas live in the ledger and do not."""

    listen_host: str
    listen_port: int
    broker_ports: range
    """Local ports for brokers: broker N gets `broker_ports[N]` if free, else the first free one."""
    bootstrap: tuple[tuple[str, int], ...]
    """(host, port) of real brokers, tried in turn. May be empty when `transparent`."""
    advertised_host: str | None = None
    """Host that clients are told; None: the address the client itself connected to."""
    identity: IdentityPolicy = field(default_factory=IdentityPolicy)
    """Which user a connection is."""
    oauth_claim: str = DEFAULT_CLAIM
    """The claim of OAUTHBEARER's tokens that is the principal's name."""
    listen_tls: ServerTls | None = None
    """Clients connect by TLS; None: plain."""
    upstream_tls: ClientTls | None = None
    """Brokers are connected to by TLS; None: plain."""
    connect_timeout_s: float = 10.0
    max_frame_bytes: int = 104_857_600
    """Kafka's socket.request.max.bytes."""
    max_in_flight: int = 1024
    """Requests of one connection without an answer; above it the client is not read (back-pressure)."""
    max_held_connections: int = 1000
    """Refused connections that are held until their delay is over; further ones are closed at once."""
    drain_timeout_s: float = 30.0
    max_idle_s: float = 600.0
    metadata_refresh_s: float = 30.0
    """How often the sidecar itself asks the cluster for its brokers."""
    buffer_bytes: int = 65_536
    """Size of the one receive buffer that all connections share (nothing is kept in it between wake-ups)."""
    splice_min_bytes: int = 32_768
    """Bodies with at least this much still to come are moved by splice(2), without entering Python; 0: never."""
    transparent: Transparent | None = None
    """Connections are redirected here, and go on to where they were going. None: `mode: rewrite`."""
