"""The broker's direction: responses are matched, fetches charged, throttle times set, broker addresses replaced."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Final

from proxy.core.errors import broker_malformed
from proxy.core.interceptors.intercept import MAX_INTERCEPTED_BYTES, Reply, Work
from proxy.core.session.auth import UNAUTHENTICATED
from proxy.core.session.exchange import InFlightRequest
from proxy.core.session.frames import (
    DROP,
    FORWARD,
    NEED,
    STOP,
    FrameReader,
    Verdict,
    filtered,
    need,
    replace,
)
from proxy.core.session.state import SessionState
from proxy.core.wire import fetch_heads, integers, responses, throttle
from proxy.core.wire.apis import FETCH, JOIN_GROUP, METADATA, PRODUCE, SHARE_FETCH, SYNC_GROUP, api_name, version_range
from proxy.core.wire.messages import response_frame
from proxy.core.wire.sharefetch import ShareFetchScrubber
from quota.entity import Kind

WAITING_APIS: Final = frozenset({FETCH, JOIN_GROUP, SYNC_GROUP, SHARE_FETCH})
"""Requests whose latency is mostly the wait that the client asked for."""
MAX_PARTIAL_RESPONSE_BYTES: Final = responses.MAX_WHOLE_BYTES
"""Responses that must be rewritten (addresses) are kept up to this size until they are whole; ordinary ones never are.
(The head of a Metadata response for 10 000 brokers has 600 KB, a Produce response for 50 000 partitions 2.5 MB.)"""
SLICED_BYTES: Final = 4096
"""A longer response is rewritten in slices, between which others are served."""
REWRITE_SHIFT: Final = 3
"""8 bytes of a response that is rewritten count as one frame: the 500 of an ApiVersions response take 0.3 ms."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_FETCH: Final = FETCH
_METADATA: Final = METADATA
_PRODUCE: Final = PRODUCE
_SHARE_FETCH: Final = SHARE_FETCH
_HEAD_BYTES: Final = 16
"""Enough of a response to contain a throttle field that comes first."""
_FLEXIBLE_HEADER: Final = 1
"""A response header of version 1 is one byte longer: its (empty) tagged fields."""
_FETCH_FIRST_FLEXIBLE: Final = 12
_FETCH_MAX: Final = (version_range(FETCH) or (0, 0))[1]
_FORWARD: Final = FORWARD
_NEED: Final = NEED

# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
BUSY: Final = Kind.REQUEST
FETCHED: Final = Kind.FETCH

Rewriting = Generator[None, None, "responses.Rewritten | responses.NeedMore | None"]


class ResponseHandler:
    """Responses to one client connection. Knows nothing of sockets and clocks."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._latency = state.counters.upstream_latency
        self._max_response_bytes = state.sizes.max_response_bytes
        self.out = state.effects.to_client
        self.reader = FrameReader(self.out)
        self._now_ms = 0.0
        self.came_ms = 0.0
        """What was read last may have arrived as early as this."""
        self._raw = False
        """The turn began with a raw SASL message, which has no response header."""
        self._rewriting: tuple[int, Rewriting] | None = None
        """How many bytes of the response are being rewritten, and what is left of that."""
        self._timed: InFlightRequest | None = None
        """The latest request whose time has been charged; its response may be inspected again when more has arrived."""
        self.bytes_total = 0
        """Bytes sent to the client."""

    def begin(self, now_ms: float, arrived_ms: float) -> None:
        """Responses are read that may have arrived as early as `arrived_ms`."""
        self._now_ms, self.came_ms = now_ms, arrived_ms
        self._raw = self._state.auth.secret and self._state.auth.raw_comes()

    def close(self, now_ms: float) -> None:
        """The connection ends. A fetch response is charged whole when it begins; refund the part that never came."""
        pending, missing = self._timed, self.reader.left
        if missing and pending is not None and pending.api_key in (FETCH, SHARE_FETCH):
            self._state.ledger.refund(pending.account, FETCHED, missing, now_ms)
        self._rewriting = None
        self._timed = None

    def ended(self) -> None:
        """The last byte of a response has come. Send the local answers that are next."""
        self._free()
        if self._state.exchange.answer_due():
            self.send_answers()

    def _free(self) -> None:
        """The broker is free for the next request."""
        state = self._state
        # Unless it has muted us: then it is free when that ends (see `SessionState.broker_throttled`).
        arrived_ms, mute_ms = self.came_ms, state.broker_mute_until_ms
        state.request_time.free_ms = arrived_ms if arrived_ms > mute_ms else mute_ms

    def send_answers(self) -> None:
        """Send the local answers that are next in order."""
        exchange = self._state.exchange
        while (pending := exchange.oldest) is not None and (answer := pending.local_answer) is not None:
            exchange.popleft()
            self._state.throttle.note(pending)
            self.bytes_total += len(answer)
            self.out.insert(answer)

    def decide(self) -> Verdict:
        """What becomes of the response (or raw SASL message) that is the reader's HEAD. Raises SessionError,
        and WireError if it is malformed."""
        state, reader = self._state, self.reader
        if self._raw:
            return state.auth.raw_answer(reader, self._now_ms)
        start, total = reader.start, reader.total
        if not 4 <= total - 4 <= self._max_response_bytes:
            text = f"the broker sent a frame of {total - 4} bytes; expected 4 to {self._max_response_bytes}"
            raise broker_malformed(text, "broker_frame_size")
        if reader.stop - start < 8:
            return need(8)
        pending = self._oldest(integers.int32(reader.buf, start + 4))
        if pending is not self._timed:
            self._charge_time(pending)
        if pending.hook is not None:
            return self._hand_over(pending)
        throttle_ms = self._throttle_ms(pending) if pending.penalty is not None else 0
        verdict = self._forwarded(pending, throttle_ms)
        if verdict is not _FORWARD and (verdict.kind == _NEED or verdict is STOP):
            return verdict
        self._answered(pending, verdict is _FORWARD, throttle_ms)
        if pending.api_key == _SHARE_FETCH and state.translate is not None:
            # Node endpoints come last, after all records: they are removed as the response streams by.
            return filtered(ShareFetchScrubber(pending.api_version).feed)
        return verdict

    def take_plain(self, buf: memoryview, end: int, now_ms: float, arrived_ms: float) -> InFlightRequest | None:
        """Take `buf[:end]`, if it is the whole answer to the oldest request in flight, a Produce without a throttle,
        and nothing in it is to be replaced. None: it is not, and nothing has been done."""
        state = self._state
        pending = state.exchange.oldest
        if pending is None or pending.api_key != _PRODUCE or pending.penalty is not None or end < _HEAD_BYTES:
            return None
        if pending.hook is not None or pending.local_answer is not None:
            return None
        after = pending.next
        if after is not None and after.local_answer is not None:
            return None
        if integers.int32(buf, 0) != end - 4 or integers.int32(buf, 4) != pending.correlation_id:
            return None
        throttle_at = throttle.plain_produce(buf, 0, end, pending.api_version)
        if throttle_at < 0 or end - 4 > self._max_response_bytes:
            return None
        self._now_ms, self.came_ms = now_ms, arrived_ms
        self._charge_time(pending)
        state.exchange.popleft()
        self._latency.add(self._latency_ms(pending) / 1000.0)
        broker_throttle_ms = integers.int32(buf, throttle_at)
        self._note(pending, broker_throttle_ms)
        throttle_ms = self._throttle_ms(pending)
        if throttle_ms > max(broker_throttle_ms, 0):
            integers.put_int32(buf, throttle_at, throttle_ms)
        self.bytes_total += end
        self._free()  # the next request has no local answer
        if pending.penalty is None:
            self._timed = None
            state.exchange.reuse(pending)
        return pending

    def _answered(self, pending: InFlightRequest, unchanged: bool, throttle_ms: int) -> None:
        """The oldest request in flight is answered: charge a fetch, and announce the throttle if the response is
        `unchanged` so far."""
        api_key, version, reader = pending.api_key, pending.api_version, self.reader
        self._state.exchange.popleft()
        if api_key in (_FETCH, _SHARE_FETCH):
            self._charge_fetch(pending)
            throttle_ms = self._throttle_ms(pending)
        elif api_key == _PRODUCE or api_key not in WAITING_APIS:
            self._latency.add(self._latency_ms(pending) / 1000.0)
        self._note(pending, throttle.read_throttle(reader.buf, reader.start, reader.stop, api_key, version))
        if throttle_ms > 0 and unchanged:
            throttle.patch_throttle(reader.buf, reader.start, reader.stop, api_key, version, throttle_ms)

    def _forwarded(self, pending: InFlightRequest, throttle_ms: int) -> Verdict:
        """How a response is forwarded: as it is, or with its addresses replaced. NEED or STOP: not yet."""
        state, api_key, version, reader = self._state, pending.api_key, pending.api_version, self.reader
        total = reader.total
        if state.reserved is not None and api_key == _METADATA and total <= MAX_PARTIAL_RESPONSE_BYTES:
            return self._rewrite(pending, throttle_ms) if reader.is_whole() else need(total)
        if (
            state.translate is not None
            and api_key != _SHARE_FETCH
            and not responses.is_plain(api_key, version, reader.buf, reader.start, reader.stop)
            and responses.needs_rewrite(api_key, version)
        ):
            return self._rewrite(pending, throttle_ms)
        if throttle_ms > 0 or api_key in (_FETCH, _SHARE_FETCH):
            wanted = total
            if total > _HEAD_BYTES and (api_key == _FETCH or not throttle.needs_whole_frame(api_key, version)):
                wanted = _HEAD_BYTES
            if reader.stop - reader.start < wanted <= MAX_PARTIAL_RESPONSE_BYTES:
                return need(wanted)
        return _FORWARD

    def _oldest(self, correlation_id: int) -> InFlightRequest:
        """The request that a response with this correlation id answers. Raises SessionError if it is not the oldest."""
        pending = self._state.exchange.oldest
        if pending is not None and pending.correlation_id == correlation_id:
            return pending
        if pending is None:
            text = f"the broker sent a response (correlation id {correlation_id}) that no request is waiting for"
            raise broker_malformed(text, "broker_unasked_response")
        text = f"the broker answered correlation id {correlation_id}, expected {pending.correlation_id}"
        raise broker_malformed(text, "broker_correlation_id")

    def _note(self, pending: InFlightRequest, broker_throttle_ms: int) -> None:
        """Record the throttle that the broker announces, and the one that the request caused here."""
        state = self._state
        if broker_throttle_ms > 0:
            state.broker_throttled(pending, broker_throttle_ms, self._now_ms)
        if pending.penalty is not None:
            state.throttle.note(pending)

    def _latency_ms(self, pending: InFlightRequest) -> float:
        """From the request, or the end of the broker's own mute if later, to the first byte of its response."""
        return max(self._now_ms - max(pending.sent_ms, self._state.broker_mute_until_ms), 0.0)

    def _charge_time(self, pending: InFlightRequest) -> None:
        """Charge the time that the broker was busy. Known with the first bytes of the response, before any goes on."""
        self._timed = pending
        if pending.account is UNAUTHENTICATED:
            return
        state, now_ms = self._state, self._now_ms
        busy_ms = state.request_time.busy_ms(pending.api_key, pending.sent_ms, now_ms, pending.work_bytes, self.came_ms)
        if busy_ms <= 0.0:
            return
        if pending is state.exchange.question:
            state.ledger.charge_no_throttle(pending.account, BUSY, busy_ms, now_ms)
            return  # the client's own request is yet to be forwarded
        delay_ms = state.ledger.charge(pending.account, BUSY, busy_ms, now_ms)
        if delay_ms > 0:
            state.throttle.impose(pending, BUSY, delay_ms, now_ms, busy_ms)

    def _throttle_ms(self, pending: InFlightRequest) -> int:
        """What is left of the throttle that the response announces."""
        if pending.penalty is None:
            return 0
        left_ms = pending.penalty.announced_until_ms - self._now_ms
        return math.ceil(left_ms) if left_ms > 0 else 0

    def _hand_over(self, pending: InFlightRequest) -> Verdict:
        """Pass a response whole to its request's hook."""
        state, now_ms, reader = self._state, self._now_ms, self.reader
        buf, start, end, total = reader.buf, reader.start, reader.stop, reader.total
        api_key, version = pending.api_key, pending.api_version
        if total > MAX_INTERCEPTED_BYTES:
            text = f"{api_name(api_key)} v{version} response of {total} bytes"
            raise broker_malformed(f"{text}, expected at most {MAX_INTERCEPTED_BYTES}", "broker_too_large")
        if not reader.is_whole():
            return need(total)
        reader.frames_left = 0  # one in a turn
        began_ms = state.cpu_ms()
        broker_throttle_ms = throttle.read_throttle(buf, start, end, api_key, version)
        reply = self._reply(pending, broker_throttle_ms)
        state.charge_own(pending.account, began_ms, now_ms)
        if reply is None:
            return STOP
        state.exchange.popleft()
        if pending is state.exchange.question:
            state.exchange.question = None
            return DROP
        if reply.delay_ms > 0:
            state.throttle.impose(pending, Kind.MUTATION, reply.delay_ms, now_ms)
        state.throttle.note(pending)
        throttle_ms = self._throttle_ms(pending)
        if reply.body is not None:
            throttle_ms = max(throttle_ms, broker_throttle_ms)
            return replace(total, response_frame(api_key, version, pending.correlation_id, reply.body, throttle_ms))
        if throttle_ms > 0:
            throttle.patch_throttle(buf, start, end, api_key, version, throttle_ms)
        return FORWARD

    def _reply(self, pending: InFlightRequest, broker_throttle_ms: int) -> Reply | None:
        """What the hook says to the response; None if it has more to compute: then the response stays where it is, and
        the next turn comes back to it."""
        state, now_ms, reader, hook = self._state, self._now_ms, self.reader, pending.hook
        state.counters.long_turns.begin(api_name(pending.api_key), now_ms / 1000.0)
        if not isinstance(hook, Work):
            assert hook is not None
            state.counters.upstream_latency.add(self._latency_ms(pending) / 1000.0)
            if broker_throttle_ms > 0:
                state.broker_throttled(pending, broker_throttle_ms, now_ms)
            at = throttle.body_at(reader.buf, reader.start, reader.stop, pending.api_key, pending.api_version)
            result = hook(bytes(reader.buf[at : reader.stop]), now_ms)
            if pending is state.exchange.question:
                assert not isinstance(result, Reply)
                state.exchange.decide(result)
                return Reply()
            if not isinstance(result, Work):
                assert isinstance(result, Reply)
                return result
            pending.hook = hook = result
        return hook.advance(now_ms)

    def _rewrite(self, pending: InFlightRequest, throttle_ms: int) -> Verdict:
        """Replace broker addresses (or clamp ApiVersions) at the head of a response."""
        state, reader = self._state, self.reader
        buf, start, end, total = reader.buf, reader.start, reader.stop, reader.total
        here = end - start
        api_key, version = pending.api_key, pending.api_version
        hides = state.reserved is not None and api_key == METADATA
        if here <= SLICED_BYTES and not hides:
            assert state.translate is not None
            done = responses.rewrite(api_key, version, buf, start, end, state.translate)
        else:
            if self._rewriting is None:
                copied = bytes(buf[start:end])  # the buffer is another one in the next slice
                self._rewriting = here, self._rewritten(api_key, version, copied, hides and here == total)
            here, steps = self._rewriting
            try:
                next(steps)
            except StopIteration as stop:
                done, self._rewriting = stop.value, None
            else:
                reader.frames_left = 0
                return STOP
        if isinstance(done, responses.NeedMore):
            text = f"{api_name(api_key)} v{version} response of {total} bytes"
            if here == total:
                raise broker_malformed(f"{text} ends inside its addresses", "broker_truncated")
            if here >= MAX_PARTIAL_RESPONSE_BYTES:
                raise broker_malformed(f"{text}: at most {MAX_PARTIAL_RESPONSE_BYTES} are buffered", "broker_too_large")
            # Not just what is missing next: inspecting it again for every few bytes would take quadratic time.
            return need(min(total, max(done.wanted, here * 2), MAX_PARTIAL_RESPONSE_BYTES))
        if here <= SLICED_BYTES:  # in one slice
            reader.frames_left -= here >> REWRITE_SHIFT
        if done is None:  # nothing to replace
            return _FORWARD
        state.counters.addresses_rewritten += 1
        head = bytearray(done.head)
        if throttle_ms > 0:
            throttle.patch_throttle(head, 0, len(head), api_key, version, throttle_ms)
        return replace(done.consumed, head)

    def _rewritten(self, api_key: int, version: int, frame: bytes, hides: bool) -> Rewriting:
        """The work on a long response, or on a whole one in which the reserved topic is to be hidden."""
        state, size = self._state, len(frame)
        if hides:
            assert state.reserved is not None
            frame = yield from responses.without_topic(version, frame, state.reserved.name)
            if len(frame) < size:
                yield
        done: responses.Rewritten | responses.NeedMore | None = None
        if state.translate is not None and responses.needs_rewrite(api_key, version):
            done = yield from responses.rewriting(api_key, version, frame, 0, len(frame), state.translate)
        if not hides or isinstance(done, responses.NeedMore):
            return done
        if done is None:
            return None if len(frame) == size else responses.Rewritten(frame, size)
        yield
        return responses.Rewritten(b"".join((done.head, memoryview(frame)[done.consumed :])), size)

    def _charge_fetch(self, pending: InFlightRequest) -> None:
        """Charge a Fetch or ShareFetch response. If the request could not be answered here, the client is muted now,
        for as long as its next one would have to wait."""
        state, now_ms, version, reader = self._state, self._now_ms, pending.api_version, self.reader
        size = reader.total - 4
        account, grant = pending.account, pending.grant
        assert grant is not None  # requests of those APIs are admitted before they are forwarded
        share = pending.api_key == _SHARE_FETCH
        # Kafka charges 4 + the body. `size` is header + body, the header 4 bytes (v0) or 5 (v1).
        tags = _FLEXIBLE_HEADER if share or version >= _FETCH_FIRST_FLEXIBLE else 0
        if not share and grant.group is not None:
            named_bytes = fetch_heads.of_response(reader.buf, reader.start + 8 + tags, reader.stop, size, version)
            if named_bytes > grant.head_bytes:
                grant.head_bytes = named_bytes
        amount_bytes = size - tags
        state.ledger.settle(account, FETCHED, grant, amount_bytes, now_ms)
        if share or version > _FETCH_MAX:
            delay_ms = state.ledger.check(account, FETCHED, now_ms)
            if delay_ms > 0:
                state.throttle.impose(pending, FETCHED, delay_ms, now_ms, amount_bytes)
