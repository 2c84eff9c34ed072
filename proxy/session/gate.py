"""Whether a request may be forwarded now, or is held because its group is in debt for earlier ones (ADR 0026).

A mute stops the connection that caused it, after its response. This gate holds a request before anything has been done
with it: on a new connection, on one whose mute was cut to `max_mute`, or where other connections of the group have used
what there was. The session stops before the request and inspects it again; `quota.gate` keeps the queue.
"""

from __future__ import annotations

from typing import Final

from proxy.session.in_flight import InFlightRequest
from proxy.session.request_time import EXEMPT
from proxy.session.state import SessionState
from proxy.wire import requests
from proxy.wire.apis import API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH
from proxy.wire.sasl import SASL_APIS
from proxy.wire.topics import STRICT_FROM
from quota.entity import Kind
from quota.ledger import Account

MAX_KEPT_MS: Final = 10_000
"""Requests without an answer (acks=0) are kept for a client that has closed, if they are due within this time."""
# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
PRODUCED: Final = Kind.PRODUCE
MUTATED: Final = Kind.MUTATION
ONLY_REQUEST_TIME: Final[tuple[Kind, ...]] = (Kind.REQUEST,)
PRODUCE_GATES: Final[tuple[Kind, ...]] = (Kind.REQUEST, Kind.PRODUCE)
GATES: Final[dict[int, tuple[Kind, ...]]] = {
    # Connections begin with these, and before a login there is no principal to charge.
    **dict.fromkeys((API_VERSIONS, *SASL_APIS), ()),
    **dict.fromkeys(EXEMPT, ()),  # brokers neither charge nor check these
    PRODUCE: PRODUCE_GATES,
    FETCH: ONLY_REQUEST_TIME,
    **dict.fromkeys(STRICT_FROM, (Kind.REQUEST, Kind.MUTATION)),
}
"""The quotas that hold requests of an API. All others are held for request time alone, and fetches by their own quota
(`proxy.session.fetch`)."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_PRODUCE: Final = PRODUCE
_FETCH: Final = FETCH
MAX_INT32: Final = 2**31 - 1
"""The size of a fetch that gives no `max_bytes`, or whose own is not looked at."""


def lets_through(
    state: SessionState,
    account: Account,
    header: requests.RequestHeader,
    buf: bytearray | memoryview,
    end: int,
    whole: bool,
    now_ms: float,
) -> bool:
    """Whether the request in `buf`, of which the bytes up to `end` have arrived (`whole`: all of it), may be forwarded.
    If not, `state.mute_until_ms` is when to ask again."""
    api_key, ledger = header.api_key, state.ledger
    gates = GATES
    # The two that make up nearly all traffic are recognised without a lookup.
    if api_key == _PRODUCE:
        kinds = PRODUCE_GATES
    else:
        kinds = ONLY_REQUEST_TIME if api_key == _FETCH else gates.get(api_key, ONLY_REQUEST_TIME)
    for kind in kinds:
        meter = account.meter(kind)
        group = meter.group
        produce = kind is PRODUCED
        # A new client, or one with new limits, may get a counter that is already in debt.
        asks = meter.generation != ledger.generation or (group is not None and group.may_hold)
        if not asks and not (produce and (not whole or state.owed_until_ms)):
            continue
        if kind is MUTATED and header.api_version >= STRICT_FROM[api_key]:
            continue  # its interceptor refuses it topic by topic
        amount = header.size if produce else 0
        wait_ms, group = ledger.hold(account, kind, state, amount, now_ms, whole=whole)
        if produce:
            state.promised = group
            wait_ms = max(wait_ms, state.put_off_ms(now_ms))
        if wait_ms <= 0 or group is None:
            continue
        if state.may_renew(now_ms) and group.renews(header.size, int(now_ms)):
            group.pass_held(state)
            continue
        wants_answer = not produce or requests.produce_acks(buf, header.body, end, header.api_version) != 0
        state.hold(kind, group, wait_ms, now_ms, kept=not wants_answer and wait_ms <= MAX_KEPT_MS)
        return False
    if state.held is not None and api_key not in (FETCH, SHARE_FETCH):  # those may still be held by their own quota
        state.end_hold(account, api_key, header.size, now_ms)
    return True


def admits_unshaped(state: SessionState, pending: InFlightRequest, now_ms: float) -> bool:
    """As `lets_through`, for a fetch that can neither be answered here nor lowered."""
    account = pending.account
    admission = state.ledger.admit(account, Kind.FETCH, MAX_INT32, now_ms)
    if admission.throttle_ms > 0:
        state.hold(Kind.FETCH, None, admission.throttle_ms, now_ms)
        return False
    pending.admission = admission
    state.end_hold(account, pending.api_key, 0, now_ms)
    return True
