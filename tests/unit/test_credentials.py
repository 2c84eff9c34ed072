"""The sidecar's own login: conversations without a network, and real brokers."""

from __future__ import annotations

import base64
import struct
from collections.abc import Generator
from pathlib import Path

import pytest

from proxy.net.upstream.credentials import MAX_SECRET_BYTES, Credentials, LoginError, login, scram_final
from tests.support.sasl_tools import authenticate_response, handshake_response


def own(tmp_path: Path, mechanism: str = "PLAIN", secret: str | bytes = "pw-secret\n") -> Credentials:
    file = tmp_path / "secret"
    file.write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    return Credentials(mechanism, None if mechanism == "OAUTHBEARER" else "me", file)


def conversation_of(credentials: Credentials) -> Generator[bytes, bytes, None]:
    return login(credentials, "kquota", credentials.secret())


def test_scram_as_in_rfc_7677() -> None:
    """RFC 7677 §3: user "user", password "pencil", SCRAM-SHA-256."""
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final, signature = scram_final("sha256", "pencil", "n=user,r=rOprNGfwEbeRWgbNEkqO", "rOprNGfwEbeRWgbNEkqO", first)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("server_first", "says"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "does not extend the one that the sidecar sent"),
        (b"r=nonce1,s=c2FsdA==,i=99999999", "1 to 65536"),
        (b"r=nonce1,s=!,i=1", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_broker_that_does_not_speak_scram_is_refused(server_first: bytes, says: str) -> None:
    with pytest.raises(LoginError, match=says):
        scram_final("sha256", "pw", "n=me,r=nonce", "nonce", server_first)


def test_plain_and_the_line_break_at_the_end_of_the_file(tmp_path: Path) -> None:
    conversation = conversation_of(own(tmp_path))
    assert next(conversation).endswith(b"\0\5PLAIN")
    assert conversation.send(handshake_response()).endswith(struct.pack(">i", 13) + b"\0me\0pw-secret")
    with pytest.raises(StopIteration):
        conversation.send(authenticate_response(version=1))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (58, r"refuses the login \(error 58\)"),
        (33, r"does not accept the SASL mechanism PLAIN \(error code 33\)"),
        (None, "error code"),  # it cannot be read
    ],
)
def test_refusals_are_said_without_the_secret(tmp_path: Path, error: int | None, says: str) -> None:
    conversation = conversation_of(own(tmp_path))
    next(conversation)
    answer = handshake_response(33) if error else b"\0\0\0\4\0\0\0\1"
    if error == 58:
        conversation.send(handshake_response())
        answer = authenticate_response(58, version=1)
    with pytest.raises(LoginError, match=says) as caught:
        conversation.send(answer)
    assert "secret" not in str(caught.value)


def test_a_challenge_is_no_success(tmp_path: Path) -> None:
    conversation = conversation_of(own(tmp_path, "OAUTHBEARER", "a.b.c"))
    next(conversation)
    assert conversation.send(handshake_response()).endswith(b"n,,\1auth=Bearer a.b.c\1\1")
    assert conversation.send(authenticate_response(0, b"{}", version=1)).endswith(b"\0\0\0\1\1")
    with pytest.raises(LoginError, match="does not accept the token"):
        conversation.send(authenticate_response(0, b"", version=1))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xff", "not UTF-8"),
        (b"x" * (MAX_SECRET_BYTES + 1), "it has 65537 bytes; at most 65536 are read"),
    ],
)
def test_files_that_are_no_secret(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(LoginError, match=says):
        own(tmp_path, secret=content).secret()
    with pytest.raises(LoginError, match="No such file"):
        Credentials("PLAIN", "me", tmp_path / "none").secret()
