"""Limits on what one peer may use (sizes, times, numbers), so that it cannot starve the others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.types import Section, duration_ms, size, whole

_INT_MAX = 2**31 - 1
_HOUR_MS = 3_600_000


class Limits(Section):
    """What one connection may use, how many there may be, and how many clients are remembered (docs/limits.md)."""

    max_frame_bytes: Annotated[int, size(1024, _INT_MAX, "bytes")] = Field(
        default=104_857_600, description="Largest request, as Kafka's socket.request.max.bytes."
    )
    max_response_bytes: Annotated[int, size(1024, _INT_MAX, "bytes")] = Field(
        default=_INT_MAX, description="Largest response of a broker."
    )
    max_in_flight: Annotated[int, whole(1, 1_000_000, "requests")] = Field(
        default=1024, description="Unanswered requests of a connection; above it the client is not read."
    )
    max_connections: Annotated[int, whole(1, _INT_MAX, "connections")] = Field(
        default=_INT_MAX,
        description="Open client connections, as Kafka's max.connections; others are closed at once. At most half of "
        "the file descriptors.",
    )
    pre_auth_timeout_ms: Annotated[int, duration_ms(100, _HOUR_MS, bare_unit="ms")] = Field(
        default=30_000,
        description="Time until a client's login, or its first request. The broker's time and mutes do not count.",
    )
    stall_timeout_ms: Annotated[int, duration_ms(100, _HOUR_MS, bare_unit="ms")] = Field(
        default=60_000,
        description="Time that a peer may stop inside a request or response, or not read, below 512 bytes per second.",
    )
    max_clients: Annotated[int, whole(100, 10_000_000, "clients")] = Field(
        default=20_000,
        description="Clients and counters remembered per kind of quota. Beyond it new clients share a counter.",
    )
    max_held_connections: Annotated[int, whole(0, 100_000, "connections")] = Field(
        default=1000,
        description="Connections over a connection_creation_rate that stay open for their delay; others are closed at "
        "once.",
    )
