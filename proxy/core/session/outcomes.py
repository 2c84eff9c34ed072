"""Carrying out an interceptor's decision about an administrator's request (`proxy.core.interceptors.intercept`)."""

from __future__ import annotations

from proxy.core.interceptors.intercept import Answer, Ask, Forward, Outcome, Wait, Work
from proxy.core.session.exchange import InFlightRequest, new_in_flight
from proxy.core.session.outgoing import Outgoing
from proxy.core.session.state import SessionState
from proxy.core.wire.apis import api_name
from proxy.core.wire.messages import framed, request_header, response_frame


def carry_out(
    state: SessionState,
    outcome: Outcome,
    head: bytes,
    body: bytes,
    pending: InFlightRequest,
    out: Outgoing,
    now_ms: float,
) -> bool:
    """Forward the request, of which `head` is the header and `body` the rest, answer it, or send its interceptor's own
    request first. Returns whether it still waits for its interceptor."""
    began_ms = state.cpu_ms()
    if isinstance(outcome, Work):
        state.counters.long_turns.begin(api_name(pending.api_key), now_ms / 1000.0)
        decided = outcome.advance(now_ms)
        if decided is None:
            state.charge_own(pending.account, began_ms, now_ms)
            state.exchange.decide(outcome)  # the next slice: others are served first
            return True
        outcome = decided
    if isinstance(outcome, Ask):
        state.charge_own(pending.account, began_ms, now_ms)
        asked = (outcome.api_key, outcome.api_version, pending.correlation_id)
        question = new_in_flight(asked[2], asked[0], asked[1], pending.account, now_ms)
        question.asked = outcome.then
        state.exchange.append(question)
        out.insert(framed(request_header(*asked, pending.account.identity.client_id) + outcome.body))
        return True
    if isinstance(outcome, Wait):
        state.effects.ask = outcome
        return True
    if outcome.delay_ms > 0:
        state.throttle.impose(pending, outcome.kind, outcome.delay_ms, now_ms)
    if isinstance(outcome, Forward):
        state.charge_own(pending.account, began_ms, now_ms)
        pending.sent_ms = now_ms
        pending.on_response = outcome.on_response
        if outcome.on_response is not None:
            pending.held_bytes = len(body)
        out.insert(framed(head + (body if outcome.body is None else outcome.body)))
    else:
        assert isinstance(outcome, Answer)
        delay_ms = max(outcome.delay_ms, state.answered_here(pending, began_ms, now_ms))
        pending.local_answer = response_frame(
            pending.api_key, pending.api_version, pending.correlation_id, outcome.body, delay_ms
        )
        pending.held_bytes = len(pending.local_answer)
    state.exchange.append(pending)
    return False
