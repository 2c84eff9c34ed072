"""Logins in a session: SASL messages pass whole and are wiped, and the name that they prove is reported.

The broker neither charges nor delays a login (`SaslServerAuthenticator` answers before the request layer), so nothing
is charged here either.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from proxy.core.auth.sasl import Login, SaslWatch
from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import Reply
from proxy.core.session.frames import FORWARD, STOP, Verdict, need
from proxy.core.wire import sasl as wire
from proxy.core.wire.frames import WireError
from proxy.core.wire.requests import RequestHeader
from quota.entity import ANONYMOUS, Identity
from quota.ledger import Account

if TYPE_CHECKING:
    from proxy.core.session.exchange import InFlightRequest
    from proxy.core.session.state import SessionState

UNAUTHENTICATED: Final = Account(Identity(ANONYMOUS, ""))
"""The account of requests before and during a login: in no ledger, charged nothing, shared by all sessions."""
UNAUTHENTICATED.touched = True  # so that no ledger lists it as active
RAW: Final = -1
"""`api_version` of the in-flight entry for a raw message."""
RENEWAL_SHARE: Final = 0.08
MAX_RENEWAL_MS: Final = 30_000.0
_UNCHANGED: Final = Reply()


def renewal_ms(lifetime_ms: int) -> float:
    """How long before the end of its session a client is no longer muted (KIP-368).

    What a client sent before its session expired must have reached the broker by then: a broker that receives anything
    but a new login afterwards closes the connection. Clients renew after 85 to 95 % of the lifetime (Java) or 90 %
    (librdkafka). Earlier than 90 % would be of no use: librdkafka, which ignores throttle times, would fill up again
    what has just passed. So 2 % of the lifetime are left for its timer to be late, and 8 %, half a minute at most, for
    the rest.
    """
    return min(lifetime_ms * RENEWAL_SHARE, MAX_RENEWAL_MS)


class Logins:
    """The logins of one session. Created when the first one begins."""

    __slots__ = ("_accepted", "_state", "refused", "wanted", "watch")

    def __init__(self, state: SessionState, claim: str) -> None:
        self._state = state
        self.watch = SaslWatch(claim)
        self._accepted = False
        self.wanted = False
        """The broker has begun a login, so its listener needs one, and none has been accepted yet."""
        self.refused = False
        """The broker has said that it expects no login now: further SASL requests are charged, as in a broker."""

    @property
    def active(self) -> bool:
        """A login is in progress: what both sides send is wiped from our buffers once it has been sent on."""
        return self.watch.active

    def end(self) -> None:
        """An ordinary request has come: the login in progress, if any, is over."""
        self.watch.over()
        self._state.client_waits = False

    # ---- from the client --------------------------------------------------------------------------------------------

    def request(self, header: RequestHeader, body: memoryview, pending: InFlightRequest) -> None:
        """A whole SaslHandshake or SaslAuthenticate request."""
        watch = self.watch
        if header.api_key == wire.SASL_HANDSHAKE:
            watch.handshake(header.api_version, body)
            pending.on_response = self._handshake_answered
        else:
            watch.message(wire.client_token(header.api_version, body))
            version = header.api_version

            def answered(body: bytes, now_ms: float) -> Reply:
                self._answered(wire.answer(version, body), now_ms)
                return _UNCHANGED

            pending.on_response = answered
        self._state.client_waits = True

    def raw_frame(self, buf: bytearray | memoryview, start: int, end: int, total: int) -> Verdict:
        """The raw message of `total` bytes at `start`. STOP: it is a request again (`watch.raw`)."""
        watch, here = self.watch, end - start
        size = total - 4
        if not 0 <= size <= wire.MAX_SASL_BYTES:
            raise SessionError(
                CloseReason.CLIENT_MALFORMED,
                f"a SASL message of {size} bytes; at most {wire.MAX_SASL_BYTES} are taken",
                kind="sasl_too_large",
            )
        if not watch.answers_each:
            if here < min(8, total):
                return need(min(8, total))
            login = watch.ends_raw(bytes(buf[start : start + min(here, 8)]))
            if login is not None:
                self._tell(login)
                return STOP  # until its user is known: then it is a request
        if here < total:
            return need(total)
        watch.message(memoryview(buf)[start + 4 : start + total])
        self._state.client_waits = watch.awaiting
        return FORWARD

    # ---- from the broker --------------------------------------------------------------------------------------------

    def raw_answer(self, token: bytes, now_ms: float) -> None:
        """The broker's answer to a raw message: it sends one only to continue or to accept."""
        self._answered(wire.SaslResponse(0, token, 0), now_ms)

    def _handshake_answered(self, body: bytes, _now_ms: float) -> Reply:
        error = wire.error_code(body)
        self.watch.handshake_answered(error)
        self.refused = error == wire.ILLEGAL_SASL_STATE
        self.wanted = self.wanted or not (self.refused or self._accepted)
        self._state.client_waits = False
        return _UNCHANGED

    def _answered(self, answer: wire.SaslResponse, now_ms: float) -> None:
        state = self._state
        accepted = self.watch.answered(answer)
        self.refused = answer.error == wire.ILLEGAL_SASL_STATE
        state.client_waits = False
        if accepted is not None:
            if accepted.fault is not None:
                raise SessionError(
                    CloseReason.CLIENT_MALFORMED,
                    f"the broker has accepted a login by {self.watch.mechanism} that names no user: {accepted.fault}",
                    kind="sasl_name",
                )
            end_ms = now_ms + accepted.lifetime_ms if accepted.lifetime_ms else math.inf
            state.throttle.renewed(end_ms - renewal_ms(accepted.lifetime_ms), end_ms, now_ms)
            self._tell(accepted.login)

    def _tell(self, login: Login) -> None:
        self._accepted, self.wanted = True, False
        self._state.named(login)


def logins_of(state: SessionState) -> Logins:
    """The logins of this session, created on first use."""
    if state.logins is None:
        state.logins = Logins(state, state.claim)
    return state.logins


def too_large(size: int) -> WireError:
    """The error for SASL requests larger than a broker accepts."""
    return WireError(
        "sasl_too_large", f"a SASL request of {size} bytes; at most {wire.MAX_SASL_BYTES} are taken, as by a broker"
    )


def wipe(view: memoryview) -> None:
    """Overwrite received bytes: the buffer is shared, and may not be reused for long."""
    view[:] = bytes(len(view))


__all__ = ["RAW", "UNAUTHENTICATED", "Login", "Logins", "logins_of", "renewal_ms", "too_large", "wipe"]
