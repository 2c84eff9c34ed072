"""The client's direction: requests are inspected, charged, and forwarded, lowered, or answered here."""

from __future__ import annotations

from typing import Final

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import MAX_INTERCEPTED_BYTES, AdminRequest, Outcome, Work
from proxy.core.session import gate, in_flight, login_frames
from proxy.core.session.before_login import BeforeLogin
from proxy.core.session.fetch import FetchShaper
from proxy.core.session.framing import Buffer, FrameInspector, FrameWalker
from proxy.core.session.in_flight import InFlightRequest
from proxy.core.session.login import UNAUTHENTICATED, copies, wipe
from proxy.core.session.outcomes import carry_out
from proxy.core.session.sizes import (
    FIRST_BYTES,
    SizeLimits,
    bytes_wanted,
    header_too_large,
    is_established,
    unreadable,
)
from proxy.core.session.state import ClientState, SessionState
from proxy.core.wire import fetch_heads, integers, requests, responses
from proxy.core.wire.apis import API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH, api_name, is_known
from proxy.core.wire.frames import WireError
from proxy.core.wire.sasl import SASL_APIS
from proxy.core.wire.software import client_software
from quota.entity import Kind
from quota.ledger import Account

MAX_HELD_REQUEST_BYTES: Final = 65_536
"""Fetch requests up to this size are inspected whole (a full fetch of about 1 500 partitions). Larger ones are
forwarded and throttled by their response, so that no request makes us hold more."""
FETCH_HEAD_BYTES: Final = 512
"""Read of Fetch requests that are not inspected whole: everything before the topics (header tags aside)."""
MAX_CLIENT_IDS: Final = 8
"""Client-ids whose accounts count a connection as theirs."""
ACKS_ALL: Final = -1
BODY_SHIFT: Final = 8
"""256 bytes of a Fetch whose session is kept here count as one frame: one of 64 KB takes 4 ms, which is not cut."""
# Compared for each request or response: C numbers in compiled code (see the .pxd).
_PRODUCE: Final = PRODUCE
_FETCH: Final = FETCH
_SHARE_FETCH: Final = SHARE_FETCH
_API_VERSIONS: Final = API_VERSIONS
_MAX_HELD_BYTES: Final = MAX_HELD_REQUEST_BYTES
_FULL: Final = int(ClientState.FULL)
_HEADER_SHIFT: Final = 5
"""32 bytes of a header count as one frame (`FrameWalker.left`): one with 100 tagged fields takes 0.07 ms."""

# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
PRODUCED: Final = Kind.PRODUCE
FETCHED: Final = Kind.FETCH


class RequestHandler(FrameInspector):
    """Requests of one client connection. Knows nothing of sockets and clocks."""

    __slots__ = (
        "_backlog",
        "_charged",
        "_charged_bytes",
        "_charged_pending",
        "_client_id",
        "_joined",
        "_max_frame_bytes",
        "_max_header_bytes",
        "_missed",
        "_now_ms",
        "_raw",
        "_saw_request",
        "_shaper",
        "_sizes",
        "_state",
        "_unsent",
        "account",
        "before",
        "established",
        "software",
        "user",
        "walker",
    )

    def __init__(self, state: SessionState, user: str, sizes: SizeLimits, login_expected: bool = False) -> None:
        self._state = state
        self.user = user
        """The user that is charged; see `identify`."""
        self._sizes = sizes
        self._max_frame_bytes, self._max_header_bytes = sizes.max_frame_bytes, sizes.max_header_bytes
        self.walker = FrameWalker()
        self._now_ms = 0.0
        self._backlog: bytearray | None = None
        """Requests read after the one that caused the mute."""
        self._charged: Account | None = None
        """The account to charge when the last byte of the current Produce request has come;"""
        self._charged_bytes = 0
        """its size;"""
        self._charged_pending: InFlightRequest | None = None
        """its in-flight entry, None for acks=0."""
        """Size of the latest Produce request."""
        self._unsent: InFlightRequest | None = None
        """The request whose last byte is still to come."""
        self.account: Account | None = None
        """The account of the last request,"""
        self._client_id = ""
        """and its client-id."""
        self._raw = False
        """The walk began with a raw SASL message, which has no request header."""
        self._joined: dict[str, Account] = {}
        """Accounts that count this connection as theirs, by client-id: none of them is evicted."""
        self._saw_request = False
        self.before = BeforeLogin(state, self.walker, login_expected)
        """Requests before the login are not charged, as in a broker."""
        self._shaper = FetchShaper()
        self._missed = self._shaper.missed
        self.software: str | None = None
        """Client library and version, from ApiVersions v3+."""
        self.established = False
        """A request has come that is not one of those with which connections begin."""

    @property
    def under_way(self) -> bool:
        """The client may stay connected: it has logged in where the listener needs that, or else sent any request at
        all. Clients open connections, ask ApiVersions and keep them for later."""
        return self.established or (self._saw_request and not self.before.expected)

    def end(self, now_ms: float) -> None:
        """The connection ends. The forwarded part of an incomplete Produce request is charged."""
        account, self._charged, self._charged_pending = self._charged, None, None
        if account is not None:
            come = max(self._charged_bytes - self.walker.skip, 0)
            self._state.ledger.charge_no_throttle(account, PRODUCED, come, now_ms)
        self.account = None
        self.close()

    def close(self) -> None:
        """The accounts no longer count this connection as theirs."""
        for client_id in list(self._joined):
            self._leave(client_id)

    def identify(self, user: str) -> None:
        """Charge `user` from now on; earlier charges stay with the previous user."""
        if user != self.user:
            self.close()
            self.user = user
        self.account = None
        self.before.expected = False

    def _client(self, api_key: int, client_id: str) -> Account | None:
        """The account of a request with this API and client-id, when these differ from the last request's. None: it is
        held until the broker has shown that it needs no login."""
        state, before = self._state, self.before
        logins = state.logins
        login = api_key in SASL_APIS
        if login and (logins is None or not logins.refused):
            return UNAUTHENTICATED
        wanted = before.under_way
        if wanted and api_key == API_VERSIONS and before.takes_versions():
            return UNAUTHENTICATED  # brokers accept this one before the login
        if logins is not None and logins.active and not login:
            logins.end()
        if wanted and not before.needless():
            return None
        account = state.ledger.account(self.user, client_id)
        client_id = account.identity.client_id  # long ones are cut there, so that no reference keeps the whole
        self.account, self._client_id = account, client_id
        if client_id not in self._joined:
            if len(self._joined) == MAX_CLIENT_IDS:
                self._leave(next(iter(self._joined)))
            self._joined[client_id] = account
            account.join()
            account.software = self.software or account.software
        return account

    def _leave(self, client_id: str) -> None:
        account = self._joined.pop(client_id)
        account.leave()
        self._state.ledger.wake(account)

    @property
    def client_ids(self) -> list[str]:
        """The latest client-ids of this connection, at most `MAX_CLIENT_IDS`; it has one in practice."""
        return list(self._joined)

    def has_backlog(self) -> bool:
        """True if requests that were already read have to be inspected before more are read."""
        return self._backlog is not None or self._state.outcome is not None

    @property
    def at_boundary(self) -> bool:
        """True between two requests, all of which have been inspected."""
        return self.walker.at_boundary() and self._state.waiting is None and not self.before.holds

    def resume(self, now_ms: float) -> list[Buffer]:
        """Go on with the requests in the backlog. Returns the buffers to send to the broker, in order."""
        out: list[Buffer] = []
        state = self._state
        outcome, state.outcome = state.outcome, None
        if outcome is not None and state.waiting is not None:
            self._now_ms = now_ms
            head, body, pending = state.take_waiting()
            try:
                self._act(outcome, head, body, pending, out)
            except WireError as error:
                if error.reason == CloseReason.BROKER_MALFORMED:  # in the broker's answer to a question
                    raise SessionError(CloseReason.BROKER_MALFORMED, str(error), kind=error.reason) from error
                raise unreadable(error, b"") from error
            self.complete()
            if self.walker.stopped or isinstance(outcome, Work):
                self.walker.stopped = True  # who has had a slice of it lets others come first
                return out
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            view = memoryview(backlog)
            walked = self._walk(view, len(view), now_ms, backlog)
            if walked is not None:
                out += walked
            elif self.walker.taken:
                out.append(view[: self.walker.taken])
        return out

    def read_ahead(self, view: memoryview, end: int) -> None:
        """Put the first `end` bytes of a view, read while the client is muted or its request is held, behind what is in
        the backlog. Not inside a request."""
        self._state.client_bytes += end
        if self._backlog is None:
            self._backlog = bytearray()
        self._backlog += view[:end]
        self.walker.stopped = True  # the backlog is next

    @property
    def backlog_bytes(self) -> int:
        """How many bytes have been read and not been inspected."""
        return 0 if self._backlog is None else len(self._backlog)

    def take(self, view: memoryview, end: int, now_ms: float) -> list[Buffer] | None:
        """Process the first `end` bytes of a view, which were read from the client. Returns the buffers to send to the
        broker, in order; None for the first `walker.taken` bytes, unchanged."""
        state = self._state
        state.client_bytes += end
        out = self._walk(view, end, now_ms, None)
        logins = state.logins
        if logins is not None and logins.active:
            out = copies([view[: self.walker.taken]] if out is None else out)
            wipe(view[:end])
        return out

    def moved(self, count: int, now_ms: float) -> None:
        """`count` bytes of the body went to the broker without passing through `take`."""
        self._state.client_bytes += count
        self.walker.skip -= count
        if self.walker.skip == 0:
            self._now_ms = now_ms
            self.complete()

    def _walk(self, view: memoryview, end: int, now_ms: float, backlog: bytearray | None) -> list[Buffer] | None:
        """`backlog` holds the bytes of `view`, if they are in the backlog already."""
        self._now_ms = now_ms
        logins = self._state.logins
        self._raw = logins is not None and logins.watch.raw
        walker = self.walker
        out = walker.walk(self, view, end)
        taken = walker.taken
        if walker.stopped and walker.held is not None:
            self._backlog, walker.held = walker.held + view[taken:end], None
        elif taken < end:
            # A held request is inspected repeatedly; its bytes are not copied each time.
            self._backlog = bytearray(view[taken:end]) if taken or backlog is None else backlog
        return out

    def complete(self) -> tuple[()]:
        """The last byte of a request has been read: charge it, if it is charged now, and mute."""
        now_ms, state = self._now_ms, self._state
        if self._unsent is not None:
            self._unsent.sent_ms = now_ms
            self._unsent = None
        account = self._charged
        if account is not None:
            pending, size_bytes = self._charged_pending, self._charged_bytes
            self._charged = self._charged_pending = None
            delay_ms = state.ledger.charge(account, PRODUCED, size_bytes, now_ms)
            if delay_ms > 0:
                if pending is None:
                    state.mute(account, PRODUCED, delay_ms, now_ms, size_bytes)
                else:
                    state.impose(pending, PRODUCED, delay_ms, now_ms, size_bytes)
        # No further request may be inspected now; one that was decided meanwhile is to be resumed before.
        self.walker.stopped = state.client_state(now_ms) >= _FULL or state.waiting is not None
        return ()

    def inspect(self, buf: bytearray | memoryview, start: int, end: int, out: list[Buffer]) -> int:
        """Inspect the frame at `start`: a request, or during a login a raw message (see `FrameInspector.inspect`)."""
        try:
            if self._raw:
                return login_frames.inspect_raw(self, buf, start, end, out)
            return self._inspect(buf, start, end, out)
        except WireError as error:
            first = b"" if self._saw_request else bytes(buf[start : min(end, start + FIRST_BYTES)])
            raise unreadable(error, first) from error

    def _inspect(self, buf: bytearray | memoryview, start: int, end: int, out: list[Buffer]) -> int:
        """Inspect the request at `start`. Raises WireError if it is malformed."""
        walker, now_ms = self.walker, self._now_ms
        header = requests.parse_request_header(buf, start, end, self._max_frame_bytes)
        if (end if header is None else header.body) - start > self._max_header_bytes:
            raise header_too_large(start, end, header, self._sizes)
        if header is not None and not self.established:
            self.established = is_established(header, self._sizes)
        here = end - start
        if header is None:
            walker.need = bytes_wanted(buf, start, here)
            return 0
        walker.left -= (header.body - start) >> _HEADER_SHIFT
        total = 4 + header.size
        if here > total:
            here = total
        self._saw_request = True
        api_key, version = header.api_key, header.api_version
        client_id = header.client_id
        account = self.account
        if account is None or client_id != self._client_id:
            account = self._client(api_key, client_id)
        if account is None:
            pending = in_flight.new_in_flight(header.correlation_id, api_key, version, UNAUTHENTICATED, now_ms)
            return self.before.ask(pending, bytes(buf[start : start + here]), total, self._take_again, out)
        if account is not UNAUTHENTICATED and not gate.lets_through(
            self._state, account, header, buf, start + here, total - here, now_ms
        ):
            walker.stopped = True
            return 0
        pending = in_flight.new_in_flight(header.correlation_id, api_key, version, account, now_ms)
        answered = True
        if api_key == _PRODUCE:
            acks = requests.produce_acks(buf, header.body, start + here, version)
            if acks is None:
                if here == total:
                    raise WireError("request_malformed", f"a Produce request of {total - 4} bytes has no acks")
                walker.need = min(total, 2 * here)
                return 0
            answered = acks != 0
            if acks == ACKS_ALL:
                pending.replicated_bytes = header.size
            self._charged, self._charged_bytes = account, header.size
            self._charged_pending = pending if answered else None
        elif api_key == _FETCH:
            wanted = total if total <= _MAX_HELD_BYTES else header.body - start + FETCH_HEAD_BYTES
            if here < wanted:
                walker.need = wanted
                return 0
            return self._fetch(buf, start, here, total, header, pending, out)
        elif api_key == _SHARE_FETCH:
            if not gate.admits_unshaped(self._state, pending, now_ms):
                walker.stopped = True
                return 0
        elif api_key == _API_VERSIONS and not header.known:
            # Newer than what we could clamp: the client gets the same answer as from a broker, and falls back
            # (KIP-511).
            pending.local_answer = responses.unsupported_api_versions_response(header.correlation_id)
            self._state.answered_here(pending, self._state.cpu_ms(), now_ms)
            walker.dropping = True
        elif api_key == _API_VERSIONS and self.software is None and here == total:
            self.software = client_software(buf, header.body, start + total, version)
            account.software = self.software or account.software
        elif api_key in SASL_APIS and header.known:
            return login_frames.inspect_request(self, buf, start, here, header, pending, out)
        elif api_key in self._state.interceptors and header.known:
            if total > MAX_INTERCEPTED_BYTES:
                text = f"{api_name(api_key)} request of {header.size} bytes; at most {MAX_INTERCEPTED_BYTES} are held"
                raise WireError("request_too_large", text)
            if here < total:
                walker.need = total
                return 0
            self._state.count_request(account, api_key)
            return self._intercept(buf, start, total, header, pending, out)
        self._state.count_request(account, api_key)
        if answered:
            self._state.inflight.append(pending)
            if here < total:
                self._unsent = pending
        walker.skip = total - here
        return here

    def _take_again(self, head: bytes) -> None:
        """Put the held request that begins with `head` before what was read after it."""
        self._backlog = bytearray(head) + (self._backlog or b"")

    def _fetch(
        self,
        buf: bytearray | memoryview,
        start: int,
        here: int,
        total: int,
        header: requests.RequestHeader,
        pending: InFlightRequest,
        out: list[Buffer],
    ) -> int:
        """Decide a fetch before the broker works on it: answer it here if over the quota, or else lower it to fit."""
        state, now_ms, account = self._state, self._now_ms, pending.account
        version = header.api_version
        fields = requests.parse_fetch(buf, header.body, start + here, version)
        if fields is None:
            if is_known(FETCH, version):
                raise WireError("request_malformed", f"a Fetch request of {total - 4} bytes has no topics")
            if state.translate is not None:
                raise SessionError(
                    CloseReason.UNSUPPORTED_VERSION,
                    f"Fetch version {version} is newer than this sidecar, and its response may carry broker addresses",
                    kind="unsupported_version",
                )
            if not gate.admits_unshaped(state, pending, now_ms):
                self.walker.stopped = True
                return 0
            self._forward_fetch(pending, total - here)
            return here
        wanted = fields.max_bytes if fields.max_bytes is not None else gate.MAX_INT32
        head_bytes = fetch_heads.of_request(buf, fields, start + here, start + total - fields.rest, version)
        admission = state.ledger.admit(account, FETCHED, wanted, now_ms, head_bytes)
        if admission.throttle_ms > 0:
            began_ms = state.cpu_ms()
            body = buf[header.body : start + here] if here == total <= _MAX_HELD_BYTES else None
            session_id = self._shaper.take_over(fields, body, version)
            if session_id is None:
                state.hold(FETCHED, None, admission.throttle_ms, now_ms)
                self.walker.stopped = True
                return 0
            delay_ms = max(admission.throttle_ms, state.answered_here(pending, began_ms, now_ms))
            self._forward_fetch(pending, total - here)
            self.walker.left -= total >> BODY_SHIFT
            state.impose(pending, FETCHED, admission.throttle_ms, now_ms)
            told_ms = delay_ms if pending.penalty is not None and pending.penalty.told_until_ms else 0
            pending.local_answer = responses.empty_fetch_response(version, header.correlation_id, told_ms, session_id)
            state.counters.fetches_answered += 1
            self.walker.dropping = True
            return here
        pending.admission = admission
        self._forward_fetch(pending, total - here)
        max_bytes = admission.max_bytes
        if max_bytes is not None and max_bytes < wanted:
            state.counters.fetches_shaped += 1
        if self._missed:
            # Requests answered here before this one never reached the broker: this one carries their changes too.
            body = buf[header.body : start + here] if here == total <= _MAX_HELD_BYTES else None
            self.walker.left -= total >> BODY_SHIFT
            merged = self._shaper.forward(fields, body, version, max_bytes)
            if merged is not None:
                head = bytearray(buf[start : header.body])
                head[0:4] = (len(head) - 4 + len(merged)).to_bytes(4, "big")
                integers.put_int16(head, 6, responses.fetch_version_upstream(version))
                out.append(bytes(head) + merged)
                return -here
            self._shaper.patch_epoch(buf, fields)
        if max_bytes is not None:
            requests.lower_fetch(buf, fields, max_bytes)
        upstream_version = responses.fetch_version_upstream(version) if state.translate is not None else version
        if upstream_version != version:
            integers.put_int16(buf, start + 6, upstream_version)
        return here

    def _forward_fetch(self, pending: InFlightRequest, rest_bytes: int) -> None:
        self._state.end_hold(pending.account, FETCH, 0, self._now_ms)
        self._state.count_request(pending.account, FETCH)
        self._state.inflight.append(pending)
        self.walker.skip = rest_bytes

    def _intercept(
        self,
        buf: bytearray | memoryview,
        start: int,
        total: int,
        header: requests.RequestHeader,
        pending: InFlightRequest,
        out: list[Buffer],
    ) -> int:
        """Pass an administrator's whole request to its interceptor, which decides."""
        state = self._state
        api_key, version = pending.api_key, pending.api_version
        body = bytes(buf[header.body : start + total])
        request = AdminRequest(api_key, version, self.user, header.client_id, pending.account, body)
        self.walker.left = 0  # one in a walk
        outcome = state.interceptors[api_key].request(request, self._now_ms)
        self._act(outcome, bytes(buf[start + 4 : header.body]), body, pending, out)
        return -total

    def _act(self, outcome: Outcome, head: bytes, body: bytes, pending: InFlightRequest, out: list[Buffer]) -> None:
        # Set before the interceptor runs: one that waits may have decided by the time that it returns.
        self._state.wait_for_interceptor(head, body, pending)
        if not carry_out(self._state, outcome, head, body, pending, out, self._now_ms):
            self._state.take_waiting()
