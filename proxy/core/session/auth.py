"""Who a session's client is: its logins, and what may come before one.

A login's messages pass whole and are wiped; of them only a name is kept, and believed once the broker has accepted the
whole exchange. The broker neither charges nor delays a login (`SaslServerAuthenticator` answers before the request
layer), so nothing is charged here either. While the broker owes an answer, nothing else is read from the client, as in
a broker: no request is inspected before its user is known.

Before a login a broker accepts ApiVersions, and closes the connection on anything else. Whether it needs a login must
not be guessed: some listeners of a cluster may and others not (transparent mode), and listeners are reconfigured. So
the first other request is kept, and the broker is sent a request without effect in its place, Metadata for no topics:

    client: Produce ---> kept (what has arrived of it; nothing more is read)
                         Metadata ---> broker: closes, or answers with an error --> `login_missing`, nothing is charged
                                       broker: answers with its brokers ----------> no login is needed: the Produce
                                                                                    request is inspected as any other
"""

from __future__ import annotations

from typing import Final

from proxy.core.auth.sasl import NO_LOGIN, Login, SaslLogin
from proxy.core.errors import CloseReason, SessionError, broker_malformed
from proxy.core.interceptors.intercept import Forward, Reply
from proxy.core.session.effects import Effects
from proxy.core.session.exchange import Exchange, InFlightRequest, new_in_flight
from proxy.core.session.frames import FORWARD, STOP, FrameReader, Verdict, need
from proxy.core.session.states import AUTH, Event, Proving, step
from proxy.core.session.throttle import Throttle
from proxy.core.wire import sasl as wire
from proxy.core.wire.apis import API_VERSIONS, METADATA, api_name
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import metadata_request
from proxy.core.wire.primitives import Buffer
from proxy.core.wire.requests import RequestHeader
from proxy.core.wire.responses import names_brokers
from quota.entity import ANONYMOUS, Identity
from quota.ledger import Account

UNAUTHENTICATED: Final = Account(Identity(ANONYMOUS, ""))
"""The account of requests before and during a login: in no ledger, charged nothing, shared by all sessions."""
UNAUTHENTICATED.touched = True  # so that no ledger lists it as active
RAW: Final = -1
"""`api_version` of the in-flight entry for a raw message."""
FREE_VERSIONS: Final = 4
"""ApiVersions requests that are not charged. A broker answers one before the login and closes the connection on
another, but a client may have to fall back to a version that both know. Brokers without a login answer any number;
those beyond these are charged as other requests are."""
PROBE_VERSION: Final = 9
"""Metadata version where the broker's are not known: all brokers from 2.4 on have it."""
PROBE_CLIENT_ID: Final = "kquota"
_UNCHANGED: Final = Reply()


class Auth:
    """The logins of one session. Knows nothing of sockets and clocks."""

    def __init__(
        self,
        effects: Effects,
        exchange: Exchange,
        throttle: Throttle,
        user: str,
        expected: bool,
        claim: str,
        probe_version: int,
    ) -> None:
        self._probe_version = probe_version
        self._effects, self._exchange, self._throttle = effects, exchange, throttle
        self._claim = claim
        """The claim of OAUTHBEARER tokens that is the principal's name."""
        self.user = user
        """The user that is charged for further requests."""
        self.expected = expected
        """A login has to come before other requests: the configuration says so, or the broker has begun the first."""
        self._begun = False
        """The broker has begun a login."""
        self._refused = False
        """The broker has said that it expects no login now: further SASL requests are charged, as in a broker."""
        self._versions = self._kept_api_key = 0
        self._login: SaslLogin | None = None
        """The login under way, or the last one."""
        self.state = Proving.IDLE
        self.blocks = False
        """No request is taken: the broker owes an answer, or the user is being looked up."""
        self.secret = False
        """A login is in progress: what both sides send is wiped from our buffers once it has been sent on."""
        self.raw = False
        """The client's next frame is a raw message of the mechanism, without a request header (SaslHandshake v0)."""

    # ---- before the login -------------------------------------------------------------------------------------------

    def is_free(self, api_key: int) -> bool:
        """Whether a request is answered by brokers before they charge: of a login, or one of the first ApiVersions."""
        if api_key in wire.SASL_APIS:
            return not self._refused
        if api_key != API_VERSIONS or not self.expected:
            return False
        self._versions += 1
        return self._versions <= FREE_VERSIONS

    def keeps(self, api_key: int) -> bool:
        """Whether a request that is not free is kept: until the client's user is asked for, or the broker (`probe`)."""
        if self.secret and api_key not in wire.SASL_APIS:
            self._over()  # the client has given it up
        if self.expected and self._refused and not self._begun:
            self._identify(NO_LOGIN)
        return self.expected

    def probe(self, header: RequestHeader, now_ms: float) -> None:
        """Ask the broker something in place of the client's request, which is kept."""
        self._kept_api_key = header.api_key
        version = self._probe_version
        pending = new_in_flight(header.correlation_id, METADATA, version, UNAUTHENTICATED, now_ms)
        pending.hook = self._probed
        self._exchange.question = pending
        self._exchange.append(pending)
        self._effects.to_broker.insert(metadata_request(version, header.correlation_id, PROBE_CLIENT_ID))
        self._step(Event.PROBED)

    def _probed(self, body: bytes, _now_ms: float) -> Forward:
        # In the middle of a login brokers answer with an error before they close: then there are no brokers.
        if not names_brokers(self._probe_version, body):
            raise self._missing()
        self._begun = False
        self._identify(NO_LOGIN)
        return Forward()

    def broker_ended(self) -> SessionError | None:
        """The broker has closed the connection: the error if the missing login explains that."""
        return self._missing() if self.state is Proving.PROBING else None

    def _missing(self) -> SessionError:
        return SessionError(
            CloseReason.LOGIN_MISSING,
            f"the client sent {api_name(self._kept_api_key)} without the SASL login that the broker requires: "
            "the connection is closed, nothing was charged (check the client's security.protocol)",
        )

    # ---- from the client --------------------------------------------------------------------------------------------

    def request(self, reader: FrameReader, header: RequestHeader, pending: InFlightRequest) -> Verdict:
        """A SaslHandshake or SaslAuthenticate request, which is read whole and passed on. Raises WireError."""
        if header.size > wire.MAX_SASL_BYTES:
            text = f"a SASL request of {header.size} bytes; at most {wire.MAX_SASL_BYTES} are accepted, as by a broker"
            raise WireError("sasl_too_large", text)
        if self.state is Proving.IDLE:
            self._step(Event.BEGUN)
        if not reader.is_whole():
            return need(reader.total)
        if not self._refused:
            pending.account = UNAUTHENTICATED
        body = memoryview(reader.buf)[header.body : reader.stop]
        if header.api_key == wire.SASL_HANDSHAKE:
            self._login = SaslLogin(self._claim, wire.mechanism(body))
            self.raw = header.api_version == 0
        else:
            self._message(wire.client_token(header.api_version, body))
        pending.hook = self._answered
        self._step(Event.SENT)
        return FORWARD

    def raw_message(self, reader: FrameReader, now_ms: float) -> Verdict:
        """A raw message. STOP: it is a request again, once its user is known. Raises SessionError."""
        message, total, login = memoryview(reader.buf)[reader.start : reader.stop], reader.total, self._login
        assert login is not None
        if not 0 <= total - 4 <= wire.MAX_SASL_BYTES:
            text = f"a SASL message of {total - 4} bytes; at most {wire.MAX_SASL_BYTES} are accepted"
            raise SessionError(CloseReason.CLIENT_MALFORMED, text, kind="sasl_too_large")
        if not login.is_shown:
            if len(message) < min(8, total):
                return need(min(8, total))
            if login.ends_raw(message[:8]):
                self._accept(Login(None))
                return STOP
        if len(message) < total:
            return need(total)
        self._message(message[4:])
        if login.is_shown:  # the broker does not answer the last message of others
            self._exchange.append(new_in_flight(0, wire.SASL_AUTHENTICATE, RAW, UNAUTHENTICATED, now_ms))
            self._step(Event.SENT)
        return FORWARD

    def _message(self, token: Buffer | None) -> None:
        if self._login is None:
            self._login = SaslLogin(self._claim, None)
        self._login.message(token)

    # ---- from the broker --------------------------------------------------------------------------------------------

    def raw_comes(self) -> bool:
        """Whether the broker's next frame is a raw message: no response is owed at that time."""
        oldest = self._exchange.oldest
        return self.raw if oldest is None else oldest.api_version == RAW

    def raw_answer(self, reader: FrameReader, now_ms: float) -> Verdict:
        """A raw message of the broker: it sends one only to continue or to accept. Raises SessionError."""
        total = reader.total
        if not 4 <= total <= 4 + wire.MAX_SASL_BYTES:
            raise broker_malformed(f"the broker sent a SASL message of {total - 4} bytes", "broker_frame_size")
        if not reader.is_whole():
            return need(total)
        oldest = self._exchange.oldest
        if oldest is None:
            if self._login is not None:
                self._login.answers += 1
            return FORWARD
        if oldest.api_version != RAW:
            raise broker_malformed("the broker answered one SASL message with two", "broker_unasked_response")
        self._exchange.popleft()
        self._judge(wire.SaslResponse(0, bytes(reader.buf[reader.start + 4 : reader.stop]), 0), now_ms)
        return FORWARD

    def _answered(self, body: bytes, now_ms: float) -> Reply:
        """The broker's response to what `request` has sent, which is the oldest request in flight."""
        pending = self._exchange.oldest
        assert pending is not None
        if pending.api_key != wire.SASL_HANDSHAKE:
            self._judge(wire.answer(pending.api_version, body), now_ms)
            return _UNCHANGED
        error = wire.error_code(body)
        self._refused = error == wire.ILLEGAL_SASL_STATE
        if not (self._refused or self._begun):
            self._begun = self.expected = True  # so its listener needs one
        self._go_on(error)
        return _UNCHANGED

    def _judge(self, answer: wire.SaslResponse, now_ms: float) -> None:
        login = self._login
        assert login is not None
        self._refused = answer.error == wire.ILLEGAL_SASL_STATE
        accepted = None if answer.error else login.answered(answer.token)
        if accepted is None:
            self._go_on(answer.error)
            return
        if login.fault is not None:
            raise SessionError(
                CloseReason.CLIENT_MALFORMED,
                f"the broker accepted a {login.mechanism} login, but its user is unknown: {login.fault}",
                kind="sasl_name",
            )
        self._throttle.renewed(answer.lifetime_ms, now_ms)
        self._accept(accepted)

    # ---- what follows -----------------------------------------------------------------------------------------------

    def _go_on(self, error: int) -> None:
        if error:
            self._over()
        else:
            self._step(Event.CONTINUED)

    def _over(self) -> None:
        self._step(Event.OVER)
        self._forget()

    def _forget(self) -> None:
        """Nothing is kept of the messages of a login that is over."""
        self.raw = False
        if self._login is not None:
            self._login = SaslLogin(self._claim, self._login.mechanism)

    def _accept(self, login: Login) -> None:
        self._begun = True
        self._forget()
        self._identify(login)

    def _identify(self, login: Login) -> None:
        """The client has logged in, or needs no login: it waits until its user is known."""
        self._effects.identified = login
        self._step(Event.ACCEPTED)

    def named(self, user: str) -> None:
        """The client's user is known."""
        self.user = user
        self.expected = False
        self._step(Event.NAMED)

    def _step(self, event: Event) -> None:
        state = self.state = step(AUTH, self.state, event)
        self.blocks = state in (Proving.LOGIN, Proving.PROBING, Proving.NAMING)
        self.secret = state is Proving.BETWEEN or state is Proving.LOGIN


def wipe(view: memoryview) -> None:
    """Overwrite received bytes: the buffer is shared, and may not be reused for long."""
    view[:] = bytes(len(view))
