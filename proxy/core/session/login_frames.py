"""What a client sends during a SASL login: requests that are read whole, and raw messages without a header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.core.session.exchange import InFlightRequest, new_in_flight
from proxy.core.session.frames import FORWARD, Verdict, need
from proxy.core.session.login import RAW, UNAUTHENTICATED, logins_of, too_large
from proxy.core.wire.requests import RequestHeader
from proxy.core.wire.sasl import MAX_SASL_BYTES, SASL_AUTHENTICATE

if TYPE_CHECKING:
    from proxy.core.session.request_handler import RequestHandler


def request(
    side: RequestHandler,
    buf: bytearray | memoryview,
    start: int,
    end: int,
    header: RequestHeader,
    pending: InFlightRequest,
) -> Verdict:
    """A login request: read whole and passed on; only a name is kept of it. Raises WireError for one that is too
    large."""
    total = 4 + header.size
    if header.size > MAX_SASL_BYTES:
        raise too_large(header.size)
    state = side._state
    logins = logins_of(state)
    logins.watch.begin()
    if end - start < total:
        return need(total)
    if not logins.refused:
        pending.account = UNAUTHENTICATED
    state.count_request(pending.account, pending.api_key)
    state.exchange.append(pending)
    logins.request(header, memoryview(buf)[header.body : start + total], pending)
    return FORWARD


def raw_message(
    side: RequestHandler, buf: bytearray | memoryview, start: int, end: int, total: int, now_ms: float
) -> Verdict:
    """The raw SASL message at `start`, which has no request header. STOP: it is a request, once its user is known."""
    logins = logins_of(side._state)
    verdict = logins.raw_frame(buf, start, end, total)
    if verdict is FORWARD and logins.watch.awaiting:
        side._state.exchange.append(new_in_flight(0, SASL_AUTHENTICATE, RAW, UNAUTHENTICATED, now_ms))
    return verdict
