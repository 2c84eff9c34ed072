"""Whose a delegation token is: the broker's answer, what is remembered, how often is asked."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from proxy.core.wire.frames import WireError
from proxy.net.upstream.token_owners import ASK_AGAIN_S, TokenOwners, read_owners


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def described(*tokens: tuple[str, str], error: int = 0) -> bytes:
    """A DescribeDelegationToken response body of version 1; each token has two renewers."""
    body = struct.pack(">hi", error, len(tokens))
    for token_id, owner in tokens:
        body += text("User") + text(owner) + struct.pack(">qqq", 1, 2, 3) + text(token_id)
        body += (
            struct.pack(">i", 6)
            + b"secret"
            + struct.pack(">i", 2)
            + text("User")
            + text("r")
            + text("User")
            + text("s")
        )
    return body + struct.pack(">i", 0)


def test_owners_are_read_and_nothing_else() -> None:
    assert read_owners(memoryview(described(("id-1", "alice"), ("id-2", "jos\u00e9")))) == {
        "id-1": "alice",
        "id-2": "jos\u00e9",
    }
    assert read_owners(memoryview(described())) == {}


def test_refused_token_description_is_an_error() -> None:
    with pytest.raises(WireError, match="error 61"):
        read_owners(memoryview(described(error=61)))


@given(st.binary(max_size=100))
def test_garbage_is_no_answer(data: bytes) -> None:
    try:
        read_owners(memoryview(data))
    except WireError as error:
        assert error.reason in ("broker_malformed", "broker_refuses")  # noqa: PT017 - or it is readable
    cut = described(("id-1", "alice"))
    for end in range(len(cut) - 4):
        with pytest.raises(WireError):
            read_owners(memoryview(cut)[:end])


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


async def test_without_a_login_only_the_configured_are_known() -> None:
    owners = TokenOwners({"configured": "carol"}, None)
    assert not owners.can_ask
    assert [await owners.find(name) for name in ("configured", "new")] == ["carol", None]
