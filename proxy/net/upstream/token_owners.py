"""Owners of delegation tokens (KIP-48): a client that logs in with a token is the principal that owns the token.

Owners come from the configuration, or from the cluster, asked by DescribeDelegationToken with the sidecar's own login.
That response also contains the tokens' secrets (HMACs), which are skipped in place and never copied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import Final

import trio

from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.primitives import (
    ARRAY,
    BYTES,
    SKIP,
    STRING,
    TAGS,
    VARARRAY,
    VARLEN,
    Program,
    read_uvarint,
)
from proxy.core.wire.walk import Short, Walker

DESCRIBE_DELEGATION_TOKEN: Final = 41
VERSIONS: Final = range(1, 4)
_FLEXIBLE_VERSION: Final = 2
_REQUESTER_VERSION: Final = 3
"""From this version on a token has its requester besides its owner (KIP-373)."""
MAX_OWNERS: Final = 100_000
ASK_AGAIN_S: Final = 1.0
"""The cluster is asked at most this often, whatever token ids clients send."""
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_TIMES_BYTES: Final = 24
"""issue, expiry and maximum timestamp"""


def describe_request(version: int, correlation_id: int, client_id: str) -> bytes:
    """A whole request frame that asks for the tokens of all owners."""
    everyone = b"\0\0" if version >= _FLEXIBLE_VERSION else _INT32.pack(-1)  # null, and no tagged fields
    return framed(request_header(DESCRIBE_DELEGATION_TOKEN, version, correlation_id, client_id) + everyone)


def read_owners(version: int, body: memoryview) -> dict[str, str]:
    """Owners by token id, from a response body. Raises WireError if it cannot be read or the broker refuses."""
    flexible = version >= _FLEXIBLE_VERSION
    array, text, secret = (VARARRAY, VARLEN, VARLEN) if flexible else (ARRAY, STRING, BYTES)
    tags: Program = ((TAGS, ()),) if flexible else ()
    requester: Program = ((text, 0), (text, 0)) if version >= _REQUESTER_VERSION else ()
    behind: Program = ((secret, 0), (array, ((text, 0), (text, 0), *tags)), *tags)
    owners: dict[str, str] = {}
    walker = Walker(body, len(body), len(body), 10 * MAX_OWNERS)
    error = int.from_bytes(body[:2], "big")
    if error and len(body) > 1:
        raise WireError("broker_refuses", f"the broker does not describe delegation tokens (error {error})")
    try:
        if flexible:
            count, at = read_uvarint(body, 2, len(body))
            count -= 1
            if at < 0:
                raise Short(2)
        else:
            (count,), at = _INT32.unpack_from(body, 2), 6
        for _ in range(min(count, MAX_OWNERS)):
            at = walker.run(((text, 0),), at)  # principal type: User
            owner, at = _text(walker, text, body, at)
            at = walker.run((*requester, (SKIP, _TIMES_BYTES)), at)
            token_id, at = _text(walker, text, body, at)
            at = walker.run(behind, at)
            owners[token_id] = owner
        walker.need(at)
    except (Short, WireError, struct_error):
        raise WireError("broker_malformed", "a truncated DescribeDelegationToken response") from None
    return owners


def _text(walker: Walker, kind: int, body: memoryview, at: int) -> tuple[str, int]:
    end = walker.run(((kind, 0),), at)
    start = read_uvarint(body, at, end)[1] if kind == VARLEN else at + _INT16.size
    return bytes(body[start:end]).decode("utf-8", "replace"), end


class TokenOwners:
    """Known owners, and how to look up others."""

    def __init__(self, configured: Mapping[str, str], ask: Callable[[], Awaitable[Mapping[str, str]]] | None) -> None:
        """`ask()` returns the owners of all tokens of the cluster, or raises; None: there is no cluster to ask."""
        self._configured = dict(configured)
        self._ask = ask
        self._found: Mapping[str, str] = {}
        self._asked_s = float("-inf")
        self._asking = trio.Lock()

    def known(self, token_id: str) -> str | None:
        """The owner, if already known."""
        return self._configured.get(token_id) or self._found.get(token_id)

    @property
    def can_ask(self) -> bool:
        """Whether the cluster can be asked."""
        return self._ask is not None

    async def find(self, token_id: str) -> str | None:
        """The owner, asking the cluster if need be. Raises whatever `ask` raises."""
        if self._ask is None:
            return self.known(token_id)
        async with self._asking:
            # The token is new, or the broker that was asked did not know it yet.
            if self.known(token_id) is None and trio.current_time() - self._asked_s >= ASK_AGAIN_S:
                self._asked_s = trio.current_time()
                self._found = await self._ask()
        return self.known(token_id)
