"""Owners of delegation tokens (KIP-48): a client that logs in with a token is the principal that owns the token. Owners
come from the configuration, or from the cluster, asked by DescribeDelegationToken with the sidecar's own login. That
response also contains the tokens' secrets (HMACs), of which nothing is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio
from kio.serial import entity_reader

from proxy.core.wire.bodies import class_of, readable
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import check_lengths
from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.primitives import INT32

DESCRIBE_DELEGATION_TOKEN: Final = 41
VERSIONS: Final = range(1, 4)
_FLEXIBLE_VERSION: Final = 2
ASK_AGAIN_S: Final = 1.0
"""The cluster is asked at most this often, whatever token ids clients send."""


def describe_request(version: int, correlation_id: int, client_id: str) -> bytes:
    """A whole request frame that asks for the tokens of all owners."""
    everyone = b"\0\0" if version >= _FLEXIBLE_VERSION else INT32.pack(-1)  # null, and no tagged fields
    return framed(request_header(DESCRIBE_DELEGATION_TOKEN, version, correlation_id, client_id) + everyone)


def read_owners(version: int, body: bytes) -> dict[str, str]:
    """Owners by token id, from a response body. Raises WireError if it cannot be read or the broker refuses."""
    cls = class_of("describe_delegation_token", version, "response")
    with readable("broker_malformed", cls):
        check_lengths(cls, body)
        response, _ = entity_reader(cls)(body, 0)
    if error := response.error_code.value:
        raise WireError("broker_refuses", f"the broker does not describe delegation tokens (error {error})")
    return {token.token_id: token.principal_name for token in response.tokens}


class TokenOwners:
    """Known owners, and how to look up others."""

    def __init__(self, configured: Mapping[str, str], ask: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """`ask()` returns the owners of all tokens of the cluster, or raises."""
        self._configured = configured
        self._ask = ask
        self._found: Mapping[str, str] = {}
        self._asked_s = float("-inf")
        self._asking = trio.Lock()

    def known(self, token_id: str) -> str | None:
        """The owner, if already known."""
        return self._configured.get(token_id) or self._found.get(token_id)

    async def find(self, token_id: str) -> str | None:
        """The owner, asking the cluster if need be. Raises whatever `ask` raises."""
        async with self._asking:
            # The token is new, or the broker that was asked did not know it yet.
            if self.known(token_id) is None and trio.current_time() - self._asked_s >= ASK_AGAIN_S:
                self._asked_s = trio.current_time()
                self._found = await self._ask()
        return self.known(token_id)
