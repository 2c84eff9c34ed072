"""The broker's direction: responses are matched, fetches charged, throttle times set, broker addresses replaced."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import MAX_INTERCEPTED_BYTES, Reply, Work
from proxy.core.session.exchange import InFlightRequest
from proxy.core.session.frames import (
    DROP,
    FORWARD,
    HEAD,
    NEED,
    STOP,
    FrameReader,
    Verdict,
    filtered,
    need,
    replace,
)
from proxy.core.session.login import RAW, UNAUTHENTICATED, wipe
from proxy.core.session.outgoing import Outgoing
from proxy.core.session.state import SessionState
from proxy.core.wire import fetch_heads, integers, responses, throttle
from proxy.core.wire.apis import FETCH, JOIN_GROUP, SHARE_FETCH, SYNC_GROUP, api_name, version_range
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import response_frame
from proxy.core.wire.sasl import MAX_SASL_BYTES
from proxy.core.wire.sharefetch import ShareFetchScrubber
from quota.entity import Kind

WAITING_APIS: Final = frozenset({FETCH, JOIN_GROUP, SYNC_GROUP, SHARE_FETCH})
"""Requests whose latency is mostly the wait that the client asked for."""
MAX_HELD_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""Responses that must be rewritten (addresses) are held up to this size; ordinary ones are never held. (The head of a
Metadata response for 10 000 brokers has 600 KB, a Produce response for 50 000 partitions 2.5 MB.)"""
REWRITE_SHIFT: Final = 3
"""8 bytes of a response that is rewritten count as one frame: the 500 of an ApiVersions response take 0.3 ms."""
THROTTLE_HEAD_BYTES: Final = 16
"""Enough of a response to contain a throttle field that comes first."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_FETCH: Final = FETCH
_SHARE_FETCH: Final = SHARE_FETCH
_HEAD_BYTES: Final = THROTTLE_HEAD_BYTES
_FLEXIBLE_HEADER: Final = 1
"""A response header of version 1 is one byte longer: its (empty) tagged fields."""
_FETCH_FIRST_FLEXIBLE: Final = 12
_FETCH_MAX: Final = (version_range(FETCH) or (0, 0))[1]
_HEAD: Final = HEAD
_FORWARD: Final = FORWARD
_NEED: Final = NEED

# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
BUSY: Final = Kind.REQUEST
FETCHED: Final = Kind.FETCH


class ResponseHandler:
    """Responses to one client connection. Knows nothing of sockets and clocks."""

    __slots__ = (
        "_came_ms",
        "_latency",
        "_max_response_bytes",
        "_now_ms",
        "_raw",
        "_state",
        "_timed",
        "_work",
        "bytes_total",
        "fetched_bytes",
        "out",
        "reader",
    )

    def __init__(self, state: SessionState, max_response_bytes: int) -> None:
        self._state = state
        self._latency = state.counters.upstream_latency
        self._max_response_bytes = max_response_bytes
        self.out = Outgoing()
        """What the last call sends to the client."""
        self.reader = FrameReader(self.out)
        self._now_ms = 0.0
        self._came_ms = 0.0
        self._raw = False
        """The turn began with a raw SASL message, which has no response header."""
        self._work: Work[Reply] | None = None
        """What the interceptor of the oldest request in flight still has to compute from its response."""
        self._timed: InFlightRequest | None = None
        """The latest request whose time has been charged; its response may be inspected again when more has arrived."""
        self.bytes_total = 0
        self.fetched_bytes = 0
        """Size of the latest Fetch response."""

    def take(self, view: memoryview, end: int, now_ms: float, arrived_ms: float) -> None:
        """Process the first `end` bytes of a view, which were read from the broker and may have arrived as early as
        `arrived_ms`: what to send is in `out`."""
        self.bytes_total += end
        self.out.begin()
        self.reader.feed(view, end)
        if self._read(now_ms, arrived_ms):
            wipe(view[:end])

    def resume(self, now_ms: float) -> None:
        """Go on with the responses that are kept; as `take`."""
        self.out.begin()
        self.reader.go_on()
        self._read(now_ms, self._came_ms)

    def _read(self, now_ms: float, arrived_ms: float) -> bool:
        """Take the responses that have come, as far as one turn goes. Returns whether a login is in progress: then
        `out` has copies, and what was read has to be wiped."""
        reader, logins = self.reader, self._state.logins
        self._now_ms, self._came_ms = now_ms, arrived_ms
        secret = logins is not None and logins.active
        self._raw = secret and self._raw_comes()
        event = reader.next()
        while event:
            if event == _HEAD:
                reader.follow(self._decide(reader.buf, reader.start, reader.stop, reader.total))
            else:
                self._ended()
            event = reader.next()
        if secret:
            self.out.copy()
        return secret

    def moved(self, count: int, now_ms: float) -> None:
        """`count` bytes of a response went to the client without passing through `take`."""
        self.bytes_total += count
        self.out.begin()
        self.reader.moved(count)
        if not self.reader.left:
            self._read(now_ms, now_ms)

    def close(self, now_ms: float) -> None:
        """The connection ends. A fetch response is charged whole when it begins; refund the part that never came."""
        pending, missing = self._timed, self.reader.left
        if missing and pending is not None and pending.api_key in (FETCH, SHARE_FETCH):
            self._state.ledger.refund(pending.account, FETCHED, missing, now_ms)
        self._work = None
        self._timed = None

    def answer(self) -> None:
        """Send the local answers that are next in order: no older one is owed and no response is half sent."""
        self.out.begin()
        if self.reader.at_boundary():
            self._send_answers()

    def _ended(self) -> None:
        """The last byte of a response has come: the broker is free for the next request."""
        state = self._state
        # Unless it has muted us: then it is free when that ends (see `SessionState.broker_throttled`).
        arrived_ms, mute_ms = self._came_ms, state.broker_mute_until_ms
        state.request_time.free_ms = arrived_ms if arrived_ms > mute_ms else mute_ms
        if self._state.exchange.answer_due():
            self._send_answers()

    def _send_answers(self) -> None:
        exchange = self._state.exchange
        while (pending := exchange.oldest) is not None and (answer := pending.local_answer) is not None:
            exchange.popleft()
            self._state.throttle.note(pending)
            self.bytes_total += len(answer)
            self.out.insert(answer)

    def _decide(self, buf: bytearray | memoryview, start: int, end: int, total: int) -> Verdict:
        """What becomes of the response (or raw SASL message) of `total` bytes at `start`, which has arrived up to
        `end`."""
        if self._raw:
            return self._raw_message(buf, start, end, total)
        state, now_ms = self._state, self._now_ms
        here, size = end - start, total - 4
        if not 4 <= size <= self._max_response_bytes:
            raise SessionError(
                CloseReason.BROKER_MALFORMED,
                f"the broker sent a frame of {size} bytes; expected 4 to {self._max_response_bytes}",
                kind="broker_frame_size",
            )
        if here < 8:
            return need(8)
        correlation_id = integers.int32(buf, start + 4)
        exchange = state.exchange
        pending = exchange.oldest
        if pending is None:
            raise SessionError(
                CloseReason.BROKER_MALFORMED,
                f"the broker sent a response (correlation id {correlation_id}) that no request is waiting for",
                kind="broker_unasked_response",
            )
        if pending.correlation_id != correlation_id:
            raise SessionError(
                CloseReason.BROKER_MALFORMED,
                f"the broker answered correlation id {correlation_id}, expected {pending.correlation_id}",
                kind="broker_correlation_id",
            )
        api_key, version = pending.api_key, pending.api_version
        if pending is not self._timed:
            self._charge_time(pending)
        if pending.on_response is not None or pending.asked is not None:
            return self._hand_over(buf, start, here, total, pending)
        throttle_ms = self._throttle_ms(pending) if pending.penalty is not None else 0
        verdict = _FORWARD
        if (
            state.translate is not None
            and api_key != _SHARE_FETCH
            and not responses.is_plain(api_key, version, buf, start, start + here)
            and responses.needs_rewrite(api_key, version)
        ):
            verdict = self._rewrite(buf, start, here, total, pending, throttle_ms)
            if verdict.kind == _NEED:
                return verdict
        elif throttle_ms > 0 or api_key in (_FETCH, _SHARE_FETCH):
            wanted = total
            if total > _HEAD_BYTES and (api_key == _FETCH or not throttle.needs_whole_frame(api_key, version)):
                wanted = _HEAD_BYTES
            if here < wanted <= MAX_HELD_RESPONSE_BYTES:
                return need(wanted)
        exchange.popleft()
        if api_key == _FETCH:
            self.fetched_bytes = total
            # Kafka charges 4 + the body. `size` is header + body, the header 4 bytes (v0) or 5 (v1).
            tags = _FLEXIBLE_HEADER if version >= _FETCH_FIRST_FLEXIBLE else 0
            admission = pending.admission
            if admission is not None and admission.group is not None:
                named_bytes = fetch_heads.of_response(buf, start + 8 + tags, start + here, size, version)
                if named_bytes > admission.head_bytes:
                    admission.head_bytes = named_bytes
            self._charge_fetch(pending, size - tags)
            throttle_ms = self._throttle_ms(pending)
        elif api_key == _SHARE_FETCH:
            self._charge_fetch(pending, size - _FLEXIBLE_HEADER)
            throttle_ms = self._throttle_ms(pending)
        elif api_key not in WAITING_APIS:
            self._latency.add(self._latency_ms(pending) / 1000.0)
        broker_throttle_ms = throttle.read_throttle(buf, start, start + here, api_key, version)
        if broker_throttle_ms > 0:
            state.broker_throttled(pending, broker_throttle_ms, now_ms)
        if pending.penalty is not None:
            state.throttle.note(pending)
        if throttle_ms > 0 and verdict is _FORWARD:
            throttle.patch_throttle(buf, start, start + here, api_key, version, throttle_ms)
        if api_key == _SHARE_FETCH and state.translate is not None:
            return _without_endpoints(version)
        return verdict

    def _raw_comes(self) -> bool:
        """Whether the next frame is a raw SASL message: no response is owed at that time."""
        state = self._state
        if state.exchange.oldest is not None:
            return state.exchange.oldest.api_version == RAW
        return state.logins is not None and state.logins.watch.raw

    def _raw_message(self, buf: bytearray | memoryview, start: int, end: int, total: int) -> Verdict:
        """A raw SASL message, which has no response header."""
        state = self._state
        if not 4 <= total <= 4 + MAX_SASL_BYTES:
            raise SessionError(
                CloseReason.BROKER_MALFORMED,
                f"the broker sent a SASL message of {total - 4} bytes",
                kind="broker_frame_size",
            )
        if end - start < total:
            return need(total)
        if state.exchange.oldest is not None:
            if state.exchange.oldest.api_version != RAW:
                raise SessionError(
                    CloseReason.BROKER_MALFORMED,
                    "the broker sent two SASL messages for one",
                    kind="broker_unasked_response",
                )
            state.exchange.popleft()
            assert state.logins is not None
            state.logins.raw_answer(bytes(buf[start + 4 : start + total]), self._now_ms)
        elif state.logins is not None:
            state.logins.watch.answers += 1
        return FORWARD

    def _latency_ms(self, pending: InFlightRequest) -> float:
        """From the request, or the end of the broker's own mute if later, to the first byte of its response."""
        return max(self._now_ms - max(pending.sent_ms, self._state.broker_mute_until_ms), 0.0)

    def _charge_time(self, pending: InFlightRequest) -> None:
        """Charge the time that the broker was busy. Known with the first bytes of the response, before any goes on."""
        self._timed = pending
        if pending.account is UNAUTHENTICATED:
            return
        state, now_ms = self._state, self._now_ms
        busy_ms = state.request_time.busy_ms(
            pending.api_key, pending.sent_ms, now_ms, pending.replicated_bytes, self._came_ms
        )
        if busy_ms <= 0.0:
            return  # exempt: neither charged nor checked
        if pending.asked is not None:
            state.ledger.charge_no_throttle(pending.account, BUSY, busy_ms, now_ms)
            return  # the client's own request is yet to be forwarded
        delay_ms = state.ledger.charge(pending.account, BUSY, busy_ms, now_ms)
        if delay_ms > 0:
            state.throttle.impose(pending, BUSY, delay_ms, now_ms, busy_ms)

    def _throttle_ms(self, pending: InFlightRequest) -> int:
        """What is left of the throttle that the response tells."""
        if pending.penalty is None:
            return 0
        left_ms = pending.penalty.told_until_ms - self._now_ms
        return math.ceil(left_ms) if left_ms > 0 else 0

    def _hand_over(
        self, buf: bytearray | memoryview, start: int, here: int, total: int, pending: InFlightRequest
    ) -> Verdict:
        """Pass a response whole to its interceptor."""
        state, now_ms = self._state, self._now_ms
        api_key, version = pending.api_key, pending.api_version
        if total > MAX_INTERCEPTED_BYTES:
            raise SessionError(
                CloseReason.BROKER_MALFORMED,
                f"{api_name(api_key)} v{version} response of {total} bytes: at most {MAX_INTERCEPTED_BYTES} are "
                "buffered",
                kind="broker_too_large",
            )
        if here < total:
            return need(total)
        self.reader.frames_left = 0  # one in a turn
        began_ms = state.cpu_ms()
        broker_throttle_ms = responses.read_throttle(buf, start, start + total, api_key, version)
        try:
            reply = self._reply(buf, start, total, pending, broker_throttle_ms)
        except WireError as error:
            raise SessionError(CloseReason.BROKER_MALFORMED, str(error), kind=error.reason) from error
        state.charge_own(pending.account, began_ms, now_ms)
        if reply is None:
            return STOP
        state.exchange.popleft()
        if pending.asked is not None:
            return DROP
        if reply.delay_ms > 0:
            state.throttle.impose(pending, reply.kind, reply.delay_ms, now_ms)
        state.throttle.note(pending)
        throttle_ms = self._throttle_ms(pending)
        if reply.body is not None:
            throttle_ms = max(throttle_ms, broker_throttle_ms)
            return replace(total, response_frame(api_key, version, pending.correlation_id, reply.body, throttle_ms))
        if throttle_ms > 0:
            responses.patch_throttle(buf, start, start + total, api_key, version, throttle_ms)
        return FORWARD

    def _reply(
        self, buf: bytearray | memoryview, start: int, total: int, pending: InFlightRequest, broker_throttle_ms: int
    ) -> Reply | None:
        """What the interceptor says to the response; None if it has more to compute: then the response stays where it
        is, and the next turn comes back to it."""
        state, now_ms = self._state, self._now_ms
        state.counters.long_turns.begin(api_name(pending.api_key), now_ms / 1000.0)
        reply: Reply | Work[Reply] | None = self._work
        if reply is None:
            state.counters.upstream_latency.add(self._latency_ms(pending) / 1000.0)
            if broker_throttle_ms > 0:
                state.broker_throttled(pending, broker_throttle_ms, now_ms)
            at = responses.body_at(buf, start, start + total, pending.api_key, pending.api_version)
            body = bytes(buf[at : start + total])
            if pending.asked is not None:
                state.exchange.decide(pending.asked(body, now_ms))
                return Reply()
            assert pending.on_response is not None
            reply = pending.on_response(body, now_ms)
        self._work = None
        if isinstance(reply, Work):
            work, reply = reply, reply.advance(now_ms)
            if reply is None:
                self._work = work
        return reply

    def _rewrite(
        self,
        buf: bytearray | memoryview,
        start: int,
        here: int,
        total: int,
        pending: InFlightRequest,
        throttle_ms: int,
    ) -> Verdict:
        """Replace broker addresses (or clamp ApiVersions) at the head of a response."""
        state = self._state
        assert state.translate is not None
        api_key, version = pending.api_key, pending.api_version
        try:
            done = responses.rewrite(api_key, version, buf, start, start + here, state.translate)
        except WireError as error:
            reason = (
                CloseReason.UNSUPPORTED_VERSION
                if error.reason == "unsupported_version"
                else CloseReason.BROKER_MALFORMED
            )
            raise SessionError(reason, str(error), kind=error.reason) from error
        if isinstance(done, responses.NeedMore):
            if here == total:
                raise SessionError(
                    CloseReason.BROKER_MALFORMED,
                    f"{api_name(api_key)} v{version} response of {total} bytes ends before its addresses do",
                    kind="broker_truncated",
                )
            if here >= MAX_HELD_RESPONSE_BYTES:
                raise SessionError(
                    CloseReason.BROKER_MALFORMED,
                    f"{api_name(api_key)} v{version} response of {total} bytes: at most {MAX_HELD_RESPONSE_BYTES} are "
                    "buffered",
                    kind="broker_too_large",
                )
            # Not just what is missing next: inspecting it again for every few bytes would take quadratic time.
            return need(min(total, max(done.wanted, here * 2), MAX_HELD_RESPONSE_BYTES))
        self.reader.frames_left -= here >> REWRITE_SHIFT
        if done is None:  # nothing to replace
            return _FORWARD
        state.counters.addresses_rewritten += 1
        head = bytearray(done.head)
        if throttle_ms > 0:
            responses.patch_throttle(head, 0, len(head), api_key, version, throttle_ms)
        return replace(done.consumed, head)

    def _charge_fetch(self, pending: InFlightRequest, amount_bytes: int) -> None:
        """Charge a Fetch or ShareFetch response. If the request could not be answered here, the client is told now what
        its next one would have to wait for, and muted."""
        state, now_ms = self._state, self._now_ms
        account, admission = pending.account, pending.admission
        assert admission is not None  # requests of those APIs are admitted before they are forwarded
        state.ledger.settle(account, FETCHED, admission, amount_bytes, now_ms)
        if pending.api_key == _SHARE_FETCH or pending.api_version > _FETCH_MAX:
            delay_ms = state.ledger.check(account, FETCHED, now_ms)
            if delay_ms > 0:
                state.throttle.impose(pending, FETCHED, delay_ms, now_ms, amount_bytes)


def _without_endpoints(version: int) -> Verdict:
    """Node endpoints come last in a share response, after all its records: remove them as it streams by."""
    try:
        scrubber = ShareFetchScrubber(version)
    except WireError as error:
        raise SessionError(CloseReason.UNSUPPORTED_VERSION, str(error), kind=error.reason) from error
    return filtered(partial(_scrub, scrubber))


def _scrub(scrubber: ShareFetchScrubber, data: bytearray | memoryview) -> bytes:
    try:
        return scrubber.feed(data)
    except WireError as error:
        raise SessionError(CloseReason.BROKER_MALFORMED, str(error), kind=error.reason) from error
