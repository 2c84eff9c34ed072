"""What a client sends while it logs in by SASL: requests that are taken whole, and raw messages without a header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.session.framing import Buffer
from proxy.session.in_flight import Pending, new_pending
from proxy.session.login import NOBODY, RAW, logins_of, too_large
from proxy.wire.requests import RequestHeader
from proxy.wire.sasl import MAX_SASL_BYTES, SASL_AUTHENTICATE

if TYPE_CHECKING:
    from proxy.session.request_handler import RequestSide


def judge_request(
    side: RequestSide,
    buf: bytearray | memoryview,
    start: int,
    here: int,
    header: RequestHeader,
    pending: Pending,
    out: list[Buffer],
) -> int:
    """A request of a login: taken whole, passed on, and nothing of it is kept but a name. Returns as a judge does."""
    total = 4 + header.size
    if header.size > MAX_SASL_BYTES:
        raise side.malformed(buf, start, start + here, too_large(header.size))
    exchange, walker = side._exchange, side.walker
    logins = logins_of(exchange)
    logins.watch.begin()
    if here < total:
        walker.need = total
        return 0
    if not logins.refused:
        pending.account = NOBODY
    exchange.count_request(pending.account, pending.api_key)
    exchange.inflight.append(pending)
    logins.request(header, memoryview(buf)[header.body : start + total], pending)
    out.append(bytes(buf[start : start + total]))
    walker.skip = 0
    return -total


def judge_raw(side: RequestSide, buf: bytearray | memoryview, start: int, end: int, out: list[Buffer]) -> int:
    """Judge the raw SASL message at `start`, which has no request header."""
    logins = logins_of(side._exchange)
    # An earlier frame of the same read was a request again: all behind it are.
    frame = logins.raw_frame(side.walker, buf, start, end) if logins.watch.raw else None
    if frame is None:
        return 0 if logins.watch.raw else side._judge(buf, start, end, out)
    if logins.watch.awaiting:
        side._exchange.inflight.append(new_pending(0, SASL_AUTHENTICATE, RAW, NOBODY, side._now_ms))
    out.append(frame)
    return -len(frame)
