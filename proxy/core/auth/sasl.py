"""Observes the SASL login of a connection without taking part: which name to believe, and from when on.

    | state      | means                                                     | left by                              |
    |------------|-----------------------------------------------------------|--------------------------------------|
    | IDLE       | no login under way: before the first, or after one        | SaslHandshake -> HANDSHAKE           |
    | HANDSHAKE  | the broker has been asked for a mechanism                 | its answer -> EXCHANGE, IDLE (error) |
    | EXCHANGE   | the mechanism's messages are exchanged: in                | success -> IDLE, name reported;      |
    |            | SaslAuthenticate (SaslHandshake v1), or raw, a size and   | an error -> IDLE                     |
    |            | bytes alone (v0)                                          |                                      |

A name is only a claim until the broker has accepted the whole exchange (`SaslServerAuthenticator`):
- PLAIN: error 0 on the only message;
- SCRAM: error 0 and a server-final-message (`v=`) on the second one;
- OAUTHBEARER: error 0 *and an empty message* on the first one. A rejected token is answered with error 0 as well, and a
  JSON challenge (RFC 7628 §3.2.3); the client replies \\x01, and only then comes the error;
- GSSAPI shows no name: error 0 and an empty message on the second message or a later one. All its answers before the
  last one carry a Kerberos token or the offer of security layers (RFC 4752, section 3.2);
- other mechanisms show no name and their end is unknown: as soon as a message has been accepted, the connection gets
  the user configured for them.

While the broker owes an answer, nothing else is read from the client, as in a broker. So no request is inspected before
its user is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from proxy.core.wire import sasl as wire
from proxy.core.wire.primitives import INT16, Buffer
from proxy.core.wire.schema import APIS

DEFAULT_CLAIM: Final = "sub"
"""Kafka's sasl.oauthbearer.sub.claim.name."""
_SCRAM: Final = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
_SHOWN: Final = frozenset({"PLAIN", "OAUTHBEARER", *_SCRAM})
"""Mechanisms whose messages show a name."""
_NAMING: Final = frozenset({"PLAIN", "OAUTHBEARER"})
"""Those whose only client message contains the name."""
_SERVER_FINAL: Final = b"v="
_GSSAPI: Final = "GSSAPI"
_MIN_GSSAPI_MESSAGES: Final = 2
"""The client's: its ticket, and its choice of a security layer. Mutual authentication adds one in between."""


class Login(NamedTuple):
    """A login that the broker has accepted."""

    name: str | None
    """The principal's name; None where the mechanism (or an opaque token) does not show it."""
    by_token: bool = False
    """`name` is the id of a delegation token (KIP-48): the principal is its owner."""


NO_LOGIN: Final = Login(None)
"""The broker accepts requests without a login. Compared by identity."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What an answer of the broker meant."""

    login: Login
    lifetime_ms: int = 0
    """How long the broker lets this session live from now; 0: without limit."""
    fault: str | None = None
    """Why the client's message gives no name although its mechanism always does: the accepted principal is unknown and
    must not be guessed. Reveals nothing of the message."""


class _State(Enum):
    IDLE = auto()
    HANDSHAKE = auto()
    EXCHANGE = auto()


class SaslWatch:
    """The logins of one connection: the first one, and those after it (KIP-368)."""

    __slots__ = (
        "_by_token",
        "_claim",
        "_fault",
        "_messages",
        "_name",
        "_state",
        "answers",
        "awaiting",
        "mechanism",
        "raw",
    )

    def __init__(self, claim: str = DEFAULT_CLAIM) -> None:
        self._claim = claim
        self._state = _State.IDLE
        self._name: str | None = None
        self._by_token = False
        self._fault: str | None = None
        self._messages = 0
        """The client's messages in this exchange."""
        self.answers = 0
        """The broker's messages in this exchange."""
        self.mechanism: str | None = None
        self.raw = False
        """The client's next frame is a raw message of the mechanism, without a request header."""
        self.awaiting = False
        """The broker owes an answer; nothing else is read from the client."""

    @property
    def active(self) -> bool:
        """A login is in progress: what both sides send may be secret."""
        return self._state is not _State.IDLE

    @property
    def answers_each(self) -> bool:
        """Whether the broker answers each client message. (It does not answer the last one of raw GSSAPI.)"""
        return not self.raw or self.mechanism in _SHOWN

    # ---- from the client --------------------------------------------------------------------------------------------

    def handshake(self, version: int, body: Buffer) -> None:
        """A SaslHandshake request."""
        self.over()
        self._state = _State.HANDSHAKE
        self.mechanism = wire.mechanism(body)
        self.raw = version == 0
        self.awaiting = True

    def begin(self) -> None:
        """The first bytes of a SASL request or message have arrived."""
        if self._state is _State.IDLE:
            self._state = _State.EXCHANGE

    def message(self, token: Buffer | None) -> None:
        """A message of the mechanism; None if it cannot be parsed."""
        self._state = _State.EXCHANGE
        self._messages += 1
        self.awaiting = self.answers_each
        if self._messages > 1 or token is None:
            if self.mechanism not in _SCRAM:
                self._name = None
            if token is None and self.mechanism in _NAMING:
                self._fault = wire.UNREADABLE
            return
        if self.mechanism == "PLAIN":
            self._name = wire.plain_name(token)
            self._fault = None if self._name else wire.PLAIN_FAULT
        elif self.mechanism in _SCRAM:
            self._name, self._by_token = wire.scram_name(token) or (None, False)
        elif self.mechanism == "OAUTHBEARER":
            self._name, self._fault = wire.oauth_claim(token, self._claim)

    def ends_raw(self, head: Buffer) -> Login | None:
        """Whether a frame with these first bytes (size included) is a request again, after raw messages of a mechanism
        whose end cannot be recognised otherwise.

        GSSAPI's messages begin with 60 (RFC 2743), 05 04 (RFC 4121) or are empty; no API key looks like these. While
        the broker owes the answer to anything but the last message, every frame is a message for the broker.
        """
        if self.answers_each or len(head) < 8:
            return None
        if self.mechanism == _GSSAPI and not self.answers + 1 == self._messages >= _MIN_GSSAPI_MESSAGES:
            return None
        if int.from_bytes(head[0:4], "big") < 10 or INT16.unpack_from(head, 4)[0] not in APIS:
            return None
        self.over()
        return Login(None)

    # ---- from the broker --------------------------------------------------------------------------------------------

    def handshake_answered(self, error: int) -> None:
        """The answer to SaslHandshake."""
        self.awaiting = False
        if error:
            self.over()
        else:
            self._state = _State.EXCHANGE

    def answered(self, answer: wire.SaslResponse) -> Accepted | None:
        """The answer to a message; not None if it completes a login."""
        self.awaiting = False
        if answer.error:
            self.over()
            return None
        self.answers += 1
        if self.mechanism == _GSSAPI:
            if answer.token or self._messages < _MIN_GSSAPI_MESSAGES:
                return None
            self.over()
            return Accepted(Login(None), answer.lifetime_ms)
        if self.mechanism not in _SHOWN:
            return Accepted(Login(None), answer.lifetime_ms)
        if self.mechanism in _SCRAM:
            done = self._messages == 2 and answer.token.startswith(_SERVER_FINAL)
        elif self.mechanism == "OAUTHBEARER":
            done = self._messages == 1 and not answer.token
            if not done:
                self._name = None
        else:
            done = self._messages == 1
        if not done:
            return None
        accepted = Accepted(Login(self._name, self._by_token), answer.lifetime_ms, self._fault)
        self.over()
        return accepted

    def over(self) -> None:
        """No login is in progress any more."""
        self._state = _State.IDLE
        self._name = None
        self._by_token = False
        self._fault = None
        self._messages = self.answers = 0
        self.raw = False
        self.awaiting = False
