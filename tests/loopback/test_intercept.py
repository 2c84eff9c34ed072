"""Administrators' requests, judged whole: forwarded, replaced, answered here, or put off until the broker was asked."""

import struct
from collections.abc import Callable

import pytest
import trio

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors import intercept
from proxy.core.interceptors.intercept import AdminRequest, Answer, Ask, Forward, Outcome, Reply, Wait
from proxy.core.wire.apis import METADATA
from tests.support import session_tools as tools
from tests.support.scripted_broker import answer, connect, exchange, frame_api, read_frame, through, until
from tests.support.session_tools import from_broker, from_client, produce, produce_response, request, response, session

CREATE_TOPICS = 19
VERSION = 7
"""Flexible: headers have tagged fields; throttle_time_ms comes first in the response's body."""

three_ways = pytest.mark.parametrize("cut", tools.THREE_WAYS)


def judged_by(handler: tools.Scripted) -> tools.Driven:
    return session(tools.ledger(), interceptors={CREATE_TOPICS: handler})


def create(correlation_id: int, body: bytes = b"topics") -> bytes:
    return request(CREATE_TOPICS, VERSION, correlation_id, body)


def created(correlation_id: int, throttle_ms: int = 0, rest: bytes = b"results") -> bytes:
    return response(CREATE_TOPICS, VERSION, correlation_id, struct.pack(">i", throttle_ms) + rest)


@three_ways
def test_handler_gets_whole_request_and_may_let_it_pass(cut: tools.Cut) -> None:
    handler = tools.Scripted(lambda request, now_ms: Forward())
    one = judged_by(handler)
    newer = request(CREATE_TOPICS, 99, 3, b"whatever")  # passes by, and is not judged
    asked = create(1) + produce(2, 90)
    assert from_client(one, asked + newer, cut=cut) == asked + newer
    (given,) = handler.given
    assert (given.api_key, given.api_version, given.user, given.account.identity.client_id) == (19, 7, "ANONYMOUS", "c")
    assert given.body == b"topics"
    assert from_broker(one, created(1, 5) + produce_response(2), cut=cut) == created(1, 5) + produce_response(2)


@three_ways
def test_handler_replaces_messages_and_larger_throttle_is_told(cut: tools.Cut) -> None:
    def on_response(body: bytes, now_ms: float) -> Reply:
        assert (body, now_ms) == (struct.pack(">i", 40) + b"results", 10.0)
        return Reply(struct.pack(">i", 0) + b"merged")

    one = judged_by(tools.Scripted(lambda request, now_ms: Forward(b"fewer", on_response, delay_ms=30)))
    assert from_client(one, create(1), 0.0, cut) == create(1, b"fewer")
    assert one.mute_until_ms == 30.0
    # 20 ms are left of ours, the broker says 40: 40 it is.
    assert from_broker(one, created(1, 40), 10.0, cut) == created(1, 40, b"merged")


@three_ways
def test_an_answer_made_here_waits_for_its_turn(cut: tools.Cut) -> None:
    one = judged_by(tools.Scripted(lambda request, now_ms: Answer(struct.pack(">i", 0) + b"refused", delay_ms=250)))
    requests = produce(1, 90) + create(2)
    assert from_client(one, requests, 0.0, cut) == produce(1, 90)
    assert one.mute_until_ms == 250.0
    assert one.seen() == b""
    assert from_broker(one, produce_response(1), 5.0, cut) == produce_response(1) + created(2, 250, b"refused")
    assert one.quiet


def asking(request: AdminRequest, now_ms: float) -> Outcome:
    return Ask(METADATA, 12, b"which?", lambda body, now_ms: Forward(b"as " + body[4:], delay_ms=60))


@three_ways
def test_what_a_handler_asks_is_never_seen_by_the_client(cut: tools.Cut) -> None:
    one = judged_by(tools.Scripted(asking))
    assert from_client(one, produce(1, 90) + create(2), cut=cut) == produce(1, 90) + request(METADATA, 12, 2, b"which?")
    assert one.must_wait
    assert not one.client_at_boundary
    answer = response(METADATA, 12, 2, struct.pack(">i", 0) + b"told")
    assert from_broker(one, produce_response(1) + answer, 7.0, cut) == produce_response(1)
    assert one.taken() == create(2, b"as told")
    assert one.client_at_boundary
    assert one.mute_until_ms == 67.0
    assert from_broker(one, created(2), 8.0, cut) == created(2, 59)
    assert one.quiet


def test_oversized_message_ends_connection_before_it_is_kept() -> None:
    handler = tools.Scripted(lambda request, now_ms: Forward(None, lambda body, now_ms: Reply()))
    large = create(1, b"t" * intercept.MAX_INTERCEPTED_BYTES)
    with pytest.raises(SessionError, match=f"CreateTopics request of {len(large) - 4} bytes") as caught:
        from_client(judged_by(handler), large[:1000])
    assert (caught.value.reason, caught.value.kind) == (CloseReason.CLIENT_MALFORMED, "request_too_large")
    one = judged_by(handler)
    from_client(one, create(1))
    with pytest.raises(SessionError, match="CreateTopics v7 response") as caught:
        from_broker(one, created(1, 0, b"t" * intercept.MAX_INTERCEPTED_BYTES)[:1000])
    assert caught.value.reason is CloseReason.BROKER_MALFORMED


async def test_later_requests_wait_for_what_was_asked() -> None:
    async def serve(stream: trio.SocketStream, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[8:12], "big")
        if frame_api(frame) == METADATA:
            await trio.sleep(0.05)
            await stream.send_all(response(METADATA, 12, correlation_id, struct.pack(">i", 0) + b"told"))
        elif frame_api(frame) == CREATE_TOPICS:
            await stream.send_all(created(correlation_id))
        else:
            await answer(stream, frame)

    handler = tools.Scripted(lambda request, now_ms: Ask(METADATA, 12, b"?", lambda body, now_ms: Forward(body[4:])))
    async with through(serve, interceptors={CREATE_TOPICS: handler}) as (proxy, broker, _):
        client = await connect(proxy, create(1) + produce(2, 80))
        assert await read_frame(client) == created(1)
        assert await read_frame(client) == produce_response(2)
        assert broker.received == [request(METADATA, 12, 1, b"?"), create(1, b"told"), produce(2, 80)]
        # Drain while a question is open: the request it belongs to is still served.
        await client.send_all(create(3))
        await until(lambda: len(broker.received) == 4)
        proxy.drain()
        assert await read_frame(client) == created(3)
        assert await read_frame(client) is None


async def test_interceptor_wait_stops_its_own_connection_only() -> None:
    decide: list[Callable[[Outcome], None]] = []
    handler = tools.Scripted(lambda request, now_ms: Wait(decide.append))
    async with through(answer, interceptors={CREATE_TOPICS: handler}) as (proxy, broker, _):
        waiting, other, gone = await connect(proxy), await connect(proxy), await connect(proxy)
        await gone.send_all(create(1))
        await waiting.send_all(create(2) + produce(3, 80))
        await until(lambda: len(decide) == 2)
        await gone.aclose()
        assert await exchange(other, produce(4, 80)) == produce_response(4)
        assert broker.received == [produce(4, 80)]
        for decided in decide:  # that of the client that has gone is not heard
            decided(Answer(struct.pack(">i", 0) + b"stored"))
        assert await read_frame(waiting) == created(2, 0, b"stored")
        assert await read_frame(waiting) == produce_response(3)
        proxy.drain()
        assert await read_frame(waiting) is None
