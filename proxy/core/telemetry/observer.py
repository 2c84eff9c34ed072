"""Write-only side exit of the data path: plain integers, read by the metrics module at each scrape.

Nothing here formats, locks or allocates per request; a slow or stopped exporter does not affect traffic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from proxy.core.session.exchange import Histogram
from proxy.core.telemetry.libraries import Libraries
from proxy.core.telemetry.long_turns import LongTurns
from quota.accounts import RequestCounts


class ConnectionCounters:
    """Of client connections."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: Counter[str] = Counter()
        """By CloseReason."""
        self.open = 0
        """Gauge: open."""
        self.muted = 0
        """Gauge: client sockets not being read because of a throttle."""
        self.waiting = 0
        """Gauge: client sockets not being read because the next request is queued for its group's debt (ADR 0026)."""
        self.held = 0
        """Gauge: refused connections left open, unserved, until their delay is over."""
        self.not_held = 0
        """Refused connections closed at once because too many were muted already."""


class PassthroughCounters:
    """Of redirected connections with TLS that we have no key for."""

    def __init__(self) -> None:
        self.open = 0
        """Gauge: open."""
        self.opened = 0
        self.bytes: Counter[str] = Counter()
        """Bytes moved, by the kind of quota charged: produce (to the broker), fetch."""


class Counters:
    """Process-wide totals. Increment only; gauges say so."""

    def __init__(self) -> None:
        self.connections = ConnectionCounters()
        self.passthrough = PassthroughCounters()
        self.parse_errors: Counter[str] = Counter()
        """By kind: frame_too_large, tls_on_plain_port, ..."""
        self.counted = RequestCounts()
        """Requests, by API key. Unknown keys are counted as -1 (bounded whatever clients send)."""
        self.upstream_connects = 0
        self.upstream_connect_failures = 0
        self.node_checks: Counter[str] = Counter()
        """Brokers asked, as they are dialled, whether they are the ones meant, by outcome: same, other, unknown (before
        Kafka 4.4), unanswered."""
        self.tls_handshakes: Counter[str] = Counter()
        """Handshakes completed, by side: client, broker."""
        self.tls_handshake_failures: Counter[tuple[str, str]] = Counter()
        """Handshakes failed, by side and reason (`proxy.net.tls.contexts.explain`, and timeout, principal)."""
        self.proxy_headers: Counter[str] = Counter()
        """Connections from balancers, by outcome (`proxy.net.listen.balancers`)."""
        self.upstream_latency = Histogram()
        """From the forwarding of a request to the first byte of its response, except for requests whose wait the client
        chose (Fetch, JoinGroup, SyncGroup, ShareFetch)."""
        self.throttled_responses = 0
        """Responses with a throttle time of a quota here."""
        self.produces_refused = 0
        """Produce requests thrown away and answered REQUEST_TIMED_OUT."""
        self.fetches_answered = 0
        """Fetch requests answered with an empty response because their group was over its quota."""
        self.fetches_shaped = 0
        """Fetch requests forwarded with a lowered max_bytes."""
        self.addresses_rewritten = 0
        """Broker addresses replaced in responses."""
        self.libraries = Libraries()
        """Throttle compliance by client library."""
        self.long_turns = LongTurns()
        """Turns of the event loop that took too long."""
        self.accept_failures = 0
        """accept() failures: out of file descriptors or memory."""


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One line of /connections."""

    peer: str
    broker: str
    user: str
    client_ids: tuple[str, ...]
    software: str | None
    in_flight: int
    muted_for_ms: float
    client_bytes: int
    broker_bytes: int
    idle_s: float
    user_source: str = "anonymous"
    """Source of the user: tls, sasl, static, or anonymous when no source of identity knows one."""
    waiting_for: str | None = None
    """The quota whose gate queues the next request (ADR 0026); None: it is not queued."""
    waited_ms: float = 0.0
    """How long it has waited."""
    unmuted: str = "open"
    """The state when it is neither muted nor queued: open, full, asking, login, connecting or draining
    (`proxy.core.session.session.Session.describe`)."""

    @property
    def state(self) -> str:
        """`waiting` (before a request), `muted` (after one), or `unmuted`'s value."""
        if self.waiting_for is not None:
            return "waiting"
        return "muted" if self.muted_for_ms > 0 else self.unmuted
