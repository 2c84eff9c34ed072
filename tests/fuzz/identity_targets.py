"""Targets of what says who a client is: SASL messages and certificates."""

from __future__ import annotations

from pathlib import Path

import certifi

from proxy.core.errors import SessionError
from proxy.core.wire import sasl
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import framed
from proxy.net.tls.certificates import CertificateError, in_pem, subject, valid_s
from tests.fuzz.targets import _held, _ledger, _pieces, _session, target
from tests.support import sasl_tools

STEPS = (sasl_tools.PLAIN_STEPS, sasl_tools.SCRAM_STEPS, sasl_tools.OAUTH_STEPS)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI")


def _tokens() -> list[bytes]:
    both = [message for steps in STEPS for step in steps for message in step]
    return [*both, *(sasl_tools.authenticate(message)[14:] for message in both), b"\0\5PLAIN"]


@target("sasl_tokens", _tokens, max_bytes=512)
def sasl_tokens(data: bytes) -> None:
    """Each reader of SASL messages: a name that it finds stands in the message, and never behind the password's NUL."""
    plain = sasl.plain_name(data)
    if plain is not None and "\ufffd" not in plain:
        assert plain.encode() == data.split(b"\0")[1]
    scram = sasl.scram_name(data)
    assert scram is None or len(scram[0]) <= len(data)
    oauth = sasl.oauth_claim(data, "sub")[0]
    assert oauth is None or 0 < len(oauth) <= len(data)
    mechanism = sasl.mechanism(data)
    assert mechanism is None or len(mechanism) == len(data[2:][: len(mechanism)])
    version = data[0] % 3 if data else 0
    token = sasl.client_token(version, data)
    assert token is None or bytes(token) in data
    try:
        answer = sasl.answer(version, data)
    except WireError as error:
        assert len(str(error)) < 100  # and shows nothing of it  # noqa: PT017
        return
    assert answer.token in data
    assert answer.lifetime_ms >= 0


def _logins() -> list[bytes]:
    found = []
    for number, steps in enumerate(STEPS):
        for version in range(4):
            script = b"".join(bytes((len(part),)) + part for step in steps for part in step if len(part) < 256)
            found.append(bytes((version << 4 | number,)) + script)
    return found


@target("sasl_session", _logins, max_bytes=1024)
def sasl_session(data: bytes) -> None:
    """A login in turns, both sides saying anything: the bytes pass as they are, the buffers are wiped, no crash."""
    if len(data) < 2:
        return
    one = _session(_ledger(), rewrite=False)
    result = sasl_tools.listen(one)
    version, cut = (data[0] >> 4) % 4 - 1, data[1] & 7
    number = 0 if version < 0 else 1
    sent = sasl_tools.handshake(MECHANISMS[data[0] % 4], number)
    answered = sasl_tools.handshake_response(version=number)
    at, correlation_id = 1, 1
    try:
        while True:
            if one.must_wait or one.has_backlog:
                return
            for frame, send, taken in ((sent, one.client_sends, one.taken), (answered, one.broker_sends, one.seen)):
                for piece in _pieces(frame, cut):
                    send(piece, 0.0)
                assert frame.startswith(taken())
                assert _held(one) <= len(frame)
            if at >= len(data):
                break
            parts = []
            for _ in range(2):
                size = data[at] if at < len(data) else 0
                parts.append(data[at + 1 : at + 1 + size])
                at += 1 + size
            correlation_id += 1
            if version < 0:
                sent, answered = framed(parts[0]), framed(parts[1])
            else:
                sent = sasl_tools.authenticate(parts[0], version, correlation_id)
                answered = framed(correlation_id.to_bytes(4, "big") + parts[1])
    except SessionError as error:
        assert not any(len(part) > 12 and part in str(error).encode() for part in (sent[14:], answered[8:]))  # noqa: PT017
    assert len(result) <= at
    one.close(0.0)


def _certificates() -> list[bytes]:
    return in_pem(Path(certifi.where()).read_text())[:40]


@target("certificates", _certificates, max_bytes=2048)
def certificates(data: bytes) -> None:
    """A certificate's subject and end; OpenSSL has read and verified it before us, so this is the second line."""
    for read in (subject, valid_s):
        try:
            read(data)
        except CertificateError:
            continue
