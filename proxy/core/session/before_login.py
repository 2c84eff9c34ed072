"""Requests before the login on a listener that needs one: nothing is charged for them, and nothing passes for free.

A broker accepts ApiVersions and logins there, and closes the connection on anything else. Whether this broker needs a
login must not be guessed: some listeners of a cluster may and others not (transparent mode), and listeners are
reconfigured. So the first other request is held here, and the broker is sent a request without effect in its place,
Metadata for no topics:

    client: Produce ---> kept (what has arrived of it; nothing more is read)
                         Metadata ---> broker: closes, or answers with an error --> `login_missing`, nothing is charged
                                       broker: answers with its brokers ----------> no login is needed: the Produce
                                                                                    request is inspected as any other
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.core.auth.sasl import NO_LOGIN
from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import Forward, Outcome
from proxy.core.session.login import UNAUTHENTICATED
from proxy.core.wire.apis import METADATA, api_name
from proxy.core.wire.messages import metadata_request
from proxy.core.wire.primitives import INT32

if TYPE_CHECKING:
    from proxy.core.session.exchange import InFlightRequest
    from proxy.core.session.state import SessionState

FREE_VERSIONS: Final = 4
"""ApiVersions requests that are not charged. A broker answers one before the login and closes the connection on
another, but a client may have to fall back to a version that both know. Brokers without a login answer any number;
those beyond these are charged as other requests are."""
QUESTION_VERSION: Final = 1
"""Metadata version: the first one that can ask for no topics; its response begins with the brokers."""
QUESTION_CLIENT_ID: Final = "kquota"


class BeforeLogin:
    """The phase before the login on one connection. Knows nothing of sockets and clocks."""

    __slots__ = ("_api_key", "_state", "_versions", "asks", "expected")

    def __init__(self, state: SessionState, expected: bool) -> None:
        self._state = state
        self.expected = expected
        """The listener is known to need a login, which has not been done yet."""
        self._versions = 0
        self.asks = False
        """A request is kept until the broker has shown whether it accepts any."""
        self._api_key = 0

    @property
    def under_way(self) -> bool:
        """Whether a login has to come before anything else: the configuration says so, or the broker has begun one."""
        logins = self._state.logins
        return self.expected or (logins is not None and logins.wanted)

    def takes_versions(self) -> bool:
        """Whether one more ApiVersions request goes uncharged."""
        self._versions += 1
        return self._versions <= FREE_VERSIONS

    def end_if_refused(self) -> None:
        """The broker may have said already that it expects no login: then this phase is over."""
        logins = self._state.logins
        if logins is not None and logins.refused and not logins.wanted:
            self._over()

    def _over(self) -> None:
        """No login is needed: the phase is over."""
        logins = self._state.logins
        if logins is not None:
            logins.wanted = False
        self.expected = False
        self._state.named(NO_LOGIN)

    def ask(self, pending: InFlightRequest) -> bytes:
        """The request to send in place of the client's `pending`, which is kept: it is inspected again once the broker
        has shown that it accepts requests."""
        state = self._state
        self.asks, self._api_key = True, pending.api_key

        def answered(body: bytes, _now_ms: float) -> Outcome:
            # In the middle of a login brokers answer with an error before they close: then there are no brokers.
            if len(body) < INT32.size or INT32.unpack_from(body)[0] <= 0:
                raise self._missing()
            self.asks = False
            self._over()
            return Forward()  # for an intercepted request that waits: there is none

        pending.api_key, pending.api_version, pending.asked = METADATA, QUESTION_VERSION, answered
        pending.account = UNAUTHENTICATED
        state.exchange.append(pending)
        state.client_waits = True
        return metadata_request(QUESTION_VERSION, pending.correlation_id, QUESTION_CLIENT_ID)

    def broker_ended(self) -> SessionError | None:
        """The broker has closed the connection: the error if the missing login explains that."""
        return self._missing() if self.asks else None

    def _missing(self) -> SessionError:
        return SessionError(
            CloseReason.LOGIN_MISSING,
            f"the client sent {api_name(self._api_key)} without the SASL login that the broker requires: "
            "the connection is closed, nothing was charged (check the client's security.protocol)",
        )
