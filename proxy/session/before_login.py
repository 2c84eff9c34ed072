"""What comes before the login on a listener that wants one: nothing of it is charged, and nothing passes for free.

A broker takes ApiVersions and logins there, and closes the connection at anything else. Whether this broker does so is
not for us to guess: some of a sidecar's listeners may want a login and others none (transparent mode), and listeners
are configured anew. So the first other request waits here, and the broker is asked a question in its place that has no
effect, Metadata for no topics:

    client: Produce ---> held (what has come of it; nothing more is read)
                         Metadata ---> broker: closes, or answers with an error --> `login_missing`, charged to nobody
                                       broker: answers with its brokers ----------> no login is needed: the Produce
                                                                                    request is inspected as any other
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxy.errors import CloseReason, SessionError
from proxy.interceptors.intercept import Forward, Outcome
from proxy.session.framing import Buffer, FrameWalker
from proxy.session.login import UNAUTHENTICATED
from proxy.wire.apis import METADATA, api_name
from proxy.wire.messages import metadata_request
from proxy.wire.primitives import INT32

if TYPE_CHECKING:
    from proxy.session.in_flight import InFlightRequest
    from proxy.session.state import SessionState

FREE_VERSIONS: Final = 4
"""ApiVersions requests that are charged to nobody. A broker answers one before the login and closes the connection at
another, but a client may have to come down to a version that both know. Brokers that want no login answer any number,
and those beyond these are requests like others."""
QUESTION_VERSION: Final = 1
"""Of Metadata: the first one that can ask for no topics; its response begins with the brokers."""
QUESTION_CLIENT_ID: Final = "kquota"


class BeforeLogin:
    """This phase of one connection. Knows nothing of sockets and clocks."""

    __slots__ = ("_api_key", "_head", "_state", "_versions", "_walker", "expected")

    def __init__(self, state: SessionState, walker: FrameWalker, expected: bool) -> None:
        self._state = state
        self._walker = walker
        self.expected = expected
        """The listener is known to want a login, which has not come yet."""
        self._versions = 0
        self._head: bytes | None = None
        self._api_key = 0

    @property
    def under_way(self) -> bool:
        """Whether a login has to come before anything else: we were told, or the broker has begun one."""
        logins = self._state.logins
        return self.expected or (logins is not None and logins.wanted)

    @property
    def holds(self) -> bool:
        """A request waits until the broker has shown whether it takes any."""
        return self._head is not None

    def takes_versions(self) -> bool:
        """Whether one more ApiVersions request is charged to nobody."""
        self._versions += 1
        return self._versions <= FREE_VERSIONS

    def needless(self) -> bool:
        """Whether the broker has said already that it expects no login: then this phase is over."""
        logins = self._state.logins
        if logins is None or logins.wanted or not logins.refused:
            return False
        self._over()
        return True

    def _over(self) -> None:
        """No login is needed: tell so."""
        logins = self._state.logins
        if logins is not None:
            logins.wanted = False
        self.expected = False
        self._state.authenticated(None)

    def ask(
        self, pending: InFlightRequest, head: bytes, total: int, take_again: Callable[[bytes], None], out: list[Buffer]
    ) -> int:
        """Hold a request of `total` bytes, of which `head` has come, and ask in its place; returns as `inspect`.

        When the broker takes requests, `take_again(head)` is told, and the walk goes on with what that gives it.
        """
        state, walker = self._state, self._walker
        self._head, self._api_key = head, pending.api_key

        def answered(body: bytes, _now_ms: float) -> Outcome:
            # In the middle of a login brokers answer before they close, with an error: then there are no brokers.
            if len(body) < INT32.size or INT32.unpack_from(body)[0] <= 0:
                raise self._missing()
            self._head = None
            state.client_waits = False
            take_again(head)
            walker.skip = 0
            walker.stopped = True  # whoever reads next takes that first
            self._over()
            return Forward()  # of an interceptor's request that waits: there is none

        pending.api_key, pending.api_version, pending.asked = METADATA, QUESTION_VERSION, answered
        pending.account = UNAUTHENTICATED
        state.inflight.append(pending)
        state.client_waits = True
        out.append(metadata_request(QUESTION_VERSION, pending.correlation_id, QUESTION_CLIENT_ID))
        walker.skip = total - len(head)
        return -len(head)

    def broker_ended(self) -> None:
        """The broker has closed the connection. Raises SessionError if that was for want of a login."""
        if self.holds:
            raise self._missing()

    def _missing(self) -> SessionError:
        return SessionError(
            CloseReason.LOGIN_MISSING,
            f"the client sent {api_name(self._api_key)} before a login by SASL, and the broker takes none: "
            "it has closed the connection, nothing was charged (look at the client's security.protocol)",
        )
