"""What the messages of a SASL login show without taking part in it: a name, and when it is to be believed.

A name is only a claim until the broker has accepted the whole exchange (`SaslServerAuthenticator`):
- PLAIN: error 0 on the only message;
- SCRAM: error 0 and a server-final-message (`v=`) on the second one;
- OAUTHBEARER: error 0 *and an empty message* on the first one. A rejected token is answered with error 0 as well, and a
  JSON challenge (RFC 7628 §3.2.3); the client replies \\x01, and only then comes the error;
- GSSAPI shows no name: error 0 and an empty message on the second message or a later one. All its answers before the
  last one carry a Kerberos token or the offer of security layers (RFC 4752, section 3.2);
- other mechanisms show no name and their end is unknown: as soon as a message has been accepted, the connection gets
  the user configured for them.
"""

from __future__ import annotations

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


class SaslLogin:
    """One login. Its steps are in `proxy.core.session.states.AUTH`."""

    __slots__ = ("_by_token", "_claim", "_messages", "_name", "answers", "fault", "mechanism")

    def __init__(self, claim: str, mechanism: str | None) -> None:
        self._claim = claim
        self.mechanism = mechanism
        self._name: str | None = None
        self._by_token = False
        self.fault: str | None = None
        """Why the client's message gives no name although its mechanism always does: the accepted principal is unknown
        and must not be guessed. Reveals nothing of the message."""
        self._messages = 0
        """The client's messages."""
        self.answers = 0
        """The broker's messages."""

    @property
    def is_shown(self) -> bool:
        """Whether messages show a name. The broker then answers each of them, raw ones too."""
        return self.mechanism in _SHOWN

    def message(self, token: Buffer | None) -> None:
        """A message of the client; None if it cannot be parsed."""
        self._messages += 1
        if self._messages > 1 or token is None:
            if self.mechanism not in _SCRAM:
                self._name = None
            if token is None and self.mechanism in _NAMING:
                self.fault = wire.UNREADABLE
        elif self.mechanism == "PLAIN":
            self._name = wire.plain_name(token)
            self.fault = None if self._name else wire.PLAIN_FAULT
        elif self.mechanism in _SCRAM:
            self._name, self._by_token = wire.scram_name(token) or (None, False)
        elif self.mechanism == "OAUTHBEARER":
            self._name, self.fault = wire.oauth_claim(token, self._claim)

    def ends_raw(self, head: Buffer) -> bool:
        """Whether a frame with these first bytes (size included) is a request again, after raw messages of a mechanism
        whose end cannot be recognised otherwise.

        GSSAPI's messages begin with 60 (RFC 2743), 05 04 (RFC 4121) or are empty; no API key looks like these. While
        the broker owes the answer to anything but the last message, every frame is a message for the broker.
        """
        if len(head) < 8:
            return False
        if self.mechanism == _GSSAPI and not self.answers + 1 == self._messages >= _MIN_GSSAPI_MESSAGES:
            return False
        return int.from_bytes(head[0:4], "big") >= 10 and INT16.unpack_from(head, 4)[0] in APIS

    def answered(self, token: bytes) -> Login | None:
        """The broker's answer to a message, without an error; not None if it completes the login."""
        self.answers += 1
        if self.mechanism in _SCRAM:
            done = self._messages == 2 and token.startswith(_SERVER_FINAL)
        elif self.mechanism == "OAUTHBEARER":
            done = self._messages == 1 and not token
            if not done:
                self._name = None
        elif self.mechanism == _GSSAPI:
            done = not token and self._messages >= _MIN_GSSAPI_MESSAGES
        else:
            done = self._messages == 1 or self.mechanism != "PLAIN"
        return Login(self._name, self._by_token) if done else None
