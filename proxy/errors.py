"""Why a connection ends: one word for metrics, one sentence for people, and who is to blame."""

from __future__ import annotations

from enum import StrEnum


class CloseReason(StrEnum):
    """Label `reason` of `kquota_connections_closed_total`. The name tells the guilty side where there is one."""

    CLIENT_CLOSED = "client_closed"
    """The client ended the connection, everything it was owed has been sent."""
    CLIENT_RESET = "client_reset"
    """The client's socket failed (reset, timed out) while we used it."""
    CLIENT_MALFORMED = "client_malformed"
    """What the client sent is not Kafka's protocol; `kquota_parse_errors_total` has the kind."""
    TLS_HANDSHAKE = "tls_handshake"
    """The client's TLS handshake failed or took too long; `kquota_tls_handshake_failures_total` has the reason."""
    LOGIN_MISSING = "login_missing"
    """The client sent requests before a login on a listener that wants one, and the broker closed the connection."""
    BROKER_CLOSED = "broker_closed"
    """The broker ended the connection, its last bytes have been passed on."""
    BROKER_RESET = "broker_reset"
    """The broker's socket failed while we used it."""
    BROKER_SILENT = "broker_silent"
    """The client has gone, and for `drain_timeout` its broker neither answered nor took what was under way to it."""
    BROKER_MALFORMED = "broker_malformed"
    """The broker sent something that answers no request, or cannot be read where it must be rewritten."""
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    """No connection to the broker could be made."""
    NO_BROKER_PORT = "no_broker_port"
    """A broker appeared for which `listen.broker_ports` has no free port; its address must not leak, so we close."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """A newer version of a response that carries broker addresses: passing it would send clients around the sidecar."""
    IP_CONNECTION_RATE = "ip_connection_rate"
    """Refused: connections from its address came faster than `connection_creation_rate` (KIP-612)."""
    IP_MAX_CONNECTIONS = "ip_max_connections"
    """Refused: as many connections from its address were open as `max_connections` allows."""
    USER_CONNECTION_RATE = "user_connection_rate"
    """Refused: connections of its user came faster than `connection_creation_rate`."""
    USER_MAX_CONNECTIONS = "user_max_connections"
    """Refused: as many connections of its user were open as `max_connections` allows."""
    NOT_REDIRECTED = "not_redirected"
    """Refused in transparent mode: somebody connected to the listener itself, so there is nowhere to go on to."""
    LOOP = "loop"
    """Refused in transparent mode: the sidecar would talk to itself; the redirect rules do not leave it out."""
    DESTINATION_REFUSED = "destination_refused"
    """Refused in transparent mode: `transparent.networks` and `transparent.ports` do not have its destination."""
    MAX_CONNECTIONS = "max_connections"
    """Refused: as many connections were open as `limits.max_connections` or the file descriptors allow."""
    NO_DESCRIPTORS = "no_descriptors"
    """Refused: the process or the machine is out of file descriptors."""
    PRE_AUTH_TIMEOUT = "pre_auth_timeout"
    """The client had not logged in, or where it need not, not sent its first request, in `pre_auth_timeout_ms`."""
    SLOW_REQUEST = "slow_request"
    """The client stopped, or nearly, in the middle of a request for `stall_timeout_ms`."""
    SLOW_READER = "slow_reader"
    """The client did not read its responses, or hardly, for `stall_timeout_ms`."""
    SLOW_BROKER = "slow_broker"
    """The broker stopped, or nearly, in the middle of a response for `stall_timeout_ms`."""
    IDLE = "idle"
    """Nothing moved for `connections_max_idle_ms` (Kafka's connections.max.idle.ms)."""
    DRAINED = "drained"
    """The sidecar is shutting down and this connection had nothing left in flight."""
    DRAIN_TIMEOUT = "drain_timeout"
    """The sidecar is shutting down and `drain_timeout` passed with requests still in flight."""
    INTERNAL_ERROR = "internal_error"
    """A bug of ours; the log has the stack trace. Other connections go on."""


class SessionError(Exception):
    """Ends one connection. Never a reason to disturb another one."""

    def __init__(self, reason: CloseReason, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.kind = kind
        """Label of `kquota_parse_errors_total`, where bytes were to blame."""


class UpstreamError(Exception):
    """No connection to a broker could be made; the message says to which address and why."""


def client_failed(error: BaseException | None) -> SessionError:
    """The client's socket failed with `error` (an OSError)."""
    return SessionError(CloseReason.CLIENT_RESET, f"client connection failed: {error}")


def broker_failed(error: BaseException | None) -> SessionError:
    """The broker's socket failed with `error` (an OSError)."""
    return SessionError(CloseReason.BROKER_RESET, f"broker connection failed: {error}")


def first_error(group: BaseExceptionGroup[SessionError]) -> SessionError:
    """The first of what several tasks of a connection raised: the others are its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SessionError)
    return error
