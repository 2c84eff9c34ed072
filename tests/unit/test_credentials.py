"""The sidecar's own login, and whose a delegation token is: conversations without a network."""

import base64
import datetime
import struct
from collections.abc import Generator, Mapping
from importlib import import_module
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from trio.testing import MockClock

from proxy.core.wire.frames import WireError
from proxy.net.upstream.credentials import MAX_SECRET_BYTES, Credentials, LoginError, login, scram_final
from proxy.net.upstream.token_owners import ASK_AGAIN_S, VERSIONS, TokenOwners, describe_request, read_owners
from tests.support.sasl_tools import authenticate_response, handshake_response
from tests.support.session_tools import encode
from tests.support.wire_tools import kio_read


def own(tmp_path: Path, mechanism: str = "PLAIN", secret: str | bytes = "pw-secret\n") -> Credentials:
    file = tmp_path / "secret"
    file.write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    return Credentials(mechanism, None if mechanism == "OAUTHBEARER" else "me", file)


def conversation_of(credentials: Credentials) -> Generator[bytes, bytes, None]:
    return login(credentials, "kquota", credentials.secret())


def test_scram_as_in_rfc_7677() -> None:
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
    ("kind", "answers", "says"),
    [
        (LoginError, [handshake_response(), authenticate_response(58, version=1)], r"refuses the login \(error 58\)"),
        (LoginError, [handshake_response(33)], r"does not accept the SASL mechanism PLAIN \(error code 33\)"),
        (WireError, [b"\0\0\0\4\0\0\0\1"], "error code"),  # it cannot be read
    ],
)
def test_refusals_are_said_without_the_secret(
    tmp_path: Path, kind: type[Exception], answers: list[bytes], says: str
) -> None:
    conversation = conversation_of(own(tmp_path))
    next(conversation)
    with pytest.raises(kind, match=says) as caught:
        list(map(conversation.send, answers))
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


def described(version: int, *tokens: tuple[str, str], error: int = 0) -> bytes:
    kio = import_module(f"kio.schema.describe_delegation_token.v{version}.response")
    renewer = kio.DescribedDelegationTokenRenewer(principal_type="User", principal_name="r")
    requester = {"token_requester_principal_type": "User", "token_requester_principal_name": "carol"}
    found = tuple(
        kio.DescribedDelegationToken(
            principal_type="User", principal_name=owner, issue_timestamp=1, expiry_timestamp=2, max_timestamp=3,
            token_id=token_id, hmac=b"secret", renewers=(renewer, renewer), **(requester if version >= 3 else {}),
        )
        for token_id, owner in tokens
    )  # fmt: skip
    no_time = datetime.timedelta()
    return encode(kio.DescribeDelegationTokenResponse(error_code=ErrorCode(error), tokens=found, throttle_time=no_time))


@pytest.mark.parametrize("version", VERSIONS)
def test_owners_are_read_and_nothing_else(version: int) -> None:
    owners = (("id-1", "alice"), ("id-2", "jos\u00e9"))
    assert read_owners(version, described(version, *owners)) == dict(owners)
    assert kio_read(describe_request(version, 1, "kquota"), 41, version, EntityType.request).owners is None
    with pytest.raises(WireError, match="error 61"):
        read_owners(version, described(version, error=61))


@given(st.binary(max_size=100), st.sampled_from(VERSIONS))
def test_garbage_is_no_answer(data: bytes, version: int) -> None:
    try:
        read_owners(version, data)
    except WireError as error:
        assert error.reason in ("broker_malformed", "broker_refuses")  # noqa: PT017 - or it is readable
    cut = described(version, ("id-1", "alice"))
    for end in range(len(cut)):
        with pytest.raises(WireError):
            read_owners(version, cut[:end])


async def test_the_cluster_is_asked_for_strangers_and_not_too_often(autojump_clock: MockClock) -> None:
    answers: list[Mapping[str, str]] = [{"new": "alice"}, {"new": "alice", "newer": "bob"}]
    asked = []

    async def ask() -> Mapping[str, str]:
        asked.append(trio.current_time())
        return answers[len(asked) - 1]

    owners = TokenOwners({"configured": "carol"}, ask)
    assert await owners.find("configured") == "carol"
    assert asked == []
    assert await owners.find("new") == "alice"
    assert await owners.find("new") == "alice"
    assert await owners.find("newer") is None  # asked a moment ago
    assert len(asked) == 1
    await trio.sleep(ASK_AGAIN_S)
    assert await owners.find("newer") == "bob"
    assert len(asked) == 2
