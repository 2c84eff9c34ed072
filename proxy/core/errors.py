"""Why a connection ends: one word for metrics, one sentence for people, and which side is to blame."""

from __future__ import annotations

from enum import StrEnum


class CloseReason(StrEnum):
    """Label `reason` of `kquota_connections_closed_total`. The name says which side is at fault, where one is."""

    CLIENT_CLOSED = "client_closed"
    """The client closed the connection after everything owed to it had been sent."""
    CLIENT_RESET = "client_reset"
    """The client's socket failed (reset, timed out) while in use."""
    CLIENT_MALFORMED = "client_malformed"
    """What the client sent is not Kafka's protocol; `kquota_parse_errors_total` has the kind."""
    TLS_HANDSHAKE = "tls_handshake"
    """The client's TLS handshake failed or took too long; `kquota_tls_handshake_failures_total` has the reason."""
    PROXY_HEADER = "proxy_header"
    """A connection from `listen.proxy_protocol_from` did not begin with a valid PROXY header in time."""
    LOGIN_MISSING = "login_missing"
    """The client sent requests before a login on a listener that wants one, and the broker closed the connection."""
    BROKER_CLOSED = "broker_closed"
    """The broker closed the connection; its last bytes have been passed on."""
    BROKER_RESET = "broker_reset"
    """The broker's socket failed while in use."""
    BROKER_SILENT = "broker_silent"
    """The client has gone, and for `drain_timeout` its broker neither answered nor read what was in flight."""
    BROKER_MALFORMED = "broker_malformed"
    """The broker sent a response that matches no request, or that must be rewritten and cannot be parsed."""
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    """No connection to the broker could be made."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """A newer version of a response with broker addresses: passed on, it would let clients bypass the sidecar."""
    RESERVED_TOPIC = "reserved_topic"
    """The client named the fleet's topic in a request that reads, writes or moves its records."""
    IP_CONNECTION_RATE = "ip_connection_rate"
    """Refused: its address opened connections faster than `connection_creation_rate` (KIP-612)."""
    IP_MAX_CONNECTIONS = "ip_max_connections"
    """Refused: its address already had `max_connections` connections open."""
    USER_CONNECTION_RATE = "user_connection_rate"
    """Refused: its user opened connections faster than `connection_creation_rate`."""
    USER_MAX_CONNECTIONS = "user_max_connections"
    """Refused: its user already had `max_connections` connections open."""
    NOT_REDIRECTED = "not_redirected"
    """Refused in transparent mode: a direct connection to the listener, so there is no destination to dial."""
    LOOP = "loop"
    """Refused in transparent mode: the sidecar would connect to itself; the redirect rules do not exempt it."""
    DESTINATION_REFUSED = "destination_refused"
    """Refused in transparent mode: its destination is not in `transparent.networks` and `transparent.ports`."""
    MAX_CONNECTIONS = "max_connections"
    """Refused: as many connections were open as `limits.max_connections` or the file descriptors allow."""
    NO_DESCRIPTORS = "no_descriptors"
    """Refused: the process or the machine is out of file descriptors."""
    PRE_AUTH_TIMEOUT = "pre_auth_timeout"
    """The client did not log in, or send its first request where no login is needed, within `pre_auth_timeout_ms`."""
    SLOW_REQUEST = "slow_request"
    """The client stalled, or nearly, in the middle of a request for `stall_timeout_ms`."""
    SLOW_READER = "slow_reader"
    """The client did not read its responses, or hardly, for `stall_timeout_ms`."""
    SLOW_BROKER = "slow_broker"
    """The broker stalled, or nearly, in the middle of a response for `stall_timeout_ms`."""
    IDLE = "idle"
    """Nothing moved for `connections_max_idle_ms` (Kafka's connections.max.idle.ms)."""
    MAX_AGE = "max_age"
    """The connection reached `connections_max_age_ms`, less its jitter; it ended between requests or after the last."""
    DRAINED = "drained"
    """The sidecar is shutting down and this connection had nothing left in flight."""
    DRAIN_TIMEOUT = "drain_timeout"
    """The sidecar is shutting down and `drain_timeout` passed with requests still in flight."""
    INTERNAL_ERROR = "internal_error"
    """A bug of ours; the log has the stack trace. Other connections go on."""


class SessionError(Exception):
    """Ends one connection and never affects another."""

    def __init__(self, reason: CloseReason, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.kind = kind
        """Label of `kquota_parse_errors_total`, if malformed bytes were the cause."""


class UpstreamError(Exception):
    """No connection to a broker could be made; the message says to which address and why."""


def client_failed(error: BaseException | None) -> SessionError:
    """The client's socket failed with `error` (an OSError)."""
    return SessionError(CloseReason.CLIENT_RESET, f"client connection failed: {error}")


def broker_failed(error: BaseException | None) -> SessionError:
    """The broker's socket failed with `error` (an OSError)."""
    alert = tls_alert(error)
    # TLS 1.3: what a broker says of our certificate comes after the handshake.
    text = error if alert is None else f"the broker sent the TLS alert {alert} (see upstream.tls)"
    return SessionError(CloseReason.BROKER_RESET, f"broker connection failed: {text}")


def tls_alert(error: BaseException | None) -> str | None:
    """The alert in an `ssl.SSLError`, such as "certificate required"; None: it is another error."""
    reason = getattr(error, "reason", None) or ""
    return reason.rpartition("ALERT_")[2].replace("_", " ").lower() if "ALERT_" in reason else None


def broker_malformed(text: str, kind: str) -> SessionError:
    """What the broker sent is not Kafka's protocol; `kind` as of `SessionError`."""
    return SessionError(CloseReason.BROKER_MALFORMED, text, kind=kind)


def first_error(group: BaseExceptionGroup[SessionError]) -> SessionError:
    """The first error raised by a connection's tasks: the others are its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SessionError)
    return error
