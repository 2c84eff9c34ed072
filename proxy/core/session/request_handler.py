"""The client's direction: requests are inspected, charged, and forwarded, lowered, or answered here."""

from __future__ import annotations

from contextlib import suppress
from math import ceil, inf
from typing import Final

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import (
    MAX_INTERCEPTED_BYTES,
    AdminRequest,
    Ask,
    Forward,
    Interceptor,
    Outcome,
    Wait,
    Work,
)
from proxy.core.session import exchange, gate
from proxy.core.session.auth import UNAUTHENTICATED
from proxy.core.session.exchange import WORK_PER_BYTE, InFlightRequest
from proxy.core.session.fetch import FetchShaper
from proxy.core.session.frames import (
    DROP,
    FORWARD,
    STOP,
    FrameReader,
    Verdict,
    need,
    replace,
)
from proxy.core.session.refused import IN_ORDER, RefusedBatches
from proxy.core.session.sizes import header_too_large, is_established
from proxy.core.session.state import SessionState
from proxy.core.session.throttle import UNKNOWN_SESSION_MS
from proxy.core.wire import fetch_heads, integers, requests, responses
from proxy.core.wire.apis import (
    API_VERSIONS,
    EPOCH_HEARTBEATS,
    FETCH,
    JOIN_GROUP,
    LEAVE_GROUP,
    MEMBERSHIP,
    PRODUCE,
    SHARE_FETCH,
    TRANSACTIONS,
    api_name,
)
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import (
    empty_fetch_response,
    framed,
    request_header,
    response_frame,
    unsupported_api_versions_response,
)
from proxy.core.wire.refusal import TOO_LARGE, ProduceRefusal
from proxy.core.wire.requests import FetchFields, RequestHeader
from proxy.core.wire.sasl import SASL_APIS
from proxy.core.wire.schema import APIS
from proxy.core.wire.software import client_software
from quota.counter import FetchGrant
from quota.entity import Kind
from quota.ledger import Account

MAX_PARTIAL_REQUEST_BYTES: Final = 65_536
"""Fetch requests up to this size are inspected whole (a full fetch of about 1 500 partitions). Larger ones are
forwarded and throttled by their response, so that no partial request is larger."""
FETCH_HEAD_BYTES: Final = 512
"""Read of Fetch requests that are not inspected whole: everything before the topics (header tags aside)."""
MIN_TIMEOUT_MS: Final = 1000
"""A Produce request is queued so long at least, whatever its `timeout_ms`."""
MAX_CLIENT_IDS: Final = 8
"""Client-ids whose accounts count a connection as theirs."""
BODY_SHIFT: Final = 8
"""256 bytes of a Fetch whose session is kept here count as one frame."""
DEFERRED_BYTES: Final = 4096
"""A longer Fetch whose session is kept here waits for a turn of its own: of those that came together with it, others
are served first."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_PRODUCE: Final = PRODUCE
_FETCH: Final = FETCH
_SHARE_FETCH: Final = SHARE_FETCH
_API_VERSIONS: Final = API_VERSIONS
_MAX_PARTIAL_BYTES: Final = MAX_PARTIAL_REQUEST_BYTES
_BATCH_WITHIN_BYTES: Final = 1024
"""The head of a Produce request's first batch ends within so many bytes of its body, unless names are very long."""
_FORWARD: Final = FORWARD
_DROP: Final = DROP
_STOP: Final = STOP
_NO_ACKS_YET: Final = requests.NO_ACKS_YET
_ACKS_ALL: Final = -1
_MAX_REPEATED_BYTES: Final = 512
"""Longer headers than this are parsed each time."""
_HEADER_SHIFT: Final = 5
"""32 bytes of a header count as one frame (`FrameReader.frames_left`): one with 100 tagged fields takes 0.09 ms."""

# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
PRODUCED: Final = Kind.PRODUCE
FETCHED: Final = Kind.FETCH


class RequestHandler:
    """Requests of one client connection. Knows nothing of sockets and clocks."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._max_frame_bytes, self._max_header_bytes = state.sizes.max_frame_bytes, state.sizes.max_header_bytes
        self.out = state.effects.to_broker
        self.reader = FrameReader(self.out)
        self._current: InFlightRequest | None = None
        """The request whose last byte has not been used yet;"""
        self._produced_bytes = 0
        """what it is charged then, if it is a Produce request,"""
        self._unanswered = False
        """and whether it gets no response (acks=0)."""
        self._refusal: tuple[InFlightRequest, ProduceRefusal, int] | None = None
        """The Produce request that is being thrown away, its answer, and how long to wait."""
        self._awaited: RefusedBatches | None = None
        """Batches that were refused and have to come again before later ones."""
        self._repeated: requests.RepeatedHeader | None = None
        """The header of the last Produce request of `account`."""
        self.account: Account | None = None
        """The account of the last request,"""
        self._client_id = ""
        """and its client-id."""
        self.joined: dict[str, Account] = {}
        """Accounts that count this connection as theirs, by client-id: none of them is evicted."""
        self.saw_request = False
        self._deferred_ms = 0
        """The throttle of a Fetch that is answered here in a later turn."""
        self._shaper = FetchShaper()
        self._missed = self._shaper.missed
        self.software: str | None = None
        """Client library and version, from ApiVersions v3+."""
        self.established = False
        """A request has come that is not one of those with which connections begin."""

    def end(self, now_ms: float) -> None:
        """The connection ends. The forwarded part of an incomplete Produce request is charged."""
        pending = self._current
        if pending is not None and self._produced_bytes:
            come = max(self._produced_bytes - self.reader.left, 0)
            self._state.ledger.charge_no_throttle(pending.account, PRODUCED, come, now_ms)
        self._current, self.account = None, None
        self.close()

    def close(self) -> None:
        """The accounts no longer count this connection as theirs."""
        for client_id in list(self.joined):
            self._leave(client_id)

    def identify(self, user: str) -> None:
        """Charge `user` from now on; earlier charges stay with the previous user."""
        auth = self._state.auth
        if user != auth.user:
            self.close()
        self.account = None
        auth.named(user)

    def _client(self, api_key: int, client_id: str) -> Account | None:
        """The account of a request with this API and client-id, when these differ from the last request's. None: it
        waits until the broker has shown that it needs no login, and then for the user."""
        state = self._state
        auth = state.auth
        if auth.is_free(api_key):
            return UNAUTHENTICATED
        if auth.keeps(api_key):
            return None
        account = state.ledger.account(auth.user, client_id)
        client_id = account.identity.client_id  # long ones are cut there, so that no reference keeps the whole
        self.account, self._client_id = account, client_id
        self._repeated = None
        if client_id not in self.joined:
            if len(self.joined) == MAX_CLIENT_IDS:
                self._leave(next(iter(self.joined)))
            self.joined[client_id] = account
            account.join()
            account.software = self.software or account.software
        return account

    def _leave(self, client_id: str) -> None:
        account = self.joined.pop(client_id)
        account.leave()
        self._state.ledger.wake(account)

    def ended(self, now_ms: float) -> None:
        """The last byte of a request has been read: the broker can begin; charge it, if it is charged now, and mute."""
        pending, self._current = self._current, None
        if pending is None:  # a raw message, an administrator's, or refused
            if self._refusal is not None:
                self._refused(*self._refusal, now_ms)
            return
        pending.sent_ms = now_ms
        size_bytes, self._produced_bytes = self._produced_bytes, 0
        if size_bytes:
            state = self._state
            delay_ms = state.ledger.charge(pending.account, PRODUCED, size_bytes, now_ms)
            if delay_ms > 0:
                if self._unanswered:
                    state.throttle.impose_unanswered(pending.account, PRODUCED, delay_ms, now_ms, size_bytes)
                else:
                    state.throttle.impose(pending, PRODUCED, delay_ms, now_ms, size_bytes)

    def decide(self, now_ms: float) -> Verdict:
        """What becomes of the request (or raw SASL message) that is the reader's HEAD. Raises WireError if it is
        malformed, and SessionError."""
        state, reader = self._state, self.reader
        if state.auth.raw:
            return state.auth.raw_message(reader, now_ms)
        buf, start, end = reader.buf, reader.start, reader.stop
        header = requests.parse_request_header(buf, start, end, self._max_frame_bytes)
        if (end if header is None else header.body) - start > self._max_header_bytes:
            raise header_too_large(start, end, header, self._state.sizes)
        if header is None:
            return reader.more()
        if not self.established:
            self.established = is_established(header, self._state.sizes)
        reader.frames_left -= (header.body - start) >> _HEADER_SHIFT
        self.saw_request = True
        api_key, version = header.api_key, header.api_version
        account = self.account
        if account is None or header.client_id != self._client_id:
            account = self._client(api_key, header.client_id)
        if account is None:
            if not state.auth.blocks:  # its user is not being looked up
                state.auth.probe(header, now_ms)
            return _STOP
        if account is not UNAUTHENTICATED:
            throttle = state.throttle
            if api_key == _PRODUCE and (throttle.refuse_to > 0 or self._awaited is not None):
                verdict = self._refuse_after_another(header, account, now_ms)
                if verdict is not None:
                    return verdict
            muted = throttle.until_ms > now_ms and not throttle.lets_end(api_key, now_ms)
            if muted or not gate.lets_through(state, reader, account, header, now_ms):
                return self._wait(header, account, now_ms)
        pending = exchange.new_in_flight(header.correlation_id, api_key, version, account, now_ms)
        if api_key == _PRODUCE:
            verdict = self._produce(header, pending)
        elif api_key == _FETCH:
            verdict = self._fetch(header, pending, now_ms)
        else:
            verdict = self._other(header, pending, now_ms)
        if state.reserved is not None and self._current is not None:
            looker = state.reserved.look(api_key, version, buf[header.body : end], reader.is_whole())
            if looker is not None:
                reader.look(looker)
        return verdict

    # ---- a request that may not be forwarded yet --------------------------------------------------------------------

    @property
    def bytes_before(self) -> int:
        """How many bytes of the client were received before what is kept: before the request that is decided on."""
        return self._state.throttle.client_bytes - self.reader.kept_bytes()

    def _wait(self, header: RequestHeader, account: Account, now_ms: float) -> Verdict:
        """The client is muted or queued. Shortly before a Produce request has waited for its own `timeout_ms` it is
        refused: its client would give it up, and send it again on another connection."""
        throttle, verdict = self._state.throttle, None
        if throttle.due_ms <= 0.0:
            throttle.due_ms = self._due_ms(header, now_ms)
        if 0.0 < throttle.due_ms <= now_ms:
            verdict = self._refuse(header, account, now_ms)
        return _STOP if verdict is None else verdict

    def _due_ms(self, header: RequestHeader, now_ms: float) -> float:
        """See `Throttle.due_ms`."""
        throttle = self._state.throttle
        if header.api_key != _PRODUCE or throttle.gone:
            return inf
        timeout_ms = requests.produce_timeout(self.reader.buf, header.body, self.reader.stop, header.api_version)
        if timeout_ms is None:
            return -1.0
        timeout_ms = max(min(timeout_ms, 2 * throttle.slices.most_ms), MIN_TIMEOUT_MS)
        return throttle.arrivals.came_ms(self.bytes_before, now_ms) + timeout_ms - min(max(timeout_ms / 10, 200), 2000)

    def _refuse_after_another(self, header: RequestHeader, account: Account, now_ms: float) -> Verdict | None:
        """The same for a Produce request that the client sent before one that was refused. None: it does not follow
        one, as far as can be seen."""
        throttle, awaited, reader = self._state.throttle, self._awaited, self.reader
        skips, seen = False, None
        if awaited is not None:
            refusal = self._refusal_of(header.api_version)
            with suppress(WireError):  # what cannot be refused is not looked at further
                refusal.see(reader.buf[header.body : reader.stop])
                seen = refusal
            wanted = min(reader.total, header.body - reader.start + _BATCH_WITHIN_BYTES)
            if seen is not None and not seen.batches and reader.stop - reader.start < wanted:
                return need(wanted)
            skips = awaited.skips(refusal.batches, throttle.announced_until_ms, now_ms)
            if not awaited:
                self._awaited = None
        if skips or (throttle.refuse_to > 0 and throttle.follows(self.bytes_before, now_ms)):
            return self._refuse(header, account, now_ms, seen)
        return None

    def _refusal_of(self, version: int) -> ProduceRefusal:
        return ProduceRefusal(version, timed=self.software is not None and self.software.startswith(IN_ORDER))

    def _refuse(
        self, header: RequestHeader, account: Account, now_ms: float, seen: ProduceRefusal | None = None
    ) -> Verdict | None:
        """Begin to throw away a Produce request, uncharged; `seen` is its refusal, if that has read it so far. None: it
        goes on waiting, as it expects no answer, has too many partitions, or too much has been thrown away."""
        version, buf, end = header.api_version, self.reader.buf, self.reader.stop
        throttle, group = self._state.throttle, account.meter(PRODUCED).group
        throttle.due_ms = inf
        if group is None or requests.produce_acks(buf, header.body, end, version) in (0, _NO_ACKS_YET):
            return None
        refusal = self._refusal_of(version) if seen is None else seen
        if seen is None:
            try:
                refusal.see(buf[header.body : end])
            except WireError as error:
                if error.reason == TOO_LARGE:
                    return None
                raise
        wait_ms = group.refuse(throttle, header.size, int(now_ms))
        if wait_ms is None:
            return None
        throttle.refuse(account, header.size, now_ms)
        pending = exchange.new_in_flight(header.correlation_id, _PRODUCE, version, account, now_ms)
        self._refusal = pending, refusal, wait_ms
        self.reader.look(refusal)
        return _DROP

    def _refused(self, pending: InFlightRequest, refusal: ProduceRefusal, wait_ms: int, now_ms: float) -> None:
        """All of the request has been thrown away: answer it."""
        self._refusal = None
        state, version = self._state, pending.api_version
        self._count(pending.account, _PRODUCE)
        wait_ms = max(wait_ms, state.answered_here(pending, state.cpu_ms(), now_ms))
        awaited = self._awaited
        if awaited is None:
            awaited = RefusedBatches()
        awaited.add(refusal.batches)
        self._awaited = awaited if awaited else None
        body = refusal.body(state.throttle.refused(wait_ms, now_ms, alone=awaited.skipping))
        pending.local_answer = response_frame(_PRODUCE, version, pending.correlation_id, body, 0)
        pending.kept_bytes = len(pending.local_answer)
        state.exchange.append(pending)
        state.counters.produces_refused += 1

    def _produce(self, header: RequestHeader, pending: InFlightRequest) -> Verdict:
        reader = self.reader
        buf, start, end = reader.buf, reader.start, reader.stop
        acks = requests.produce_acks(buf, header.body, end, header.api_version)
        if acks == _NO_ACKS_YET:
            if reader.is_whole():
                raise WireError("request_malformed", f"a Produce request of {header.size} bytes has no acks")
            return reader.more()
        if self._state.throttle.transactions.unannounced_ms >= 0.0:
            timeout_ms = requests.produce_timeout(buf, header.body, end, header.api_version)
            self._state.throttle.answers_within(timeout_ms or 0)
        self._begin_produce(pending, header.size, acks)
        repeated = self._repeated
        if repeated is None or repeated.api_version != header.api_version:
            few = header.body - start <= _MAX_REPEATED_BYTES
            self._repeated = requests.RepeatedHeader(header, buf, start) if few else None
        return _FORWARD

    def take_plain(self, buf: memoryview, end: int, now_ms: float) -> InFlightRequest | None:
        """Take `buf[:end]`, if it is a part of the request that is being forwarded, or one Produce request or its
        beginning with the header of an earlier one, expects an answer, and is certainly let through. None: it is not,
        and nothing has been done."""
        if self.reader.left:
            return self._take_more(end, now_ms)
        state, repeated, account = self._state, self._repeated, self.account
        if repeated is None or account is None or self._awaited is not None:
            return None
        total = repeated.length(buf, end)
        if total < end or total - 4 > self._max_frame_bytes:
            return None
        throttle, generation = state.throttle, state.ledger.generation
        if throttle.gone or throttle.place is not None or throttle.grace.owed_until_ms:
            return None
        if account.produced.may_queue(generation) or account.requested.may_queue(generation):
            return None
        acks = requests.produce_acks(buf, repeated.body, end, repeated.api_version)
        if acks in (0, _NO_ACKS_YET):
            return None
        throttle.client_bytes += end
        missing = total - end
        if missing and not gate.claim(state, account, total - 4, missing, now_ms):
            throttle.client_bytes -= end
            return None
        pending = state.exchange.plain(integers.int32(buf, 8), _PRODUCE, repeated.api_version, account, now_ms)
        self._begin_produce(pending, total - 4, acks)
        if missing:
            self.reader.forwarded(missing)
        else:
            self.ended(now_ms)
        return pending

    def _take_more(self, count: int, now_ms: float) -> InFlightRequest | None:
        pending, left = self._current, self.reader.left
        if pending is None or count > left or self._unanswered:
            return None
        self._state.throttle.client_bytes += count
        self.reader.forwarded(left - count)
        if count == left:
            self.ended(now_ms)
        return pending

    def _begin_produce(self, pending: InFlightRequest, size_bytes: int, acks: int) -> None:
        if acks == _ACKS_ALL:
            pending.work_bytes = size_bytes
        self._produced_bytes = size_bytes
        self._begin(pending, acks == 0)

    def _other(self, header: RequestHeader, pending: InFlightRequest, now_ms: float) -> Verdict:
        """A request that is neither Produce nor Fetch."""
        state, api_key, reader = self._state, pending.api_key, self.reader
        if api_key == _SHARE_FETCH:
            if not gate.admits_unshaped(state, pending, now_ms):
                return _STOP
        elif api_key == _API_VERSIONS and not header.known:
            # Newer than what we could clamp: the client gets the same answer as from a broker, and falls back
            # (KIP-511).
            pending.local_answer = unsupported_api_versions_response(header.correlation_id)
            state.answered_here(pending, state.cpu_ms(), now_ms)
            self._begin(pending, False)
            return _DROP
        elif api_key == _API_VERSIONS and self.software is None and reader.is_whole():
            self.software = client_software(reader.buf, header.body, reader.stop, header.api_version)
            pending.account.software = self.software or pending.account.software
        elif api_key in SASL_APIS and header.known:
            verdict = state.auth.request(reader, header, pending)
            if verdict is not _FORWARD:
                return verdict
        elif api_key in MEMBERSHIP:
            verdict = self._member(header, now_ms)
            if verdict is not _FORWARD:
                return verdict
        elif api_key in TRANSACTIONS:
            state.throttle.transactions.seen()
        elif header.known:
            interceptor = state.interceptors.get(api_key)
            if interceptor is not None and interceptor.wants(api_key, pending.account):
                return self._intercept(interceptor, header, pending, now_ms)
        pending.work_bytes = reader.total * WORK_PER_BYTE.get(api_key, 0)
        self._begin(pending, False)
        return _FORWARD

    def _member(self, header: RequestHeader, now_ms: float) -> Verdict:
        """A request of a group's member: throttles are cut so that its heartbeats get through, until it leaves."""
        throttle, api_key, field, reader = self._state.throttle, header.api_key, None, self.reader
        joins = api_key == JOIN_GROUP
        if header.known and (joins or api_key in EPOCH_HEARTBEATS):
            # session_timeout_ms after the group's name, or member_epoch after those of the group and the member.
            compact = not joins or header.api_version >= 6
            field = requests.int32_after_names(reader.buf, header.body, reader.stop, 1 if joins else 2, compact)
            if field is None and reader.stop - reader.start < min(reader.total, _MAX_PARTIAL_BYTES):
                return reader.more()
        if joins:
            if header.known:
                throttle.carries(UNKNOWN_SESSION_MS if field is None else field)
        elif api_key == LEAVE_GROUP or (field is not None and field < 0):
            throttle.slices.leaves(now_ms)
        else:
            throttle.carries(None)
        return _FORWARD

    def _count(self, account: Account, api_key: int) -> None:
        """Count a request of `account` that is forwarded or answered here."""
        key = api_key if api_key in (_PRODUCE, _FETCH) or api_key in APIS else -1
        state = self._state
        state.counted.add(key)
        account.counted.add(key)
        if not account.touched:
            state.ledger.wake(account)

    def _begin(self, pending: InFlightRequest, unanswered: bool) -> None:
        """The request is forwarded, or answered here: count it."""
        self._count(pending.account, pending.api_key)
        self._current, self._unanswered = pending, unanswered
        if not unanswered:
            self._state.exchange.append(pending)

    def _fetch(self, header: RequestHeader, pending: InFlightRequest, now_ms: float) -> Verdict:
        """Decide a fetch before the broker works on it: answer it here if over the quota, or else lower it to fit."""
        reader = self.reader
        buf, start, end, total = reader.buf, reader.start, reader.stop, reader.total
        wanted = total if total <= _MAX_PARTIAL_BYTES else header.body - start + FETCH_HEAD_BYTES
        if end - start < wanted:
            return need(wanted)
        state, version = self._state, header.api_version
        fields = requests.parse_fetch(buf, header.body, end, version)
        if fields is None:
            return self._unshaped(header, pending, now_ms)
        asked = fields.max_bytes if fields.max_bytes is not None else gate.MAX_INT32
        head_bytes = fetch_heads.of_request(buf, fields, end, start + total - fields.rest, version)
        deferred_ms, self._deferred_ms = self._deferred_ms, 0
        if deferred_ms > 0:
            grant = FetchGrant(deferred_ms, 0)
        elif state.throttle.slices.rest_until_ms > now_ms:
            grant = FetchGrant(ceil(state.throttle.slices.rest_until_ms - now_ms), 0)
        else:
            grant = state.ledger.admit(pending.account, FETCHED, asked, now_ms, head_bytes)
        if grant.throttle_ms > 0:
            if deferred_ms == 0 and total > DEFERRED_BYTES and fields.session_epoch > 0:
                self._deferred_ms = grant.throttle_ms
                reader.frames_left = 0
                return _STOP
            return self._answer_fetch(fields, header, pending, grant.throttle_ms, now_ms)
        pending.grant = grant
        self._begin_fetch(pending, now_ms)
        max_bytes = grant.max_bytes
        if max_bytes is not None and max_bytes < asked:
            state.counters.fetches_shaped += 1
        if self._missed:
            # Requests answered here before this one never reached the broker: this one carries their changes too.
            reader.frames_left -= total >> BODY_SHIFT
            merged = self._shaper.forward(fields, self._fetch_body(header), version, max_bytes)
            if merged is not None:
                head = bytearray(buf[start : header.body])
                head[0:4] = (len(head) - 4 + len(merged)).to_bytes(4, "big")
                integers.put_int16(head, 6, responses.fetch_version_upstream(version))
                return replace(total, bytes(head) + merged)
            self._shaper.patch_epoch(buf, fields)
        if max_bytes is not None:
            requests.lower_fetch(buf, fields, max_bytes)
        if state.translate is not None:
            upstream_version = responses.fetch_version_upstream(version)
            if upstream_version != version:
                integers.put_int16(buf, start + 6, upstream_version)
        return _FORWARD

    def _fetch_body(self, header: RequestHeader) -> memoryview | bytearray | None:
        """The body of a Fetch request that is inspected whole; None for a larger one."""
        reader = self.reader
        if reader.total > _MAX_PARTIAL_BYTES or not reader.is_whole():
            return None
        return reader.buf[header.body : reader.stop]

    def _answer_fetch(
        self, fields: FetchFields, header: RequestHeader, pending: InFlightRequest, throttle_ms: int, now_ms: float
    ) -> Verdict:
        """The fetch is over its quota: answer it with no records, or queue it if that cannot be."""
        state, version = self._state, header.api_version
        began_ms = state.cpu_ms()
        session_id = self._shaper.take_over(fields, self._fetch_body(header), version)
        if session_id is None:
            state.throttle.queue(FETCHED, None, throttle_ms, now_ms)
            return _STOP
        delay_ms = max(throttle_ms, state.answered_here(pending, began_ms, now_ms))
        self._begin_fetch(pending, now_ms)
        self.reader.frames_left -= self.reader.total >> BODY_SHIFT
        state.throttle.impose(pending, FETCHED, throttle_ms, now_ms)
        announces = pending.penalty is not None and pending.penalty.announced_until_ms
        announced_ms = min(delay_ms, state.throttle.slices.most_ms) if announces else 0
        pending.local_answer = empty_fetch_response(version, header.correlation_id, announced_ms, session_id)
        state.counters.fetches_answered += 1
        return _DROP

    def _unshaped(self, header: RequestHeader, pending: InFlightRequest, now_ms: float) -> Verdict:
        """A fetch of a version that is newer than this sidecar."""
        if header.known:
            raise WireError("request_malformed", f"a Fetch request of {header.size} bytes is truncated")
        if self._state.translate is not None:
            raise SessionError(
                CloseReason.UNSUPPORTED_VERSION,
                f"kquota does not know Fetch version {pending.api_version}, nor where its response has addresses",
                kind="unsupported_version",
            )
        if not gate.admits_unshaped(self._state, pending, now_ms):
            return _STOP
        self._begin_fetch(pending, now_ms)
        return _FORWARD

    def _begin_fetch(self, pending: InFlightRequest, now_ms: float) -> None:
        self._state.throttle.admit(pending.account, FETCH, 0, now_ms)
        self._begin(pending, False)

    def _intercept(
        self, interceptor: Interceptor, header: RequestHeader, pending: InFlightRequest, now_ms: float
    ) -> Verdict:
        """Pass an administrator's whole request to its interceptor, which decides."""
        api_key, version, reader = pending.api_key, pending.api_version, self.reader
        if reader.total > MAX_INTERCEPTED_BYTES:
            text = f"{api_name(api_key)} request of {header.size} bytes; the limit is {MAX_INTERCEPTED_BYTES}"
            raise WireError("request_too_large", text)
        if not reader.is_whole():
            return need(reader.total)
        self._count(pending.account, api_key)
        body = bytes(reader.buf[header.body : reader.stop])
        request = AdminRequest(api_key, version, self._state.auth.user, pending.account, body)
        reader.frames_left = 0  # one in a turn
        outcome = interceptor.request(request, now_ms)
        self._state.exchange.ask(bytes(reader.buf[reader.start + 4 : header.body]), body, pending)
        self._act(outcome, now_ms)
        return _DROP

    def decided(self, now_ms: float) -> None:
        """Do what an interceptor has decided later about the request that waits. Raises WireError and SessionError."""
        asked = self._state.exchange
        outcome, asked.outcome = asked.outcome, None
        assert outcome is not None
        self._act(outcome, now_ms)
        self.reader.frames_left = 0  # one in a turn

    def _act(self, outcome: Outcome, now_ms: float) -> None:
        """Forward the request that waits, answer it, or send its interceptor's own request first."""
        state = self._state
        asked = state.exchange
        assert asked.waiting is not None
        head, body, pending = asked.waiting
        began_ms = state.cpu_ms()
        if isinstance(outcome, Work):
            state.counters.long_turns.begin(api_name(pending.api_key), now_ms / 1000.0)
            decision = outcome.advance(now_ms)
            if decision is None:
                state.charge_own(pending.account, began_ms, now_ms)
                asked.decide(outcome)  # the next slice: others are served first
                return
            outcome = decision
        if isinstance(outcome, Wait):
            state.effects.ask = outcome
            return
        if isinstance(outcome, Ask):
            state.charge_own(pending.account, began_ms, now_ms)
            api_key, version, number = outcome.api_key, outcome.api_version, pending.correlation_id
            question = exchange.new_in_flight(number, api_key, version, pending.account, now_ms)
            question.hook = outcome.then
            asked.question = question
            asked.append(question)
            header = request_header(api_key, version, number, pending.account.identity.client_id)
            self.out.insert(framed(header + outcome.body))
            return
        asked.take_waiting()
        if outcome.delay_ms > 0:
            state.throttle.impose(pending, Kind.MUTATION, outcome.delay_ms, now_ms)
        if isinstance(outcome, Forward):
            state.charge_own(pending.account, began_ms, now_ms)
            pending.sent_ms = now_ms
            pending.hook = outcome.on_response
            if outcome.on_response is not None:
                pending.kept_bytes = len(body)
            self.out.insert(framed(head + (body if outcome.body is None else outcome.body)))
        else:
            delay_ms = max(outcome.delay_ms, state.answered_here(pending, began_ms, now_ms))
            delay_ms = min(delay_ms, state.throttle.slices.most_ms)
            pending.local_answer = response_frame(
                pending.api_key, pending.api_version, pending.correlation_id, outcome.body, delay_ms
            )
            pending.kept_bytes = len(pending.local_answer)
        asked.append(pending)
