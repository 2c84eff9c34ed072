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
        default=_INT_MAX, description="Largest response of a broker; by default any that Kafka's protocol can have."
    )
    max_in_flight: Annotated[int, whole(1, 1_000_000, "requests")] = Field(
        default=1024, description="Requests of one connection without an answer; above it the client is not read."
    )
    max_connections: Annotated[int, whole(1, _INT_MAX, "connections")] = Field(
        default=_INT_MAX,
        description="Connections open at once, of all clients together, as Kafka's max.connections; further ones are "
        "closed at once. Never more than file descriptors allow, two for each.",
    )
    pre_auth_timeout_ms: Annotated[int, duration_ms(100, _HOUR_MS, bare_unit="ms")] = Field(
        default=30_000,
        description="How long a client may take until its login is accepted, or where none is wanted, until its first "
        "request; what the broker takes to answer and mutes do not count.",
    )
    stall_timeout_ms: Annotated[int, duration_ms(100, _HOUR_MS, bare_unit="ms")] = Field(
        default=60_000,
        description="How long a peer may keep the sidecar waiting inside a request or a response, or leave responses "
        "unread, while less than 512 bytes a second move.",
    )
    max_clients: Annotated[int, whole(100, 10_000_000, "clients")] = Field(
        default=20_000,
        description="Clients remembered while they have no connection, and counters of each kind of quota. When there "
        "are more, newcomers share a counter per quota entry.",
    )
    max_held_connections: Annotated[int, whole(0, 100_000, "connections")] = Field(
        default=1000,
        description="Connections over a connection_creation_rate that are held open, unserved, until their delay is "
        "over, as Kafka does; further ones are closed at once.",
    )
