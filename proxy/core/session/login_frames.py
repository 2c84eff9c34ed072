"""What a client sends during a SASL login: requests that are read whole, and raw messages without a header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.core.session.framing import Buffer
from proxy.core.session.in_flight import InFlightRequest, new_in_flight
from proxy.core.session.login import RAW, UNAUTHENTICATED, logins_of, too_large
from proxy.core.wire.requests import RequestHeader
from proxy.core.wire.sasl import MAX_SASL_BYTES, SASL_AUTHENTICATE

if TYPE_CHECKING:
    from proxy.core.session.request_handler import RequestHandler


def inspect_request(
    side: RequestHandler,
    buf: bytearray | memoryview,
    start: int,
    here: int,
    header: RequestHeader,
    pending: InFlightRequest,
    out: list[Buffer],
) -> int:
    """A login request: read whole and passed on; only a name is kept of it. Returns as `inspect`.

    Raises WireError for one that is too large.
    """
    total = 4 + header.size
    if header.size > MAX_SASL_BYTES:
        raise too_large(header.size)
    state, walker = side._state, side.walker
    logins = logins_of(state)
    logins.watch.begin()
    if here < total:
        walker.need = total
        return 0
    if not logins.refused:
        pending.account = UNAUTHENTICATED
    state.count_request(pending.account, pending.api_key)
    state.inflight.append(pending)
    logins.request(header, memoryview(buf)[header.body : start + total], pending)
    out.append(bytes(buf[start : start + total]))
    walker.skip = 0
    return -total


def inspect_raw(side: RequestHandler, buf: bytearray | memoryview, start: int, end: int, out: list[Buffer]) -> int:
    """Inspect the raw SASL message at `start`, which has no request header."""
    logins = logins_of(side._state)
    # An earlier frame of the same read was a request again: so are all that follow it.
    frame = logins.raw_frame(side.walker, buf, start, end) if logins.watch.raw else None
    if frame is None:
        return 0 if logins.watch.raw else side._inspect(buf, start, end, out)
    if logins.watch.awaiting:
        side._state.inflight.append(new_in_flight(0, SASL_AUTHENTICATE, RAW, UNAUTHENTICATED, side._now_ms))
    out.append(frame)
    return -len(frame)
