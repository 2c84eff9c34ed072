"""Whose a delegation token is: the broker's answer, what is remembered, how often is asked."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from trio.testing import MockClock

from proxy.core.wire.frames import WireError
from proxy.net.upstream.token_owners import ASK_AGAIN_S, VERSIONS, TokenOwners, describe_request, read_owners
from tests.support.session_tools import encode
from tests.support.wire_tools import kio_read


def described(version: int, *tokens: tuple[str, str], error: int = 0) -> bytes:
    """A DescribeDelegationToken response body; each token has two renewers."""
    kio = import_module(f"kio.schema.describe_delegation_token.v{version}.response")
    renewers = tuple(
        kio.DescribedDelegationTokenRenewer(principal_type="User", principal_name=name) for name in ("r", "s")
    )
    requester = {"token_requester_principal_type": "User", "token_requester_principal_name": "carol"}
    found = [
        kio.DescribedDelegationToken(
            principal_type="User", principal_name=owner, issue_timestamp=1, expiry_timestamp=2, max_timestamp=3,
            token_id=token_id, hmac=b"secret", renewers=renewers,
            **(requester if version >= 3 else {}),
        )
        for token_id, owner in tokens
    ]  # fmt: skip
    answer = kio.DescribeDelegationTokenResponse(
        error_code=ErrorCode(error), tokens=tuple(found), throttle_time=datetime.timedelta()
    )
    return encode(answer)


@pytest.mark.parametrize("version", VERSIONS)
def test_owners_are_read_and_nothing_else(version: int) -> None:
    assert read_owners(version, memoryview(described(version, ("id-1", "alice"), ("id-2", "jos\u00e9")))) == {
        "id-1": "alice",
        "id-2": "jos\u00e9",
    }
    assert kio_read(describe_request(version, 1, "kquota"), 41, version, EntityType.request).owners is None
    with pytest.raises(WireError, match="error 61"):
        read_owners(version, memoryview(described(version, error=61)))


@given(st.binary(max_size=100), st.sampled_from(VERSIONS))
def test_garbage_is_no_answer(data: bytes, version: int) -> None:
    try:
        read_owners(version, memoryview(data))
    except WireError as error:
        assert error.reason in ("broker_malformed", "broker_refuses")  # noqa: PT017 - or it is readable
    cut = described(version, ("id-1", "alice"))
    for end in range(len(cut) - (4 if version == 1 else 5)):  # behind the tokens is the throttle time
        with pytest.raises(WireError):
            read_owners(version, memoryview(cut)[:end])


async def test_the_cluster_is_asked_for_strangers_and_not_too_often(autojump_clock: MockClock) -> None:
    import trio

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
    assert await TokenOwners({}, None).find("new") is None, "without a login nobody is asked"
