"""Whether a request may be forwarded now, or is queued because its group is in debt for earlier ones (ADR 0026).

A mute stops the connection that caused it, after its response. This gate stops a request before anything has been done
with it: on a new connection, on one whose mute was cut to `max_mute`, or where other connections of the group have used
what there was. The session stops before the request and inspects it again; `quota.gate` keeps the queue.
"""

from __future__ import annotations

from typing import Final

from proxy.core.session.exchange import InFlightRequest
from proxy.core.session.frames import FrameReader
from proxy.core.session.state import SessionState
from proxy.core.session.throttle import Throttle
from proxy.core.wire import requests
from proxy.core.wire.apis import API_VERSIONS, FETCH, OF_TRANSACTIONS, PRODUCE, SHARE_FETCH
from proxy.core.wire.requests import RequestHeader
from proxy.core.wire.sasl import SASL_APIS
from proxy.core.wire.topics import STRICT_FROM
from quota.counter import QuotaCounter
from quota.entity import Kind
from quota.ledger import Account

# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
PRODUCED: Final = Kind.PRODUCE
MUTATED: Final = Kind.MUTATION
ONLY_REQUEST_TIME: Final[tuple[Kind, ...]] = (Kind.REQUEST,)
PRODUCE_GATES: Final[tuple[Kind, ...]] = (Kind.REQUEST, Kind.PRODUCE)
GATES: Final[dict[int, tuple[Kind, ...]]] = {
    # Connections begin with these, and before a login there is no principal to charge.
    **dict.fromkeys((API_VERSIONS, *SASL_APIS), ()),
    PRODUCE: PRODUCE_GATES,
    FETCH: ONLY_REQUEST_TIME,
    **dict.fromkeys(STRICT_FROM, (Kind.REQUEST, Kind.MUTATION)),
}
"""The quotas that queue requests of an API. All others are queued for request time alone, and fetches by their own
quota (`proxy.core.session.fetch`)."""
FOR_THE_ANSWER: Final = {
    PRODUCE: Kind.PRODUCE,
    FETCH: Kind.FETCH,
    SHARE_FETCH: Kind.FETCH,
    **dict.fromkeys(OF_TRANSACTIONS, Kind.REQUEST),
}
"""Requests that are dropped when their client closes while it is muted or they are queued, as it cannot read the answer
any more and sends them again elsewhere; of Produce those with acks other than 0. Others (LeaveGroup) are forwarded in
their turn."""
DROPPED_MS: Final = 1000
"""How long such a request is queued at most."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_PRODUCE: Final = PRODUCE
_FETCH: Final = FETCH
MAX_INT32: Final = 2**31 - 1
"""The size of a fetch that gives no `max_bytes`, or whose own is not looked at."""


def lets_through(
    state: SessionState, reader: FrameReader, account: Account, header: RequestHeader, now_ms: float
) -> bool:
    """Whether the request at the reader's HEAD may be forwarded. If not, `Throttle.until_ms` is when to ask again.
    Raises WireError if it is malformed."""
    api_key, throttle = header.api_key, state.throttle
    gates = GATES
    # The two that make up nearly all traffic are recognised without a lookup.
    if api_key == _PRODUCE:
        kinds = PRODUCE_GATES
    else:
        kinds = ONLY_REQUEST_TIME if api_key == _FETCH else gates.get(api_key, ONLY_REQUEST_TIME)
    if throttle.gone and api_key in FOR_THE_ANSWER and not _unanswered(reader, header):
        throttle.queue(FOR_THE_ANSWER[api_key], None, DROPPED_MS, now_ms)  # the connection's I/O drops it, and ends
        return False
    for kind in kinds:
        if _queues(state, reader, account, header, kind, now_ms):
            return False
    if throttle.place is not None and api_key not in (FETCH, SHARE_FETCH):  # their own quota may still queue those
        throttle.admit(account, api_key, header.size, now_ms)
    return True


def claim(state: SessionState, account: Account, size_bytes: int, missing: int, now_ms: float) -> bool:
    """Let a Produce request pass that no quota queues, and of which `missing` bytes have not arrived: its group counts
    it from now on. False: ask `lets_through`."""
    throttle, group = state.throttle, account.produced.group
    throttle.due_bytes = throttle.client_bytes + missing
    if group is not None and not group.claim(throttle, size_bytes, int(now_ms)):
        return False
    _promise(throttle, group)
    return True


def _promise(throttle: Throttle, group: QuotaCounter | None) -> None:
    """This group expects the connection's next Produce request, and the earlier group no longer does."""
    if throttle.promised is not None and throttle.promised is not group:
        throttle.promised.leave_queue(throttle)
    throttle.promised = group


def _queues(
    state: SessionState, reader: FrameReader, account: Account, header: RequestHeader, kind: Kind, now_ms: float
) -> bool:
    """Whether the quota of this kind queues the request. Arguments as of `lets_through`."""
    ledger, throttle = state.ledger, state.throttle
    meter = account.meter(kind)
    group = meter.group
    produce = kind is PRODUCED
    missing = reader.total - (reader.stop - reader.start)
    if not meter.may_queue(ledger.generation) and not (produce and (missing or throttle.grace.owed_until_ms)):
        return False
    if kind is MUTATED and header.api_version >= STRICT_FROM[header.api_key]:
        return False  # its interceptor refuses it topic by topic
    amount = 0
    if produce:
        amount = header.size
        throttle.due_bytes = throttle.client_bytes + missing
        if missing and group is not None and throttle.place is not None and throttle.place.all_read:
            group.leave_queue(throttle)  # nothing more of it arrives: it counts, and has a place, for what is here
            amount -= missing
    wait_ms: float = ledger.queue(account, kind, throttle, amount, now_ms, not missing)
    group = meter.group
    if produce:
        _promise(throttle, group)
        wait_ms = max(wait_ms, throttle.grace.owed_ms(now_ms))
    if wait_ms <= 0 or group is None:
        return False
    if throttle.grace.may_renew(now_ms, throttle.client_bytes) and group.renews(header.size, int(now_ms)):
        group.leave_queue(throttle)
        return False
    throttle.queue(kind, group, wait_ms, now_ms, unanswered=produce and _unanswered(reader, header))
    return True


def _unanswered(reader: FrameReader, header: RequestHeader) -> bool:
    """Whether this is a Produce request whose client expects no answer (acks=0); False if that is not known yet."""
    if header.api_key != PRODUCE:
        return False
    return requests.produce_acks(reader.buf, header.body, reader.stop, header.api_version) == 0


def admits_unshaped(state: SessionState, pending: InFlightRequest, now_ms: float) -> bool:
    """As `lets_through`, for a fetch that can neither be answered here nor lowered."""
    account = pending.account
    grant = state.ledger.admit(account, Kind.FETCH, MAX_INT32, now_ms)
    if grant.throttle_ms > 0:
        state.throttle.queue(Kind.FETCH, None, grant.throttle_ms, now_ms)
        return False
    pending.grant = grant
    state.throttle.admit(account, pending.api_key, 0, now_ms)
    return True
