"""Messages of SASL logins, for tests without a broker; and what a script of them does with a session."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

from proxy.core.auth.sasl import Login
from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.primitives import uvarint
from tests.support.session_tools import Cut, Driven, from_broker, from_client, response, whole

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
HEAD = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()


def handshake(mechanism: str, version: int = 1, correlation_id: int = 1) -> bytes:
    name = mechanism.encode()
    return framed(request_header(SASL_HANDSHAKE, version, correlation_id, "c") + struct.pack(">h", len(name)) + name)


def handshake_response(error: int = 0, version: int = 1, correlation_id: int = 1) -> bytes:
    return response(SASL_HANDSHAKE, version, correlation_id, struct.pack(">hih", error, 1, 5) + b"PLAIN")


def authenticate(token: bytes, version: int = 2, correlation_id: int = 2) -> bytes:
    body = uvarint(len(token) + 1) + token + b"\0" if version >= 2 else struct.pack(">i", len(token)) + token
    return framed(request_header(SASL_AUTHENTICATE, version, correlation_id, "c") + body)


def authenticate_response(error: int = 0, token: bytes = b"", version: int = 2, lifetime_ms: int = 0) -> bytes:
    body = struct.pack(">h", error)
    if version >= 2:
        body += b"\0" + uvarint(len(token) + 1) + token + struct.pack(">q", lifetime_ms) + b"\0"
    else:
        body += struct.pack(">hi", -1, len(token)) + token + (struct.pack(">q", lifetime_ms) if version else b"")
    return response(SASL_AUTHENTICATE, version, 2, body)


def raw(token: bytes) -> bytes:
    """A message after SaslHandshake v0: a size and the token."""
    return framed(token)


def jws(claims: bytes, *, standard: bool = False, padding: str = "") -> str:
    """An unsecured token with just these bytes for its claims."""
    encode = base64.standard_b64encode if standard else base64.urlsafe_b64encode
    return f"{HEAD}.{encode(claims).decode().rstrip('=')}{padding}."


def jwt(claims: dict[str, Any]) -> str:
    return jws(json.dumps(claims).encode())


def bearer(token: str) -> bytes:
    """OAUTHBEARER's first message (RFC 7628)."""
    return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"


def listen(to: Driven) -> list[Login]:
    """Every login whose user the session asks for."""
    asked: list[Login] = []

    def user_of(login: Login) -> str:
        asked.append(login)
        return to.user

    to.user_of = user_of
    return asked


def log_in(
    one: Driven,
    mechanism: str,
    steps: Sequence[tuple[bytes, bytes]],
    *,
    version: int = 2,
    lifetime_ms: int = 0,
    now_ms: float = 0.0,
    cut: Cut = whole,
) -> None:
    """A login that succeeds: (client's message, broker's message) pairs; `version` -1 is SaslHandshake v0 and raw."""
    raw_mode = version < 0
    number = 0 if raw_mode else 1
    sent, answered = handshake(mechanism, number), handshake_response(version=number)
    assert from_client(one, sent, now_ms, cut) == sent
    assert from_broker(one, answered, now_ms, cut) == answered
    for count, (token, reply) in enumerate(steps, 1):
        sent = raw(token) if raw_mode else authenticate(token, version)
        lifetime = lifetime_ms if count == len(steps) else 0
        answered = raw(reply) if raw_mode else authenticate_response(0, reply, version, lifetime_ms=lifetime)
        assert from_client(one, sent, now_ms, cut) == sent
        assert from_broker(one, answered, now_ms, cut) == answered


PLAIN_STEPS = ((b"\0alice\0pw-secret", b""),)
SCRAM_STEPS = ((b"n,,n=alice,r=abc", b"r=abcdef,s=c2FsdA==,i=4096"), (b"c=biws,r=abcdef,p=cHJvb2Y=", b"v=c2ln"))
OAUTH_STEPS = ((bearer(jwt({"sub": "alice"})), b""),)
