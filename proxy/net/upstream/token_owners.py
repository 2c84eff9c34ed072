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

DESCRIBE_DELEGATION_TOKEN: Final = 41
VERSION: Final = 1
"""The version that 3.9 and 4.2 have in common, and the last without compact fields."""
MAX_OWNERS: Final = 100_000
ASK_AGAIN_S: Final = 1.0
"""The cluster is asked at most this often, whatever token ids clients send."""
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_TIMES_BYTES: Final = 24
"""issue, expiry and maximum timestamp"""


def describe_request(correlation_id: int, client_id: str) -> bytes:
    """A whole request frame that asks for the tokens of all owners."""
    return framed(request_header(DESCRIBE_DELEGATION_TOKEN, VERSION, correlation_id, client_id) + _INT32.pack(-1))


def read_owners(body: memoryview) -> dict[str, str]:
    """Owners by token id, from a response body. Raises WireError if it cannot be read or the broker refuses."""
    owners: dict[str, str] = {}
    try:
        (error,) = _INT16.unpack_from(body)
        if error:
            raise WireError("broker_refuses", f"the broker does not describe delegation tokens (error {error})")
        (count,) = _INT32.unpack_from(body, 2)
        at = 6
        for _ in range(min(count, MAX_OWNERS)):
            _, at = _text(body, at)  # principal type: User
            owner, at = _text(body, at)
            token_id, at = _text(body, at + _TIMES_BYTES)
            (size,) = _INT32.unpack_from(body, at)  # the HMAC
            at += _INT32.size + max(size, 0)
            (renewers,) = _INT32.unpack_from(body, at)
            at += _INT32.size
            if renewers > len(body) - at:
                raise ValueError("more renewers than bytes")
            for _ in range(2 * renewers):
                _, at = _text(body, at)
            owners[token_id] = owner
    except (ValueError, struct_error):
        raise WireError("broker_malformed", "a DescribeDelegationToken response that ends too early") from None
    return owners


def _text(body: memoryview, at: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(body, at)
    start, end = at + _INT16.size, at + _INT16.size + max(size, 0)
    if end > len(body):
        raise ValueError("it ends inside a string")
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
