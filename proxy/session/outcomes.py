"""Carrying out an interceptor's decision about an administrator's request (`proxy.interceptors.intercept`)."""

from __future__ import annotations

from proxy.interceptors.intercept import Answer, Ask, Forward, Outcome, Wait
from proxy.session.framing import Buffer
from proxy.session.in_flight import InFlightRequest, new_in_flight
from proxy.session.state import SessionState
from proxy.wire.messages import framed, request_header, response_frame


def carry_out(
    state: SessionState,
    outcome: Outcome,
    head: bytes,
    body: bytes,
    pending: InFlightRequest,
    out: list[Buffer],
    now_ms: float,
) -> bool:
    """Forward the request, of which `head` is the header and `body` the rest, answer it, or send its interceptor's own
    request first. Returns whether it still waits for its interceptor."""
    if isinstance(outcome, Ask):
        asked = (outcome.api_key, outcome.api_version, pending.correlation_id)
        question = new_in_flight(asked[2], asked[0], asked[1], pending.account, now_ms)
        question.asked = outcome.then
        state.inflight.append(question)
        out.append(framed(request_header(*asked, pending.account.identity.client_id) + outcome.body))
        return True
    if isinstance(outcome, Wait):
        outcome.start(state.decided)
        return True
    if outcome.delay_ms > 0:
        state.impose(pending, outcome.kind, outcome.delay_ms, now_ms)
    if isinstance(outcome, Forward):
        pending.sent_ms = now_ms
        pending.on_response = outcome.on_response
        if outcome.on_response is not None:
            pending.held_bytes = len(body)
        out.append(framed(head + (body if outcome.body is None else outcome.body)))
    else:
        assert isinstance(outcome, Answer)
        pending.local_answer = response_frame(
            pending.api_key, pending.api_version, pending.correlation_id, outcome.body, outcome.delay_ms
        )
        pending.held_bytes = len(pending.local_answer)
    state.held_bytes += pending.held_bytes
    state.inflight.append(pending)
    return False
